// Package apisource is the source "api": the pods that an API server has bound to this node.
//
// A reflector of client-go lists them and then watches, begun once nodestatus says that the API server has the Node. What it
// brings goes through one goroutine, which alone knows the pods, decides, and gives readings to a source.Sink:
//
//	nodestatus: synced ──► reflector ──► list: the full set; watch: one pod ──┐
//	                          └──► a request that failed, or works again ─────┼──► Run ──► sink
//	checkpoint ──► no list for a second, or one that failed: restore, once ───┘     └────► keeper ──► checkpoint
//
// Nothing is removed because the API server is away, does not let this node in or cannot be understood: only a list or a
// watch that says so removes a pod. A pod is taken as the API server has it, which has validated it; only what it says in
// the agent's own name is left out.
package apisource

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/reflector"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/configmux/internal/privilege"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

// Name is the name of this source.
const Name = podset.SourceAPI

// How this source notices changes, for people.
const (
	modeWaiting  = "waiting for nodestatus"
	modeWatch    = "watch"
	modeRetrying = "trying again"
)

// restoreAfter is how long the first list may take before the pods of the checkpoint are given. A list takes milliseconds
// when the API server is there; and who subscribes at the start waits for 1 s to see what is desired.
const restoreAfter = 700 * time.Millisecond

// requestLimit is how long a list may take, and the beginning of a watch. The API server itself gives up after a minute; a
// healthy one needs milliseconds for the pods of a node.
const requestLimit = 30 * time.Second

// Config is what an API source needs. All fields but Allowed must be set.
type Config struct {
	// Client reaches the core API; what requests are encoded in, and how many there may be, is the client's.
	Client rest.Interface
	// Node is the node's name.
	Node string
	// Allowed says what this source's pods may have of the machine.
	Allowed privilege.Allowed
	// Nodes is nodestatus' stream of the Node, see NodeStatus.
	Nodes stream.Source[*nodev1.Node]
	// Checkpoint is the path of the file that the pods are kept in. Its directory must exist.
	Checkpoint string
	// Health is told of the wait for nodestatus.
	Health  *rpc.Health
	Clock   clock.WithTicker
	Tracer  trace.Tracer
	Logger  *slog.Logger
	Metrics *Metrics
}

// Source is the API source. It implements source.Source.
type Source struct {
	cfg    Config
	target string
	// limit is requestLimit, but in tests.
	limit time.Duration
	// news is what the reflector tells Run. It holds nothing: a reflector that is faster than the sink waits.
	news chan news

	// What follows is Run's alone.

	sink   source.Sink
	keeper *keeper
	pods   *pods
	mode   string
	// restored are the pods of the checkpoint, until they were given or are not needed any more.
	restored []*v1.Pod
	// listed is true from the first list on, and listedAt when the last one came.
	listed   bool
	listedAt time.Time
	// failures has, by verb, why the last request of it failed; nil when it did not.
	failures map[reflector.Verb]*source.Error
	// damaged says what was wrong with the checkpoint at the start, unsaved why it cannot be written; nil when all is well.
	damaged, unsaved *source.Error
}

// New returns the API source. It does nothing before Run.
func New(cfg Config) *Source {
	target := shown(cfg.Client.Get().URL())
	return &Source{
		cfg: cfg, target: target, limit: requestLimit, news: make(chan news),
		pods: newPods(cfg.Node, target, cfg.Allowed), mode: modeWaiting, failures: map[reflector.Verb]*source.Error{},
	}
}

// shown is the address of an API server, from that of its core API: without what may be secret in a URL.
func shown(core *url.URL) string {
	prefix := strings.TrimSuffix(strings.TrimSuffix(core.Path, "/"), "/api/v1")
	return (&url.URL{Scheme: core.Scheme, Host: core.Host, Path: prefix}).String()
}

// Name implements source.Source.
func (s *Source) Name() string { return Name }

// Target implements source.Source. It is the URL of the API server.
func (s *Source) Target() string { return s.target }

// Run implements source.Source. It never fails: whatever is wrong with the API server or the checkpoint is reported through
// the sink, and may be mended at any time.
func (s *Source) Run(ctx context.Context, sink source.Sink) error {
	s.sink = sink
	s.openCheckpoint()
	defer s.keeper.start()()
	s.sink.Set(Name, s.failed())

	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.follow(ctx)
	}()
	defer func() { <-ended }()
	patience := s.cfg.Clock.NewTimer(restoreAfter)
	defer patience.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case n := <-s.news:
			s.take(ctx, n)
		case <-patience.C():
			s.restore(ctx)
		case saving := <-s.keeper.outcome:
			s.saved(saving.err)
		}
	}
}

