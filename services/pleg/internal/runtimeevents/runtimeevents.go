// Package runtimeevents listens to the runtime's container events. An event is only a hint that a pod is worth a look:
// package relist looks, and writes. So a stale event, a repeated one or one that lies costs a look at most, and a
// thousand of one pod cost two.
//
// While events flow relist may look at everything rarely; when the stream is away, or has never been, it looks every
// second. Whether the events of a stream that is there are right, relist finds out, and has it made anew when they are
// not.
package runtimeevents

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/wait"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// maxFailures is how many streams in a row may fail before events are given up for a while.
	maxFailures = 5
	// retryLater is for how long.
	retryLater = 5 * time.Minute
	// confirm is how long a stream has to stay up, without a word, to be relied on: gRPC does not tell that a runtime has
	// accepted it, but one that has no events says so at once. Each failure before doubles it.
	confirm = time.Second
	// steady is how long a stream has to have been there for its end not to count as a failure.
	steady = time.Minute
	// backoffMin and backoffMax separate streams that fail.
	backoffMin = 100 * time.Millisecond
	backoffMax = 5 * time.Second
)

// errUnreliable ends a stream that has not told of a change.
var errUnreliable = errors.New("a pod has changed and no event has said so")

// Relister is what hints are given to. None of its methods waits: a runtime whose events are not taken may wait with
// its work. Times are the runtime's, zero when it says none.
type Relister interface {
	// Heard says that an event has come, whatever it is about.
	Heard(at time.Time)
	// Hint says that something has happened to the pod with a UID.
	Hint(uid string, at time.Time)
	// HintCreated says that a sandbox or container was made for the pod with a UID, and has not been started.
	HintCreated(uid string, at time.Time)
	// HintRemoved says that the sandbox or container with an id was removed; uid is empty when the pod is not named.
	HintRemoved(uid, id string, at time.Time)
	// HintAny says that something has happened to the pod that has a sandbox or container with an id.
	HintAny(id string, at time.Time)
	// SetEvented says whether there is a stream that hints come from.
	SetEvented(evented bool)
	// Unreliable tells that the stream has not told of a change.
	Unreliable() <-chan struct{}
}

// Config is what a Listener works with.
type Config struct {
	// Events opens a stream and hands over its events until it ends, as cri.Client.Events does.
	Events func(ctx context.Context, opened func(), handle func(*runtimeapi.ContainerEventResponse)) error
	// Relister gets the hints.
	Relister Relister
	// Clock times the tries.
	Clock clock.WithTicker
	// Logger gets what an operator should know.
	Logger *slog.Logger
	// Metrics counts.
	Metrics *Metrics
}

// Run listens until ctx ends; it returns nil then.
func Run(ctx context.Context, cfg Config) error {
	ctx = cri.Quiet(ctx)
	failures := 0
	backoff := newBackoff()
	for {
		lasted, err := listen(ctx, cfg, failures)
		if ctx.Err() != nil {
			return nil
		}
		cfg.Metrics.failed.Inc()
		pause := time.Duration(0)
		switch {
		case status.Code(err) == codes.Unimplemented:
			failures, backoff, pause = 0, newBackoff(), retryLater
			cfg.Logger.Info("the runtime has no container events, relisting every second", telemetry.KeyRetryAfter, pause)
		case lasted:
			failures, backoff = 0, newBackoff()
			pause = backoff.Step()
			cfg.Logger.Warn("the runtime's event stream ended, relisting every second until it is back", telemetry.KeyError, err)
		default:
			failures++
			pause = backoff.Step()
			if failures >= maxFailures {
				failures, backoff, pause = 0, newBackoff(), retryLater
				cfg.Logger.Warn(fmt.Sprintf("the runtime's event stream failed %d times in a row, relisting every second", maxFailures),
					telemetry.KeyError, err, telemetry.KeyRetryAfter, pause)
			}
		}
		if !sleep(ctx, cfg.Clock, pause) {
			return nil
		}
	}
}

// sleep waits, and tells whether ctx has let it wait to the end.
func sleep(ctx context.Context, clock clock.Clock, d time.Duration) bool {
	timer := clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C():
		return true
	}
}

func newBackoff() wait.Backoff {
	return wait.Backoff{Duration: backoffMin, Factor: 2, Jitter: 0.2, Steps: 1 << 30, Cap: backoffMax}
}

// listen runs one stream to its end after so many failures in a row, and tells whether it was there for a while.
func listen(ctx context.Context, cfg Config, failures int) (lasted bool, err error) {
	select {
	case <-cfg.Relister.Unreliable():
		// That was about the one before.
	default:
	}
	link := &link{cfg: cfg}
	ctx, cancel := context.WithCancelCause(ctx)
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel(nil)
	opened := func() {
		link.opened()
		waiting.Go(func() {
			if sleep(ctx, cfg.Clock, confirm<<failures) {
				link.gain()
			}
		})
		waiting.Go(func() {
			select {
			case <-cfg.Relister.Unreliable():
				cancel(errUnreliable)
			case <-ctx.Done():
			}
		})
	}
	err = cfg.Events(ctx, opened, func(event *runtimeapi.ContainerEventResponse) {
		if failures == 0 {
			link.gain()
		}
		give(cfg, event)
	})
	if cause := context.Cause(ctx); errors.Is(cause, errUnreliable) {
		err = cause
	}
	return link.lose(), err
}

// give tells the relister about an event.
func give(cfg Config, event *runtimeapi.ContainerEventResponse) {
	var at time.Time
	if event.GetCreatedAt() > 0 {
		at = time.Unix(0, event.GetCreatedAt())
	}
	cfg.Metrics.event(at, cfg.Clock.Now())
	cfg.Relister.Heard(at)
	// A runtime that has lost sight of the sandbox gives no status, or an empty one.
	labels := event.GetPodSandboxStatus().GetLabels()
	uid, kind := labels[podlabels.PodUID], event.GetContainerEventType()
	switch {
	case uid == "" && len(labels) > 0:
		// A sandbox without a pod's UID is not ours.
	case kind == runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT:
		cfg.Relister.HintRemoved(uid, event.GetContainerId(), at)
	case uid == "":
		cfg.Relister.HintAny(event.GetContainerId(), at)
	case kind == runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT:
		cfg.Relister.HintCreated(uid, at)
	default:
		cfg.Relister.Hint(uid, at)
	}
}

// link is one stream, and whether it is there.
type link struct {
	cfg Config

	mu     sync.Mutex
	since  time.Time
	gained bool
	lost   bool
}

func (l *link) opened() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.since = l.cfg.Clock.Now()
}

func (l *link) gain() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gained || l.lost {
		return
	}
	l.gained = true
	l.cfg.Metrics.connected.Inc()
	l.cfg.Logger.Info("container events flow, full relists are rare while they prove right")
	l.cfg.Relister.SetEvented(true)
}

// lose notes the end of the stream, and tells whether the stream was there for a while.
func (l *link) lose() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = true
	if l.gained {
		l.cfg.Relister.SetEvented(false)
	}
	return l.gained && l.cfg.Clock.Since(l.since) >= steady
}
