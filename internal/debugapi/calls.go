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
	if err := s.sendRecord(stream); err != nil {
		return err
	}
	if err := stream.Send(&debugv1.WatchRuntimeCallsResponse{}); err != nil {
		return err
	}
	for {
		next, err := watch.Next(stream.Context())
		if err != nil {
			return status.FromContextError(err).Err()
		}
		if err := stream.Send(next); err != nil {
			return err
		}
	}
}

// sendRecord sends what pleg knows as its calls begin.
func (s *Server) sendRecord(stream grpc.ServerStreamingServer[debugv1.WatchRuntimeCallsResponse]) error {
	if s.cfg.PLEGRecord == nil {
		return nil
	}
	all, err := s.cfg.PLEGRecord(stream.Context())
	if err != nil {
		return status.FromContextError(err).Err()
	}
	for _, one := range all {
		if err := stream.Send(&debugv1.WatchRuntimeCallsResponse{PlegRecord: one}); err != nil {
			return err
		}
	}
	return nil
}
