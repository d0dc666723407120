// Package server serves quartet.lifecycle.v1 from the record of package relist and the status of package runtimestate.
// It is the only place in pleg that converts errors to gRPC codes.
package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/utils/clock"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
	"github.com/quartet-node/quartet/services/pleg/internal/relist"
	"github.com/quartet-node/quartet/services/pleg/internal/runtimestate"
)

const (
	// genericLimit is the time without a finished relist after which pleg is unhealthy if it relists every second, and
	// eventedLimit if it does every 300 s.
	genericLimit = 3 * time.Minute
	eventedLimit = 10 * time.Minute
)

// Server implements LifecycleService.
type Server struct {
	lifecyclev1.UnimplementedLifecycleServiceServer

	relister *relist.Relister
	events   *stream.Edge[*lifecyclev1.Event]
	runtime  *runtimestate.Watcher
	clock    clock.Clock
	tokens   tokens
}

// New returns a server. bootTime is the clock of the observations.
func New(
	relister *relist.Relister,
	events *stream.Edge[*lifecyclev1.Event],
	runtime *runtimestate.Watcher,
	clock clock.Clock,
	bootTime func() time.Duration,
) *Server {
	return &Server{
		relister: relister, events: events, runtime: runtime, clock: clock, tokens: newTokens(bootTime),
	}
}

// Register adds the service to a gRPC server.
func (s *Server) Register(server *grpc.Server) { lifecyclev1.RegisterLifecycleServiceServer(server, s) }

// WatchEvents implements the RPC. It sends nothing until the first relist has finished, because an earlier snapshot
// would report that there are no pods.
func (s *Server) WatchEvents(
	req *lifecyclev1.WatchEventsRequest,
	out grpc.ServerStreamingServer[lifecyclev1.WatchEventsResponse],
) error {
	select {
	case <-s.relister.Synced():
	case <-out.Context().Done():
		return status.FromContextError(out.Context().Err()).Err()
	}
	return streamrpc.Serve(
		out.Context(),
		s.events,
		req.GetResumeToken(),
		func(frame *streamv1.Frame, event *lifecyclev1.Event) error {
			return out.Send(&lifecyclev1.WatchEventsResponse{
				Frame: frame, Event: event, Token: s.tokens.at(s.tokens.now()),
			})
		},
	)
}

// GetPodStatus implements the RPC.
func (s *Server) GetPodStatus(
	ctx context.Context,
	req *lifecyclev1.GetPodStatusRequest,
) (*lifecyclev1.GetPodStatusResponse, error) {
	arrived := s.tokens.now()
	if req.GetUid() == "" {
		return nil, status.Error(codes.InvalidArgument, "uid is empty: name the pod")
	}
	newerThan, err := s.tokens.newerThan(req, arrived)
	if err != nil {
		return nil, err
	}
	pod, err := s.relister.Status(ctx, req.GetUid(), newerThan)
	if err != nil {
		return nil, toStatus(err)
	}
	return &lifecyclev1.GetPodStatusResponse{Status: pod, Token: s.tokens.at(arrived)}, nil
}

// ListPodStatuses implements the RPC.
func (s *Server) ListPodStatuses(
	context.Context,
	*lifecyclev1.ListPodStatusesRequest,
) (*lifecyclev1.ListPodStatusesResponse, error) {
	arrived := s.tokens.now()
	pods, err := s.relister.List()
	if err != nil {
		return nil, toStatus(err)
	}
	return &lifecyclev1.ListPodStatusesResponse{Statuses: pods, Token: s.tokens.at(arrived)}, nil
}

// RequestRelist implements the RPC.
func (s *Server) RequestRelist(
	ctx context.Context,
	req *lifecyclev1.RequestRelistRequest,
) (*lifecyclev1.RequestRelistResponse, error) {
	newerThan, err := bootTime(req.GetNewerThanBoottimeNs())
	if err != nil {
		return nil, err
	}
	at, err := s.relister.Request(ctx, newerThan)
	if err != nil {
		return nil, toStatus(err)
	}
	return &lifecyclev1.RequestRelistResponse{RelistedAt: timestamppb.New(at)}, nil
}

// GetHealth implements the RPC.
func (s *Server) GetHealth(context.Context, *lifecyclev1.GetHealthRequest) (*lifecyclev1.GetHealthResponse, error) {
	progress := s.relister.Progress()
	runtime, reason := s.runtime.State()
	resp := &lifecyclev1.GetHealthResponse{Mode: lifecyclev1.RelistMode_RELIST_MODE_GENERIC, Runtime: runtime}
	limit := genericLimit
	if progress.Evented {
		resp.Mode, limit = lifecyclev1.RelistMode_RELIST_MODE_EVENTED, eventedLimit
	}
	if reason != "" {
		resp.Reasons = append(resp.Reasons, reason)
	}
	if progress.FinishedAt.IsZero() {
		resp.Reasons = append(resp.Reasons, "no relist has finished yet"+because(progress.Err))
	} else {
		resp.LastRelistAt = timestamppb.New(progress.FinishedAt)
		if s.clock.Since(progress.Since) > limit {
			resp.RelistOverdue = true
			resp.Reasons = append(
				resp.Reasons,
				fmt.Sprintf("no relist has finished for %v, the limit is %v%s: check the container runtime's log",
					s.clock.Since(progress.FinishedAt).Round(time.Second), limit, because(progress.Err)),
			)
		}
	}
	resp.Healthy = len(resp.Reasons) == 0
	return resp, nil
}

func because(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}

func toStatus(err error) error {
	switch {
	case errors.Is(err, relist.ErrFuture):
		return status.Error(codes.InvalidArgument, err.Error())
	case errors.Is(err, relist.ErrNotSynced), errors.Is(err, relist.ErrStopped):
		return status.Error(codes.Unavailable, err.Error())
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, err.Error())
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, err.Error())
	}
	return status.Error(codes.Unavailable, err.Error())
}
