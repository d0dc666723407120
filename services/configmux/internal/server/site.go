package server

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
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
	// Objects are the config maps, secrets, claims and services of a node of a site; else nil.
	Objects Held
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

// held returns the objects that the peer of a call may see. A node of a site may have the values of its own secrets.
func (s *Server) held(ctx context.Context, kind apiobject.Kind, values bool) (Held, <-chan struct{}, error) {
	if s.site != nil {
		view, err := s.view(ctx)
		return view.Objects, view.Opening, err
	}
	if s.objects == nil {
		return nil, nil, noObjects()
	}
	if values && (kind == "" || kind == apiobject.Secret) && !s.objects.mayHaveSecrets(ctx) {
		return nil, nil, status.Error(
			codes.PermissionDenied,
			"only root, the user of configmux, the users of --secret-uids, and by the network the names of --secret-names may read "+
				"secrets: watch as one of them, or request another kind",
		)
	}
	return s.objects.Held, s.opening, nil
}

// lists returns what the peer of a call may list. A peer that is no node has the role observe, and sees all nodes.
func (s *Server) lists(ctx context.Context) (Lists, error) {
	if s.site != nil && rpc.PeerNode(ctx) == "" {
		return s.site, nil
	}
	view, err := s.view(ctx)
	return view.Desired, err
}
