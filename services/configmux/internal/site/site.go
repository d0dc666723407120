// Package site has the desired pods of many nodes from one API server, for a configmux that serves a site. Each node
// has what the configmux of one node has: a source "api" with its checkpoint, and a mux, whose streams its syncloop
// follows.
// They share the client of the API server and the requests:
//
//	API server ──► feed: one list and watch for all nodes ──┬──► source ──► mux ──► syncloop of a
//	                                                        └──► source ──► mux ──► syncloop of b
//	API server ──► members: the nodes with labels ──► each source lists and watches its own pods
//
// A node costs memory for its pods. Its streams are level-triggered, so one that is slow costs nothing more, and delays
// neither the feed nor another node.
package site

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/privilege"
	"github.com/quartet-node/quartet/services/configmux/internal/apisource"
	"github.com/quartet-node/quartet/services/configmux/internal/mux"
	"github.com/quartet-node/quartet/services/configmux/internal/sealing"
	"github.com/quartet-node/quartet/services/configmux/internal/siteobjects"
)

const (
	// firstReading bounds the delay of a node's subscribers at the start, as for the configmux of one node.
	firstReading = time.Second
	// dropEvery is how often nodes without pods and subscribers are dropped.
	dropEvery = 10 * time.Minute
)

// Config holds the parameters of a site. All fields except Allowed are required.
type Config struct {
	// Nodes are the nodes of the site.
	Nodes nodeconfig.Nodes
	// Client is the client for core/v1.
	Client rest.Interface
	// Server returns the address of the API server for people.
	Server func() string
	// Allowed lists the host privileges of pods.
	Allowed privilege.Allowed
	// Dir is the directory of the nodes' checkpoints, which Run creates.
	Dir string
	// Health reports the nodes whose pods have not been listed.
	Health apisource.Health
	Clock  clock.WithTicker
	Tracer trace.Tracer
	Logger *slog.Logger
	// Seals encrypts secrets in the checkpoint.
	Seals *sealing.Keyring
	// Requests and Muxes are the metrics of all nodes together.
	Requests *apisource.Metrics
	Muxes    *mux.Metrics
}

// Site has the nodes of a site. Its methods may be called from any goroutine.
type Site struct {
	cfg    Config
	feed   *feed
	uplink *uplink
	health *health
	// objects are the config maps, secrets, claims and services of all nodes.
	objects *siteobjects.Objects
	// begun is closed when the nodes that are known at the start are there.
	begun chan struct{}

	mu    sync.Mutex
	nodes map[string]*Node
	// ctx is that of Run; nil before.
	ctx     context.Context //nolint:containedctx // nodes come and go while Run runs
	running sync.WaitGroup
	// membersKnown is true when all nodes of a selector have been listed.
	membersKnown bool
	// closed is true when no node is added any more.
	closed bool
}

// The errors of Node.
var (
	// ErrForeign is returned for a node that is not of the site.
	ErrForeign = errors.New("this configmux does not serve the node")
	// ErrUnknown is returned while it is not known whether a node is of the site.
	ErrUnknown = errors.New("the nodes of the site are not known yet")
)

// New returns a site without nodes. It does nothing before Run.
func New(cfg Config) *Site {
	s := &Site{
		cfg: cfg, begun: make(chan struct{}), nodes: map[string]*Node{},
		uplink: &uplink{logger: cfg.Logger, failures: map[string]string{}},
	}
	s.objects = siteobjects.New(siteobjects.Config{
		Client: cfg.Client, Checkpoint: filepath.Join(cfg.Dir, "objects"), Seals: cfg.Seals, Requested: s.uplink.report,
		Served: cfg.Muxes.Objects(), Clock: cfg.Clock, Logger: cfg.Logger,
	})
	s.health = newHealth(cfg.Health, cfg.Client, s.objects.Settle)
	s.feed = &feed{site: s}
	return s
}

// Run serves the nodes until ctx ends. It fails if the directory of checkpoints cannot be made or read.
func (s *Site) Run(ctx context.Context) error {
	saved, err := s.openDir()
	if err != nil {
		return err
	}
	s.objects.Load()
	group, ctx := errgroup.WithContext(ctx)
	s.mu.Lock()
	s.ctx = ctx
	for _, name := range append(saved, s.cfg.Nodes.Names...) {
		s.add(name)
	}
	s.mu.Unlock()
	if len(s.cfg.Nodes.Names) > 0 {
		s.health.complete()
	}
	close(s.begun)
	switch {
	case s.cfg.Nodes.All:
		group.Go(func() error {
			s.feed.run(ctx)
			return nil
		})
		group.Go(func() error {
			s.dropIdle(ctx)
			return nil
		})
	case s.cfg.Nodes.Selector != "":
		group.Go(func() error {
			s.followMembers(ctx)
			return nil
		})
	}
	group.Go(func() error {
		s.objects.Run(ctx)
		return nil
	})
	err = group.Wait()
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.running.Wait()
	return err
}

// Close ends all streams. Call it when no more are begun.
func (s *Site) Close() {
	for _, n := range s.all() {
		n.desired.Close()
		n.objects.End()
	}
}

// Node returns a node of the site. With all nodes, each that asks is one. It fails with ErrForeign, ErrUnknown, or the
// error of ctx.
func (s *Site) Node(ctx context.Context, name string) (*Node, error) {
	select {
	case <-s.begun:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if s.cfg.Nodes.All {
		if n := s.feed.connect(name); n != nil {
			return n, nil
		}
		return nil, fmt.Errorf("%w: this configmux is stopping", ErrUnknown)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[name]
	switch {
	case n != nil:
		return n, nil
	case s.cfg.Nodes.Selector != "" && !s.membersKnown:
		return nil, fmt.Errorf("%w: there is no list of the nodes with %s", ErrUnknown, s.cfg.Nodes.Selector)
	default:
		return nil, fmt.Errorf("%w %s: its --nodes are %s", ErrForeign, name, s.selection())
	}
}

// selection returns the nodes of the site for people.
func (s *Site) selection() string {
	if s.cfg.Nodes.Selector != "" {
		return "those with " + s.cfg.Nodes.Selector
	}
	return fmt.Sprintf("%d others", len(s.cfg.Nodes.Names))
}

// All returns the nodes, sorted by name.
func (s *Site) All() []*Node {
	all := s.all()
	slices.SortFunc(all, func(a, b *Node) int { return strings.Compare(a.name, b.name) })
	return all
}

func (s *Site) all() []*Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.nodes))
}

// get returns a node; nil if there is none.
func (s *Site) get(name string) *Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nodes[name]
}

// ensure returns a node, and whether it is new; nil if the site has ended.
func (s *Site) ensure(name string) (n *Node, added bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[name]; n != nil {
		return n, false
	}
	return s.add(name), true
}

// remove removes a node, with its checkpoint. Its streams end, and its syncloop keeps what it has.
func (s *Site) remove(name string) {
	if n := s.detach(name); n != nil {
		s.finish(n)
	}
}

// detach takes a node out of the site, and returns it; nil if there is none.
func (s *Site) detach(name string) *Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[name]
	delete(s.nodes, name)
	return n
}

// finish ends a node that was taken out, and removes its checkpoint, unless it is back.
func (s *Site) finish(n *Node) {
	n.end()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes[n.name] == nil {
		s.health.forget(n.name)
		s.removeCheckpoint(n.name)
	}
}

// dropIdle drops nodes without pods and subscribers from time to time. Those that have left the cluster are among them.
func (s *Site) dropIdle(ctx context.Context) {
	ticker := s.cfg.Clock.NewTicker(dropEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		s.feed.dropIdle()
	}
}
