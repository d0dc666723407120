// Package server serves what the mux holds as quartet.config.v1. It decides nothing.
package server

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
	"github.com/quartet-node/quartet/services/configmux/internal/mux"
)

// Desired provides the desired state; *mux.Mux implements it.
type Desired interface {
	// Stream returns the stream of pods and sources in a mode.
	Stream(configv1.Mode) stream.Source[mux.Entry]
	// States returns the stream without operations.
	States() stream.Source[mux.Entry]
	Lists
}

// Lists provides lists of the desired state.
type Lists interface {
	// Pods returns all pods, sorted.
	Pods() []*configv1.PodUpdate
	// Sources returns all sources, sorted.
	Sources() []*configv1.Source
}

// Config holds the parameters of a server.
type Config struct {
	// Desired provides the desired state.
	Desired Desired
	// Opening is closed when streams may begin.
	Opening <-chan struct{}
	// Local applies pods; if it is nil, ApplyPod and DeletePod fail with UNIMPLEMENTED.
	Local Local
	// Site provides the desired state of many nodes instead, and Desired and Opening are unused; nil for one node.
	Site Site
	// Objects provides config maps and secrets; if it is nil, all calls about those fail with UNIMPLEMENTED.
	Objects *Objects
}

// Server implements the ConfigService.
type Server struct {
	configv1.UnimplementedConfigServiceServer
	desired Desired
	opening <-chan struct{}
	site    Site
	local   Local
	objects *Objects
}

// New returns a server.
func New(cfg Config) *Server {
	return &Server{desired: cfg.Desired, opening: cfg.Opening, site: cfg.Site, local: cfg.Local, objects: cfg.Objects}
}

// Register adds the service to a gRPC server.
func (s *Server) Register(r *grpc.Server) { configv1.RegisterConfigServiceServer(r, s) }

// WatchPodUpdates implements configv1.ConfigServiceServer.
func (s *Server) WatchPodUpdates(
	req *configv1.WatchPodUpdatesRequest,
	out grpc.ServerStreamingServer[configv1.WatchPodUpdatesResponse],
) error {
	if _, known := configv1.Mode_name[int32(req.GetMode())]; !known {
		return status.Errorf(
			codes.InvalidArgument,
			"mode: %d is unknown to this configmux: request MODE_INCREMENTAL, or upgrade configmux",
			req.GetMode(),
		)
	}
	view, err := s.view(out.Context())
	if err != nil {
		return err
	}
	select {
	case <-view.Opening:
	case <-out.Context().Done():
		return out.Context().Err()
	}
	return streamrpc.Serve(
		out.Context(),
		source(view.Desired, req),
		req.GetResumeToken(),
		func(f *streamv1.Frame, e mux.Entry) error {
			return out.Send(response(f, e))
		},
	)
}

// source returns the stream for a request.
func source(desired Desired, req *configv1.WatchPodUpdatesRequest) stream.Source[mux.Entry] {
	mode := req.GetMode()
	incremental := mode == configv1.Mode_MODE_UNSPECIFIED || mode == configv1.Mode_MODE_INCREMENTAL
	if incremental && req.GetWithoutOperations() {
		return desired.States()
	}
	return desired.Stream(mode)
}

// ListPods implements configv1.ConfigServiceServer.
func (s *Server) ListPods(ctx context.Context, _ *configv1.ListPodsRequest) (*configv1.ListPodsResponse, error) {
	lists, err := s.lists(ctx)
	if err != nil {
		return nil, err
	}
	return &configv1.ListPodsResponse{Pods: lists.Pods()}, nil
}

// ListSources implements configv1.ConfigServiceServer.
func (s *Server) ListSources(
	ctx context.Context, _ *configv1.ListSourcesRequest,
) (*configv1.ListSourcesResponse, error) {
	lists, err := s.lists(ctx)
	if err != nil {
		return nil, err
	}
	return &configv1.ListSourcesResponse{Sources: lists.Sources()}, nil
}

// response returns the response of a message.
func response(f *streamv1.Frame, e mux.Entry) *configv1.WatchPodUpdatesResponse {
	out := &configv1.WatchPodUpdatesResponse{Frame: f}
	switch {
	case e.Source != nil:
		out.Payload = &configv1.WatchPodUpdatesResponse_Source{Source: e.Source}
	case e.Pod != nil:
		out.Payload = &configv1.WatchPodUpdatesResponse_Pod{Pod: e.Pod}
	case e.Set != nil:
		out.Payload = &configv1.WatchPodUpdatesResponse_Set{Set: e.Set}
	}
	return out
}
