// Package clients has syncloop's gRPC clients of configmux, pleg and nodestatus, in the interfaces of the loop and the
// workers. It translates the errors of the wire; no other package does.
package clients

import (
	"context"
	"fmt"
	"log/slog"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/loop"
)

// ConfigMux returns configmux's stream of wanted pods. Subscribing waits for a configmux that is away.
func ConfigMux(client configv1.ConfigServiceClient) stream.Source[*loop.Desired] {
	return streamrpc.NewSource(func(ctx context.Context, token []byte) (streamrpc.Receive[*loop.Desired], error) {
		request := &configv1.WatchPodUpdatesRequest{ResumeToken: token, WithoutOperations: true}
		watch, err := client.WatchPodUpdates(ctx, request, grpc.WaitForReady(true))
		if err != nil {
			return nil, fmt.Errorf("watch configmux's pods: %w", err)
		}
		return func() (*streamv1.Frame, *loop.Desired, error) {
			m, err := watch.Recv()
			if err != nil {
				return nil, nil, err
			}
			desired, err := decode(m)
			if err == nil && desired == nil && hasContent(m.GetFrame()) {
				return skipped(m.GetFrame()), nil, nil
			}
			return m.GetFrame(), desired, err
		}, nil
	})
}

// decode returns the content of a message; nil if it carries neither a pod nor a source.
func decode(m *configv1.WatchPodUpdatesResponse) (*loop.Desired, error) {
	if source := m.GetSource(); source != nil {
		return &loop.Desired{Source: source.GetName(), Ready: source.GetReady()}, nil
	}
	update := m.GetPod()
	if update == nil {
		return nil, nil
	}
	pod := &v1.Pod{}
	if err := pod.Unmarshal(update.GetPod()); err != nil {
		slog.Error("configmux sent a pod that cannot be read: run the same version of both", "key", m.GetFrame().GetKey(), "error", err)
		return nil, fmt.Errorf("read the pod %s that configmux sent: %w", m.GetFrame().GetKey(), err)
	}
	return &loop.Desired{
		Pod: pod, Source: update.GetSource(), Traceparent: update.GetTraceparent(), Life: update.GetLife(),
	}, nil
}

// DecodeDesired returns the content of a message of a recording; nil if this version knows none in it.
func DecodeDesired(key string, m *configv1.WatchPodUpdatesResponse) (*loop.Desired, error) {
	desired, err := decode(m)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	return desired, nil
}

// hasContent reports whether a frame comes with content. Content that this version does not find is of a later one.
func hasContent(frame *streamv1.Frame) bool {
	kind := frame.GetKind()
	return (kind == streamv1.Kind_KIND_SNAPSHOT || kind == streamv1.Kind_KIND_DELTA) && !frame.GetRemoved()
}

// skipped returns the frame of content that only a later version knows. Without a kind it is counted as unknown, and
// not handled.
func skipped(frame *streamv1.Frame) *streamv1.Frame {
	return &streamv1.Frame{ResumeToken: frame.GetResumeToken()}
}
