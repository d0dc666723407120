package engineapi

import (
	"context"

	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
)

// Shutdown ends pods before the machine goes down; *shutdown.Ender does it.
type Shutdown interface {
	// End ends pods, each with its grace period in seconds, and returns when nothing of them is left. It fails with
	// podstore.NotReadyError and with ctx's error.
	End(ctx context.Context, grace map[types.UID]int64) error
	// AwaitStatuses returns when the API server has the status of every pod. It fails with ctx's error.
	AwaitStatuses(ctx context.Context) error
}

// ShutDownPods implements EngineService.
func (s *Server) ShutDownPods(ctx context.Context, req *enginev1.ShutDownPodsRequest) (*enginev1.ShutDownPodsResponse, error) {
	grace := make(map[types.UID]int64, len(req.GetPods()))
	for _, pod := range req.GetPods() {
		grace[types.UID(pod.GetPodUid())] = max(pod.GetGracePeriodSeconds(), 1)
	}
	if err := s.cfg.Shutdown.End(ctx, grace); err != nil {
		return nil, waitedFor(ctx, err)
	}
	return &enginev1.ShutDownPodsResponse{}, nil
}

// AwaitStatuses implements EngineService.
func (s *Server) AwaitStatuses(ctx context.Context, _ *enginev1.AwaitStatusesRequest) (*enginev1.AwaitStatusesResponse, error) {
	if err := s.cfg.Shutdown.AwaitStatuses(ctx); err != nil {
		return nil, waitedFor(ctx, err)
	}
	return &enginev1.AwaitStatusesResponse{}, nil
}

// waitedFor gives an error its code, also that of a caller who does not wait any longer.
func waitedFor(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	return toStatus(err)
}
