package site

import (
	"context"

	"github.com/quartet-node/quartet/services/configmux/internal/apisource"
	"github.com/quartet-node/quartet/services/configmux/internal/mux"
	"github.com/quartet-node/quartet/services/configmux/internal/siteobjects"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

// Node is a node of a site.
type Node struct {
	name    string
	desired *mux.Mux
	// objects are the config maps, secrets, claims and services that its pods name.
	objects *siteobjects.Node
	// feed passes the pods of a shared request.
	feed *apisource.Feed
	// stands returns why the source of its pods stands still; nil if it does not.
	stands func() error
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

// Objects returns the config maps and secrets of the node.
func (n *Node) Objects() *siteobjects.Node { return n.objects }

// idle reports whether the node has no pod and nobody follows it.
func (n *Node) idle() bool { return n.desired.Idle() && n.objects.Subscribers() == 0 }

// Opening is closed when the streams of the node may begin.
func (n *Node) Opening() <-chan struct{} { return n.opened }

// end ends the node and its streams, and returns when its source has ended.
func (n *Node) end() {
	n.stop()
	<-n.ended
	n.desired.Close()
	n.objects.Close()
}

// using is a sink that has a node use the objects of pods before the pods are published.
type using struct {
	objects *siteobjects.Node
	sink    source.Sink
}

// Set implements source.Sink.
func (u using) Set(name string, reading source.Reading) {
	u.objects.Use(reading)
	u.sink.Set(name, reading)
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
		Server:     s.cfg.Server,
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
	objects := s.objects.NewNode()
	n := &Node{
		name: name, objects: objects, opened: make(chan struct{}), stop: stop, ended: make(chan struct{}),
		feed: pods.Feed(ctx), stands: pods.Stands,
		desired: mux.New(mux.Config{
			Sources: []source.Source{pods}, Health: nodeHealth{health: s.health, node: name}, Clock: s.cfg.Clock,
			Tracer: s.cfg.Tracer, Logger: logger, Metrics: s.cfg.Muxes, Counts: objects.Counts,
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
		_ = pods.Run(ctx, using{objects: objects, sink: opening}) // it never fails
	})
	if s.cfg.Nodes.All {
		s.running.Go(n.feed.Begun)
	}
	return n
}
