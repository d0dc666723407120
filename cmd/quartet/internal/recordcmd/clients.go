package recordcmd

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/noderecording"
	"github.com/quartet-node/quartet/internal/nodewatch"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
)

// clients are the connections to the four services.
type clients struct {
	configmux, pleg, syncloop, nodestatus *grpc.ClientConn
}

func (c *clients) set(service layout.Service, conn *grpc.ClientConn) {
	switch service {
	case layout.ConfigMux:
		c.configmux = conn
	case layout.PLEG:
		c.pleg = conn
	case layout.SyncLoop:
		c.syncloop = conn
	case layout.NodeStatus:
		c.nodestatus = conn
	}
}

func (c *clients) desired() stream.Source[*configv1.WatchPodUpdatesResponse] {
	return sourceOf(func(ctx context.Context, token []byte) (receiver[*configv1.WatchPodUpdatesResponse], error) {
		return configv1.NewConfigServiceClient(c.configmux).WatchPodUpdates(ctx,
			&configv1.WatchPodUpdatesRequest{ResumeToken: token}, grpc.WaitForReady(true))
	}, func(m *configv1.WatchPodUpdatesResponse) *configv1.WatchPodUpdatesResponse { return m })
}

func (c *clients) events() stream.Source[*lifecyclev1.Event] {
	return sourceOf(func(ctx context.Context, token []byte) (receiver[*lifecyclev1.WatchEventsResponse], error) {
		return lifecyclev1.NewLifecycleServiceClient(c.pleg).WatchEvents(ctx,
			&lifecyclev1.WatchEventsRequest{ResumeToken: token}, grpc.WaitForReady(true))
	}, (*lifecyclev1.WatchEventsResponse).GetEvent)
}

func (c *clients) nodes() stream.Source[*nodev1.Node] {
	return nodewatch.Source(nodev1.NewNodeServiceClient(c.nodestatus))
}

func (c *clients) heartbeats() stream.Source[*nodev1.Heartbeat] {
	return sourceOf(func(ctx context.Context, token []byte) (receiver[*nodev1.WatchHeartbeatsResponse], error) {
		return nodev1.NewNodeServiceClient(c.nodestatus).WatchHeartbeats(ctx,
			&nodev1.WatchHeartbeatsRequest{ResumeToken: token}, grpc.WaitForReady(true))
	}, (*nodev1.WatchHeartbeatsResponse).GetHeartbeat)
}

func (c *clients) pods() stream.Source[*enginev1.Pod] {
	return sourceOf(func(ctx context.Context, token []byte) (receiver[*enginev1.WatchPodsResponse], error) {
		return enginev1.NewEngineServiceClient(c.syncloop).WatchPods(ctx,
			&enginev1.WatchPodsRequest{ResumeToken: token}, grpc.WaitForReady(true))
	}, (*enginev1.WatchPodsResponse).GetPod)
}

func (c *clients) podEvents() stream.Source[*enginev1.PodEvent] {
	return sourceOf(func(ctx context.Context, token []byte) (receiver[*enginev1.WatchPodEventsResponse], error) {
		return enginev1.NewEngineServiceClient(c.syncloop).WatchPodEvents(ctx,
			&enginev1.WatchPodEventsRequest{ResumeToken: token}, grpc.WaitForReady(true))
	}, (*enginev1.WatchPodEventsResponse).GetEvent)
}

// receiver is a stream of messages with frames.
type receiver[M any] interface{ Recv() (M, error) }

// sourceOf returns the stream of the values of a watch.
func sourceOf[M interface{ GetFrame() *streamv1.Frame }, V any](
	open func(ctx context.Context, token []byte) (receiver[M], error), value func(M) V,
) stream.Source[V] {
	return streamrpc.NewSource(func(ctx context.Context, token []byte) (streamrpc.Receive[V], error) {
		watch, err := open(ctx, token)
		if err != nil {
			return nil, err
		}
		return func() (*streamv1.Frame, V, error) {
			m, err := watch.Recv()
			if err != nil {
				var none V
				return nil, none, err
			}
			return m.GetFrame(), value(m), nil
		}, nil
	})
}

// health records the health of pleg when it changes.
func (o *recorder) health(ctx context.Context, c clients) error {
	ticker := time.NewTicker(healthPeriod)
	defer ticker.Stop()
	var last *lifecyclev1.GetHealthResponse
	for {
		now, err := lifecyclev1.NewLifecycleServiceClient(c.pleg).GetHealth(ctx, &lifecyclev1.GetHealthRequest{})
		if err != nil {
			now = &lifecyclev1.GetHealthResponse{Reasons: []string{"it does not answer"}}
		}
		now = &lifecyclev1.GetHealthResponse{
			Healthy: now.GetHealthy(), Reasons: now.GetReasons(), Runtime: now.GetRuntime(),
		}
		if ctx.Err() == nil && (last == nil || !proto.Equal(last, now)) {
			if err := o.write(noderecording.Health, noderecording.Put, "", now); err != nil {
				return err
			}
			last = now
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}