// follow waits until the Node is known to the API server, and reflects its pods until ctx ends.
func (s *Source) follow(ctx context.Context) {
	if !awaitNode(ctx, s.cfg) {
		return
	}
	s.tell(ctx, news{kind: begun})
	s.reflect(ctx)
}

// tell gives a piece of news to Run, which is there until ctx ends.
func (s *Source) tell(ctx context.Context, n news) {
	select {
	case s.news <- n:
	case <-ctx.Done():
	}
}

// take takes in a piece of news.
func (s *Source) take(ctx context.Context, n news) {
	switch n.kind {
	case begun:
		s.mode = modeWatch
		s.sink.Set(Name, s.failed())
	case answered:
		s.answered(n.verb)
	case refused:
		s.refused(ctx, n)
	case listed:
		first := !s.listed
		s.listed, s.listedAt, s.restored, s.mode = true, s.cfg.Clock.Now(), nil, modeWatch
		delete(s.failures, reflector.VerbList)
		change := s.pods.replace(n.pods, s.cfg.Clock.Now())
		// What the checkpoint has may not have been given.
		change.lasting = change.lasting || first
		s.keep(change)
		s.sink.Set(Name, s.reading(podset.None, s.pods.all(), s.cause(ctx, n, change)))
	case changed:
		change := s.pods.put(n.pods[0], s.cfg.Clock.Now())
		s.keep(change)
		s.give(ctx, n, change)
	case removed:
		change := s.pods.remove(n.pods[0])
		s.keep(change)
		s.give(ctx, n, change)
	}
}

// give gives what has become of one pod. One that was left out is no change, but an error that came or went.
func (s *Source) give(ctx context.Context, n news, c change) {
	if c.op == podset.None {
		s.sink.Set(Name, s.corrected())
		return
	}
	s.sink.Set(Name, s.reading(c.op, []*v1.Pod{c.pod}, s.cause(ctx, n, c)))
}

// keep has the pods written if another start would not find them as they are.
func (s *Source) keep(c change) {
	if c.lasting {
		s.keeper.keep(maps.Clone(s.pods.held))
	}
}

// answered notes that requests of a verb work. If they did not before, that is told.
func (s *Source) answered(v reflector.Verb) {
	s.mode = modeWatch
	if s.failures[v] == nil {
		return
	}
	delete(s.failures, v)
	s.sink.Set(Name, s.corrected())
}

// refused notes that a request failed. Without a list yet the pods of the checkpoint are run meanwhile.
func (s *Source) refused(ctx context.Context, n news) {
	if !s.listed {
		s.restore(ctx)
	}
	now, text := s.cfg.Clock.Now(), reason(n.err)
	kept := "its pods run on as they were last"
	switch {
	case s.listed:
	case len(s.pods.held) > 0:
		kept = "the pods of the checkpoint run meanwhile"
	default:
		kept = "none of its pods is known yet, and what runs is left alone"
	}
	failure := &source.Error{
		Path: s.target, SeenAt: now, Message: fmt.Sprintf("cannot %s pods: %s; %s", n.verb, text, kept),
	}
	last := s.failures[n.verb]
	s.failures[n.verb], s.mode = failure, modeRetrying
	reading := s.failed()
	if last == nil || last.Message != failure.Message {
		reading.Causes = map[string]context.Context{s.target: s.trace(ctx, n.began, telemetry.AttrURL.String(s.target), text)}
	}
	s.sink.Set(Name, reading)
}

// restore gives the pods of the checkpoint, unless there was a list, or they were given before.
func (s *Source) restore(ctx context.Context) {
	if len(s.restored) == 0 {
		return
	}
	began := s.cfg.Clock.Now()
	s.pods.replace(s.restored, began)
	s.restored = nil
	s.cfg.Logger.Info("there is no list of the API server's pods yet; those that were known last are run meanwhile",
		telemetry.KeySource, Name, telemetry.KeyFile, s.cfg.Checkpoint, "pods", len(s.pods.held))
	causes := map[string]context.Context{
		s.cfg.Checkpoint: s.trace(ctx, began, telemetry.AttrFile.String(s.cfg.Checkpoint), ""),
	}
	s.sink.Set(Name, s.reading(podset.Restore, s.pods.all(), causes))
}

// saved takes in what came of writing the checkpoint.
func (s *Source) saved(err error) {
	if err != nil {
		s.unsaved = &source.Error{
			Path: s.cfg.Checkpoint, SeenAt: s.cfg.Clock.Now(),
			Message: fmt.Sprintf("cannot keep the pods of the API server: %v; a node that starts without its API server runs those that were kept last: mend the disk", err),
		}
		s.sink.Set(Name, s.corrected())
		return
	}
	if s.unsaved != nil || s.damaged != nil {
		s.unsaved, s.damaged = nil, nil
		s.sink.Set(Name, s.corrected())
	}
}
