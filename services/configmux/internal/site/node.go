package site

import (
	"context"

	"github.com/quartet-node/quartet/services/configmux/internal/apisource"
	"github.com/quartet-node/quartet/services/configmux/internal/mux"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

// Node is a node of a site.
type Node struct {
	name    string
	desired *mux.Mux
	// feed passes the pods of a shared request.
	feed *apisource.Feed
	// opened is closed when its streams may begin.
	opened chan struct{}
	stop   context.CancelFunc
	// ended is closed when its source has ended.
	ended chan struct{}
}

// Name returns the name of the node.
func (n *Node) Name() string { return n.name }

// Desired returns the desired pods of the node.
func (n *Node) Desired() *mux.Mux { return n.desired }

// Opening is closed when the streams of the node may begin.
func (n *Node) Opening() <-chan struct{} { return n.opened }

// end ends the node and its streams, and returns when its source has ended.
func (n *Node) end() {
	n.stop()
	<-n.ended
	n.desired.Close()
}

// add adds a node; it returns nil if the site has ended. The caller holds mu.
func (s *Site) add(name string) *Node {
	if n := s.nodes[name]; n != nil {
		return n
	}
	if s.closed {
		return nil
	}
	ctx, stop := context.WithCancel(s.ctx)
	logger := detailed(s.cfg.Logger).With("node", name)
	pods := apisource.New(apisource.Config{
		Client:     s.cfg.Client,
		Node:       name,
		Allowed:    s.cfg.Allowed,
		Shared:     s.cfg.Nodes.All,
		Checkpoint: s.checkpoint(name),
		Health:     noHealth{},
		Requested:  s.uplink.requested,
		Clock:      s.cfg.Clock,
		Tracer:     s.cfg.Tracer,
		Logger:     logger,
		Metrics:    s.cfg.Requests,
	})
	n := &Node{
		name: name, opened: make(chan struct{}), stop: stop, ended: make(chan struct{}), feed: pods.Feed(ctx),
		desired: mux.New(mux.Config{
			Sources: []source.Source{pods}, Health: nodeHealth{health: s.health, node: name}, Clock: s.cfg.Clock,
			Tracer: s.cfg.Tracer, Logger: logger, Metrics: s.cfg.Muxes,
		}),
	}
	s.nodes[name] = n
	opening := mux.NewOpening([]source.Source{pods}, n.desired)
	s.running.Go(func() {
		opening.Wait(ctx, firstReading, s.cfg.Clock)
		close(n.opened)
	})
	s.running.Go(func() {
		defer close(n.ended)
		_ = pods.Run(ctx, opening) // it never fails
	})
	if s.cfg.Nodes.All {
		s.running.Go(n.feed.Begun)
	}
	return n
}
