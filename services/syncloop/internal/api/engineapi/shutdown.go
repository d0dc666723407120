package engineapi

import (
	"context"

	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
)

// Shutdown ends pods before the machine shuts down; it is implemented by *shutdown.Ender.
type Shutdown interface {
	// End ends pods, each with its grace period in seconds, and returns when nothing of them is left. It returns
	// podstore.NotReadyError and the error of ctx.
	End(ctx context.Context, grace map[types.UID]int64) error
	// AwaitStatuses returns when the API server has the final status of every pod. It returns the error of ctx.
	AwaitStatuses(ctx context.Context) error
}

// ShutDownPods implements EngineService.
func (s *Server) ShutDownPods(
	ctx context.Context, req *enginev1.ShutDownPodsRequest,
) (*enginev1.ShutDownPodsResponse, error) {
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
func (s *Server) AwaitStatuses(
	ctx context.Context, _ *enginev1.AwaitStatusesRequest,
) (*enginev1.AwaitStatusesResponse, error) {
	if err := s.cfg.Shutdown.AwaitStatuses(ctx); err != nil {
		return nil, waitedFor(ctx, err)
	}
	return &enginev1.AwaitStatusesResponse{}, nil
}

// waitedFor returns an error with its gRPC code, including the error of a canceled or expired context.
func waitedFor(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	return toStatus(err)
}
