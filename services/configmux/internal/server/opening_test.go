package server

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/configmux/internal/mux"
)

// asked is a Desired without pods that records whether its stream was requested.
type requested struct {
	Desired
	streams int
	then    func()
}

func (a *requested) Stream(configv1.Mode) stream.Source[mux.Entry] {
	a.streams++
	a.then()
	return stream.NewLevel[mux.Entry](stream.Config{})
}

// subscriber disconnects when its context ends.
type subscriber struct {
	grpc.ServerStreamingServer[configv1.WatchPodUpdatesResponse]
	ctx context.Context //nolint:containedctx // grpc's streams hand out theirs
}

func (s subscriber) Context() context.Context { return s.ctx }

func (s subscriber) Send(*configv1.WatchPodUpdatesResponse) error { return nil }

// TestNoEmptySetIsSentBeforeThePodsAreRead: without a reading, the state would look as if all pods were
// removed.
func TestNoEmptySetIsSentBeforeThePodsAreRead(t *testing.T) {
	opening, desired := make(chan struct{}), &requested{then: func() {}}
	s := New(Config{Desired: desired, Opening: opening})
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.WatchPodUpdates(
		&configv1.WatchPodUpdatesRequest{},
		subscriber{ctx: gone},
	); !errors.Is(err, context.Canceled) ||
		desired.streams != 0 {
		t.Errorf("before the first reading: %v, and the stream was opened %d times", err, desired.streams)
	}
	close(opening)
	ctx, cancel := context.WithCancel(t.Context())
	desired.then = cancel
	if err := s.WatchPodUpdates(
		&configv1.WatchPodUpdatesRequest{},
		subscriber{ctx: ctx},
	); status.Code(err) != codes.Canceled ||
		desired.streams != 1 {
		t.Errorf("after the first reading: %v, and the stream was opened %d times", err, desired.streams)
	}
}

func TestAModeThatIsNotKnownIsRefused(t *testing.T) {
	opening := make(chan struct{})
	close(opening)
	desired := &requested{then: func() {}}
	err := New(
		Config{Desired: desired, Opening: opening},
	).WatchPodUpdates(&configv1.WatchPodUpdatesRequest{Mode: 9}, subscriber{ctx: t.Context()})
	if status.Code(err) != codes.InvalidArgument || desired.streams != 0 {
		t.Errorf("mode 9: %v, and the stream was opened %d times; want it refused", err, desired.streams)
	}
}
