// Package server serves the Node to the other processes and to the command line.
package server

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
	"github.com/quartet-node/quartet/services/nodestatus/internal/heartbeats"
	"github.com/quartet-node/quartet/services/nodestatus/internal/nodeobject"
)

// Server implements quartet.node.v1.NodeService. Create it with New.
type Server struct {
	nodev1.UnimplementedNodeServiceServer
	name   string
	nodes  *stream.Level[*nodev1.Node]
	events stream.Source[*enginev1.PodEvent]
	// heartbeats has the last heartbeat while somebody watches.
	heartbeats *stream.Level[*nodev1.Heartbeat]
	health     *rpc.Health
	overdue    func() error

	// mu serializes publications, which combine the last published Node with the last one of the API server.
	mu         sync.Mutex
	standalone bool
	cloud      bool
	state      nodeobject.State
	registered *v1.Node
}

// Config holds the parameters of a Server.
type Config struct {
	// NodeName is the node's name, the key of the stream.
	NodeName string
	// Standalone is true for a node without a cluster.
	Standalone bool
	// ExternalCloud is true if a cloud provider sets the addresses on the Node in the API server.
	ExternalCloud bool
	// Health returns the missing dependencies, and Overdue why the Node is out of date, or nil.
	Health  *rpc.Health
	Overdue func() error
	// Events are the events of the node.
	Events stream.Source[*enginev1.PodEvent]
	// Served counts the operations of the stream of the Node.
	Served *stream.ServedMetrics
}

// New returns a server without a Node.
func New(cfg Config) *Server {
	return &Server{
		name: cfg.NodeName, nodes: stream.NewLevel[*nodev1.Node](stream.Config{Metrics: cfg.Served}), events: cfg.Events,
		heartbeats: stream.NewLevel[*nodev1.Heartbeat](stream.Config{}),
		health:     cfg.Health, overdue: cfg.Overdue, standalone: cfg.Standalone, cloud: cfg.ExternalCloud,
	}
}

// Register adds the service to a gRPC server.
func (s *Server) Register(to *grpc.Server) { nodev1.RegisterNodeServiceServer(to, s) }

// Publish serves a computed Node. It fails only if the Node cannot be marshaled.
func (s *Server) Publish(state nodeobject.State) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = state
	return s.put()
}

// Registered sets the Node in the API server, nil if it does not exist. Parts that others may write are served as they
// are there: labels, annotations, taints, resources that others advertise, and the volumes in use and attached. It
// fails only if the Node cannot be marshaled.
func (s *Server) Registered(node *v1.Node) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.registered = node
	if s.state.Node == nil {
		return nil
	}
	return s.put()
}

// put serves the combined Node. The caller holds mu.
func (s *Server) put() error {
	whole := s.state.Node
	if s.registered != nil {
		whole = &v1.Node{
			TypeMeta:   whole.TypeMeta,
			ObjectMeta: s.registered.ObjectMeta,
			Spec:       s.registered.Spec,
			Status:     *whole.Status.DeepCopy(),
		}
		nodeobject.AddForeign(&whole.Status, s.registered.Status)
		whole.Status.VolumesInUse = s.registered.Status.VolumesInUse
		whole.Status.VolumesAttached = s.registered.Status.VolumesAttached
		if s.cloud {
			nodeobject.TakeAddresses(&whole.Status, s.registered.Status)
		}
	}
	data, err := whole.Marshal()
	if err != nil {
		return fmt.Errorf("marshaling the Node: %w", err)
	}
	// A standalone node is always synced.
	node := &nodev1.Node{
		Node:         data,
		Synced:       s.standalone || s.registered != nil,
		Standalone:   s.standalone,
		ShuttingDown: s.state.ShuttingDown,
	}
	for _, signal := range s.state.Eviction.Pressing {
		node.EvictionSignals = append(node.EvictionSignals, &nodev1.EvictionSignal{
			Signal:    signal.Name,
			Available: signal.Available,
			Threshold: signal.Threshold,
			Hard:      signal.Hard,
			ReadAt:    timestamppb.New(signal.At),
		})
	}
	s.nodes.Put(s.name, node)
	return nil
}

// Close ends all subscriptions.
func (s *Server) Close() {
	s.nodes.Close()
	s.heartbeats.Close()
}

// Observed serves what a Node was computed from, and the result, to those who watch heartbeats.
func (s *Server) Observed(input nodeobject.Input, output nodeobject.State) {
	if s.heartbeats.Subscribers() == 0 {
		return
	}
	heartbeat, err := heartbeats.Encode(input, output)
	if err != nil {
		return // only numbers that JSON does not have cannot be encoded, and there are none
	}
	s.heartbeats.Put(s.name, heartbeat)
}

// WatchHeartbeats implements NodeService.
func (s *Server) WatchHeartbeats(
	request *nodev1.WatchHeartbeatsRequest,
	to grpc.ServerStreamingServer[nodev1.WatchHeartbeatsResponse],
) error {
	return streamrpc.Serve(
		to.Context(),
		s.heartbeats,
		request.GetResumeToken(),
		func(frame *streamv1.Frame, heartbeat *nodev1.Heartbeat) error {
			return to.Send(&nodev1.WatchHeartbeatsResponse{Frame: frame, Heartbeat: heartbeat})
		},
	)
}

// GetNode implements NodeService.
func (s *Server) GetNode(context.Context, *nodev1.GetNodeRequest) (*nodev1.GetNodeResponse, error) {
	node, ok := s.nodes.Get(s.name)
	if !ok {
		reason := "the Node has not been computed yet: ask again in a moment"
		if err := s.overdue(); err != nil {
			reason = err.Error()
		}
		return nil, status.Error(codes.Unavailable, reason)
	}
	return &nodev1.GetNodeResponse{Node: node}, nil
}

// WatchNode implements NodeService.
func (s *Server) WatchNode(
	request *nodev1.WatchNodeRequest,
	to grpc.ServerStreamingServer[nodev1.WatchNodeResponse],
) error {
	return streamrpc.Serve(
		to.Context(),
		s.nodes,
		request.GetResumeToken(),
		func(frame *streamv1.Frame, node *nodev1.Node) error {
			return to.Send(&nodev1.WatchNodeResponse{Frame: frame, Node: node})
		},
	)
}

// WatchNodeEvents implements NodeService.
func (s *Server) WatchNodeEvents(
	request *nodev1.WatchNodeEventsRequest,
	to grpc.ServerStreamingServer[nodev1.WatchNodeEventsResponse],
) error {
	return streamrpc.Serve(
		to.Context(),
		s.events,
		request.GetResumeToken(),
		func(frame *streamv1.Frame, event *enginev1.PodEvent) error {
			return to.Send(&nodev1.WatchNodeEventsResponse{Frame: frame, Event: event})
		},
	)
}

// GetHealth implements NodeService.
func (s *Server) GetHealth(context.Context, *nodev1.GetHealthRequest) (*nodev1.GetHealthResponse, error) {
	response := &nodev1.GetHealthResponse{Healthy: true, Reasons: s.health.Waiting()}
	if err := s.overdue(); err != nil {
		response.Healthy = false
		response.Reasons = append([]string{err.Error()}, response.Reasons...)
	}
	return response, nil
}
