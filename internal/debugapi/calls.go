package debugapi

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	debugv1 "github.com/quartet-node/quartet/gen/quartet/debug/v1"
)

// WatchRuntimeCalls implements DebugServiceServer.
func (s *Server) WatchRuntimeCalls(
	_ *debugv1.WatchRuntimeCallsRequest, stream grpc.ServerStreamingServer[debugv1.WatchRuntimeCallsResponse],
) error {
	if s.cfg.RuntimeCalls == nil {
		return status.Error(codes.FailedPrecondition, "this process calls no container runtime: watch pleg or syncloop")
	}
	watch := s.cfg.RuntimeCalls.Watch()
	defer watch.Close()
	if err := stream.Send(&debugv1.WatchRuntimeCallsResponse{}); err != nil {
		return err
	}
	for {
		call, dropped, err := watch.Next(stream.Context())
		if err != nil {
			return status.FromContextError(err).Err()
		}
		if err := stream.Send(&debugv1.WatchRuntimeCallsResponse{Call: call, Dropped: dropped}); err != nil {
			return err
		}
	}
}
