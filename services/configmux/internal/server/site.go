package server

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quartet-node/quartet/internal/rpc"
)

// Site provides the desired state of the nodes of a site.
type Site interface {
	// Node returns what a node may see. Its error has the status of the call.
	Node(ctx context.Context, name string) (View, error)
	// Lists are those of all nodes, for peers that are no nodes.
	Lists
}

// View is what one peer may see.
type View struct {
	Desired Desired
	// Opening is closed when streams may begin.
	Opening <-chan struct{}
}

// view returns what the peer of a call may see: in a site, the state of the node whose certificate the peer has shown.
// Nothing in a request selects a node, so a node cannot name another.
func (s *Server) view(ctx context.Context) (View, error) {
	if s.site == nil {
		return View{Desired: s.desired, Opening: s.opening}, nil
	}
	if node := rpc.PeerNode(ctx); node != "" {
		return s.site.Node(ctx, node)
	}
	return View{}, status.Error(
		codes.FailedPrecondition,
		"this configmux serves the nodes of a site, and this peer is none: connect to --tls-listen with the certificate of a "+
			"node, whose common name is system:node:NAME and whose organization is system:nodes",
	)
}

// lists returns what the peer of a call may list. A peer that is no node has the role observe, and sees all nodes.
func (s *Server) lists(ctx context.Context) (Lists, error) {
	if s.site != nil && rpc.PeerNode(ctx) == "" {
		return s.site, nil
	}
	view, err := s.view(ctx)
	return view.Desired, err
}
