// Package server serves what the mux holds as quartet.config.v1. It decides nothing but the operation that a change is
// for one subscriber, which depends on what that subscriber has been sent.
package server

import (
	"context"

	"google.golang.org/grpc"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
	"github.com/quartet-node/quartet/services/configmux/internal/mux"
)

// Desired is what the server serves; *mux.Mux is one.
type Desired interface {
	// Stream has the pods by UID, and the sources.
	Stream() stream.Source[mux.Entry]
	// Pods returns all pods, sorted.
	Pods() []*configv1.PodUpdate
	// Sources returns all sources, sorted.
	Sources() []*configv1.Source
}

// Server implements the ConfigService. WatchObjects belongs to sources that this configmux does not have, and fails with
// UNIMPLEMENTED as its contract says.
type Server struct {
	configv1.UnimplementedConfigServiceServer
	desired Desired
	opening <-chan struct{}
	local   Local
}

// New returns a server that opens no stream before opening is closed. Where local is nil, ApplyPod and DeletePod fail with
// UNIMPLEMENTED.
func New(desired Desired, opening <-chan struct{}, local Local) *Server {
	return &Server{desired: desired, opening: opening, local: local}
}

// Register adds the service to a gRPC server.
func (s *Server) Register(r *grpc.Server) { configv1.RegisterConfigServiceServer(r, s) }

// WatchPodUpdates implements configv1.ConfigServiceServer.
func (s *Server) WatchPodUpdates(req *configv1.WatchPodUpdatesRequest, out grpc.ServerStreamingServer[configv1.WatchPodUpdatesResponse]) error {
	select {
	case <-s.opening:
	case <-out.Context().Done():
		return out.Context().Err()
	}
	w := watch{known: map[string]bool{}}
	return streamrpc.Serve(out.Context(), s.desired.Stream(), req.GetResumeToken(), func(f *streamv1.Frame, e mux.Entry) error {
		return out.Send(w.response(f, e))
	})
}

// ListPods implements configv1.ConfigServiceServer.
func (s *Server) ListPods(context.Context, *configv1.ListPodsRequest) (*configv1.ListPodsResponse, error) {
	return &configv1.ListPodsResponse{Pods: s.desired.Pods()}, nil
}

// ListSources implements configv1.ConfigServiceServer.
func (s *Server) ListSources(context.Context, *configv1.ListSourcesRequest) (*configv1.ListSourcesResponse, error) {
	return &configv1.ListSourcesResponse{Sources: s.desired.Sources()}, nil
}

// watch is one subscriber. It remembers which pods the subscriber has, so that a change into which others were folded
// still says what it is to this one. Memory goes by the number of pods.
type watch struct {
	// resumed is true when the subscriber holds pods from an earlier subscription, which are not in known. A change then
	// says what it was to the source.
	resumed bool
	known   map[string]bool
}

// response puts a message into its envelope.
func (w *watch) response(f *streamv1.Frame, e mux.Entry) *configv1.WatchPodUpdatesResponse {
	out := &configv1.WatchPodUpdatesResponse{Frame: f}
	switch {
	case e.Source != nil:
		out.Payload = &configv1.WatchPodUpdatesResponse_Source{Source: e.Source}
	case e.Pod != nil:
		out.Payload = &configv1.WatchPodUpdatesResponse_Pod{Pod: mux.WithOp(e.Pod, w.op(f, e.Pod.GetOp()))}
	case f.GetKind() == streamv1.Kind_KIND_OPENED:
		w.resumed = f.GetOpening().GetStart() == streamv1.Start_START_RESUMED
	}
	return out
}

// op says what a change is to this subscriber.
func (w *watch) op(f *streamv1.Frame, op configv1.Op) configv1.Op {
	key := f.GetKey()
	if f.GetRemoved() {
		delete(w.known, key)
		return configv1.Op_OP_REMOVE
	}
	had := w.known[key]
	w.known[key] = true
	switch {
	case f.GetKind() == streamv1.Kind_KIND_SNAPSHOT, !had && !w.resumed:
		return configv1.Op_OP_ADD
	case had && op == configv1.Op_OP_ADD:
		return configv1.Op_OP_UPDATE
	default:
		return op
	}
}
