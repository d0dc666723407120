package clients

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
)

// Pods returns the stream of pods of another syncloop. Subscribing waits for one that is away.
func Pods(client enginev1.EngineServiceClient) stream.Source[*enginev1.Pod] {
	return streamrpc.NewSource(func(ctx context.Context, token []byte) (streamrpc.Receive[*enginev1.Pod], error) {
		watch, err := client.WatchPods(ctx, &enginev1.WatchPodsRequest{ResumeToken: token}, grpc.WaitForReady(true))
		if err != nil {
			return nil, fmt.Errorf("watch syncloop's pods: %w", err)
		}
		return func() (*streamv1.Frame, *enginev1.Pod, error) {
			m, err := watch.Recv()
			return m.GetFrame(), m.GetPod(), err
		}, nil
	})
}

// PodEvents returns the stream of events of another syncloop. Subscribing waits for one that is away.
func PodEvents(client enginev1.EngineServiceClient) stream.Source[*enginev1.PodEvent] {
	return streamrpc.NewSource(func(ctx context.Context, token []byte) (streamrpc.Receive[*enginev1.PodEvent], error) {
		request := &enginev1.WatchPodEventsRequest{ResumeToken: token}
		watch, err := client.WatchPodEvents(ctx, request, grpc.WaitForReady(true))
		if err != nil {
			return nil, fmt.Errorf("watch syncloop's events: %w", err)
		}
		return func() (*streamv1.Frame, *enginev1.PodEvent, error) {
			m, err := watch.Recv()
			return m.GetFrame(), m.GetEvent(), err
		}, nil
	})
}
