// Package streamrpc carries a stream.Source over gRPC: Serve is the body of every watch handler, NewSource is the
// client that implements stream.Source on the other side. Errors are translated only here.
package streamrpc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/buildinfo"
	"github.com/quartet-node/quartet/internal/stream"
)

// Serve subscribes to src after token and sends every message until ctx, the subscription or the connection ends. The
// value passed to send is zero for messages without one. It returns a gRPC status error: RESOURCE_EXHAUSTED for
// stream.ErrOverflow, UNAVAILABLE for stream.ErrClosed.
func Serve[V any](ctx context.Context, src stream.Source[V], token []byte, send func(*streamv1.Frame, V) error) error {
	sub, err := src.Subscribe(ctx, token)
	if err != nil {
		return toStatus(err)
	}
	defer sub.Close()
	for {
		m, err := sub.Next(ctx)
		if err != nil {
			return toStatus(err)
		}
		if err := send(toFrame(m), m.Value); err != nil {
			return err
		}
	}
}

// silence is the time without a frame after which a subscription ends: several bookmarks are missing then.
const silence = 4 * stream.BookmarkInterval

func toFrame[V any](m stream.Message[V]) *streamv1.Frame {
	f := &streamv1.Frame{Kind: kinds[m.Kind], ResumeToken: m.Token, Key: m.Key, Removed: m.Removed}
	if m.Kind == stream.KindOpened {
		f.Opening = &streamv1.Opening{Start: starts[m.Start], KubernetesApiVersion: kubernetesAPIVersion()}
	}
	return f
}

// Receive returns the next frame of a gRPC stream and its value.
type Receive[V any] func() (*streamv1.Frame, V, error)

// NewSource returns a Source whose subscriptions are gRPC streams. open starts one, which must end with its context.
func NewSource[V any](open func(ctx context.Context, token []byte) (Receive[V], error)) stream.Source[V] {
	return source[V]{open: open}
}

type source[V any] struct {
	open func(ctx context.Context, token []byte) (Receive[V], error)
}

// Subscribe implements stream.Source. The subscription lives until ctx ends or it is closed.
func (s source[V]) Subscribe(ctx context.Context, token []byte) (stream.Subscription[V], error) {
	ctx, cancel := context.WithCancel(ctx)
	receive, err := s.open(ctx, token)
	if err != nil {
		cancel()
		return nil, fromStatus(err)
	}
	return &subscription[V]{cancel: cancel, receive: receive}, nil
}

type subscription[V any] struct {
	cancel  context.CancelFunc
	receive Receive[V]
}

// Close implements stream.Subscription.
func (s *subscription[V]) Close() { s.cancel() }

// Next implements stream.Subscription. The end of ctx ends the subscription, as any failure does, and so does silence:
// its error has the code UNAVAILABLE. A frame of a kind that this version does not know is a message of KindUnknown.
func (s *subscription[V]) Next(ctx context.Context) (stream.Message[V], error) {
	stop := context.AfterFunc(ctx, s.cancel)
	defer stop()
	silent := time.AfterFunc(silence, s.cancel)
	frame, value, err := s.receive()
	heard := silent.Stop()
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return stream.Message[V]{}, ctx.Err()
	case !heard:
		return stream.Message[V]{}, status.Errorf(codes.Unavailable,
			"no frame for %v although one is due every %v: the other process hangs", silence, stream.BookmarkInterval)
	default:
		return stream.Message[V]{}, fromStatus(err)
	}
	m := stream.Message[V]{
		Kind: kindOf(frame.GetKind()), Token: frame.GetResumeToken(),
		Key: frame.GetKey(), Removed: frame.GetRemoved(), Value: value,
	}
	if m.Kind == stream.KindOpened {
		m.Start = startOf(frame.GetOpening().GetStart())
		own := kubernetesAPIVersion()
		m.API = frame.GetOpening().GetKubernetesApiVersion()
		m.OtherAPI = m.API != "" && own != "" && m.API != own
	}
	return m, nil
}

var kinds = map[stream.Kind]streamv1.Kind{
	stream.KindOpened:   streamv1.Kind_KIND_OPENED,
	stream.KindSnapshot: streamv1.Kind_KIND_SNAPSHOT,
	stream.KindSynced:   streamv1.Kind_KIND_SYNCED,
	stream.KindDelta:    streamv1.Kind_KIND_DELTA,
	stream.KindBookmark: streamv1.Kind_KIND_BOOKMARK,
}

func kindOf(wire streamv1.Kind) stream.Kind {
	for k, w := range kinds {
		if w == wire {
			return k
		}
	}
	return stream.KindUnknown
}

var starts = map[stream.Start]streamv1.Start{
	stream.StartResumed:           streamv1.Start_START_RESUMED,
	stream.StartSnapshot:          streamv1.Start_START_SNAPSHOT,
	stream.StartSnapshotEpoch:     streamv1.Start_START_SNAPSHOT_EPOCH,
	stream.StartSnapshotCompacted: streamv1.Start_START_SNAPSHOT_COMPACTED,
	stream.StartSnapshotInvalid:   streamv1.Start_START_SNAPSHOT_INVALID,
}

func startOf(wire streamv1.Start) stream.Start {
	for s, w := range starts {
		if w == wire {
			return s
		}
	}
	return 0
}

func toStatus(err error) error {
	switch {
	case errors.Is(err, stream.ErrOverflow):
		return status.Error(codes.ResourceExhausted, err.Error())
	case errors.Is(err, stream.ErrClosed):
		return status.Error(codes.Unavailable, err.Error())
	default:
		return status.FromContextError(err).Err()
	}
}

func fromStatus(err error) error {
	switch status.Code(err) { //nolint:exhaustive // every other code is the connection's and stays as it is
	case codes.ResourceExhausted:
		return fmt.Errorf("%w: %w", stream.ErrOverflow, err)
	default:
		return err
	}
}

// kubernetesAPIVersion is the version of k8s.io/api that this binary was built with.
var kubernetesAPIVersion = sync.OnceValue(func() string { return buildinfo.Module("k8s.io/api") })
