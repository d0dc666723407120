// Package apisource is the source "api": the pods that an API server has bound to this node.
//
// A reflector of client-go lists and watches them. It starts when nodestatus reports that the API server has the Node.
// Its results go through one goroutine, which alone holds the pods, decides, and passes readings to a source.Sink:
//
//	nodestatus: synced ──► reflector ──► list: the full set; watch: one pod ──┐
//	                          └──► a request failed, or succeeds again ───────┼──► Run ──► sink
//	checkpoint ──► no list for a second, or a failed one: restore, once ──────┘     └────► keeper ──► checkpoint
//
// No pod is removed because the API server is unreachable, refuses this node or returns invalid data: only a list or a
// watch event removes a pod. The API server has validated the pods, so they are used unchanged, except that annotations
// reserved for the agent are removed.
package apisource

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/privilege"
	"github.com/quartet-node/quartet/internal/reflector"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/internal/watchdog"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

// Name is the name of this source.
const Name = podset.SourceAPI

// The modes of noticing changes, for people.
const (
	modeWaiting  = "waiting for nodestatus"
	modeWatch    = "watch"
	modeRetrying = "trying again"
)

// restoreAfter is the delay after which the pods of the checkpoint are used if there is no list yet. A list takes
// milliseconds if the API server is reachable, and a new subscriber waits 1 s for the desired pods.
const restoreAfter = 700 * time.Millisecond

// readAgain is the interval of reads of a checkpoint that cannot be read.
const readAgain = 10 * time.Second

// requestLimit bounds a list, and the start of a watch. The API server's own limit is a minute; a healthy one needs
// milliseconds for the pods of a node.
const requestLimit = 30 * time.Second

// Config holds the parameters of an API source. All fields except Allowed, Nodes, Shared and
// Requested are required.
type Config struct {
	// Client is the client for core/v1. It sets the encoding and the rate limit of requests.
	Client rest.Interface
	// Server returns the address of the API server for people: what [apiclient.Client.Server] returns. Any goroutine may
	// call it.
	Server func() string
	// Node is the node's name.
	Node string
	// Allowed lists the privileges of this source's pods.
	Allowed privilege.Allowed
	// Nodes is nodestatus' stream of the Node. If it is nil, the pods are requested without a wait for the Node: those of
	// another machine's node, whose syncloop waits for it.
	Nodes stream.Source[*nodev1.Node]
	// Shared is true if the source requests nothing, and gets its pods by its Feed, from a request for many nodes.
	Shared bool
	// Checkpoint is the path of the checkpoint of the pods. Its directory must exist.
	Checkpoint string
	// Health reports the wait for nodestatus.
	Health Health
	// Requested receives the result of each request of pods; err is nil if it succeeded. May be nil.
	Requested func(verb reflector.Verb, err error)
	Clock     clock.WithTicker
	Tracer    trace.Tracer
	Logger    *slog.Logger
	Metrics   *Metrics
}

// Health takes the reason why a part is missing; empty when it is there. *rpc.Health implements it.
type Health interface{ Set(part, reason string) }

// Source is the API source. It implements source.Source.
type Source struct {
	cfg   Config
	steps *watchdog.Steps
	// limit is requestLimit, except in tests.
	limit time.Duration
	// news carries the reflector's results to Run. It has no buffer, so that the reflector waits for a slow sink.
	news chan news

	// Only Run uses the following fields.

	sink   source.Sink
	keeper *keeper
	// keeperReady is true if the keeper writes the next pods at once, and unkept if a restart would not find the present
	// ones in the checkpoint.
	keeperReady, unkept bool

	pods *pods
	mode string
	// restored are the pods of the checkpoint, until they are used or not needed any more.
	restored []*v1.Pod
	// opening is true while the keeper reads the checkpoint, and due if its pods are to be used when it is read.
	opening, due bool
	// unread is true as long as the checkpoint cannot be read and may be needed. It is read again and again.
	unread bool
	// listed is true after the first list, and listedAt is the time of the last one.
	listed   bool
	listedAt time.Time
	// failures maps each verb to the error of its last request, without what happens to its pods; nil if it succeeded.
	failures map[reflector.Verb]*source.Error
	// damaged describes the problem with the checkpoint at the start, and unsaved why it cannot be written; nil if there
	// is no problem.
	damaged, unsaved *source.Error
}

// New returns the API source. It does nothing before Run.
func New(cfg Config) *Source {
	return &Source{
		cfg: cfg, steps: watchdog.NewSteps(cfg.Clock, 0), limit: requestLimit, news: make(chan news),
		pods: newPods(cfg.Node, cfg.Server, cfg.Allowed), mode: modeWaiting, failures: map[reflector.Verb]*source.Error{},
	}
}

// Name implements source.Source.
func (s *Source) Name() string { return Name }

// Target implements source.Source. It is Config.Server.
func (s *Source) Target() string { return s.cfg.Server() }

// Stands returns why the loop of the source stands still; nil if it turns, or waits for the API server or a disk.
func (s *Source) Stands() error { return s.steps.Stands() }

// Run implements source.Source. It never fails: problems with the API server or the checkpoint are reported through the
// sink, and may be solved at any time.
func (s *Source) Run(ctx context.Context, sink source.Sink) error {
	s.sink = sink
	s.keeper = newKeeper(s.cfg)
	s.opening = true
	defer s.keeper.start()()
	defer s.passLast()
	s.steps.Do(func() { s.sink.Set(Name, s.failed()) })

	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.follow(ctx)
	}()
	defer func() { <-ended }()
	timer := s.cfg.Clock.NewTimer(restoreAfter)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case n := <-s.news:
			if n.kind == refused {
				s.openAgain()
			}
			s.steps.Do(func() { s.take(ctx, n) })
		case <-timer.C():
			s.openAgain()
			s.steps.Do(func() { s.restore(ctx) })
			if s.unread || s.opening {
				timer.Reset(readAgain)
			}
		case o := <-s.keeper.opened:
			s.steps.Do(func() { s.opened(ctx, o) })
		case <-s.keeper.ready:
			s.keeperReady = true
			s.passToKeeper()
		case saving := <-s.keeper.outcome:
			select {
			case o := <-s.keeper.opened: // it came before
				s.steps.Do(func() { s.opened(ctx, o) })
			default:
			}
			s.steps.Do(func() { s.saved(saving.err) })
		}
	}
}

// follow waits until the API server has the Node, and reflects its pods until ctx ends.
func (s *Source) follow(ctx context.Context) {
	if s.cfg.Shared || s.cfg.Nodes != nil && !awaitNode(ctx, s.cfg) {
		return
	}
	s.send(ctx, news{kind: begun})
	s.reflect(ctx)
}

// send passes a result to Run, which receives until ctx ends.
func (s *Source) send(ctx context.Context, n news) {
	select {
	case s.news <- n:
	case <-ctx.Done():
	}
}

// take processes a result.
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
		s.listed, s.listedAt, s.restored, s.unread, s.mode = true, s.cfg.Clock.Now(), nil, false, modeWatch
		delete(s.failures, reflector.VerbList)
		change := s.pods.replace(n.pods, s.cfg.Clock.Now())
		// The pods of the checkpoint may not have been passed to the sink.
		change.persistent = change.persistent || first
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

// give passes the change of one pod to the sink. For a rejected pod, it passes only the changed errors.
func (s *Source) give(ctx context.Context, n news, c change) {
	if c.op == podset.None {
		s.sink.Set(Name, s.corrected())
		return
	}
	s.sink.Set(Name, s.reading(c.op, []*v1.Pod{c.pod}, s.cause(ctx, n, c)))
}

// keep writes the checkpoint if a restart would not find the present pods in it.
func (s *Source) keep(c change) {
	s.unkept = s.unkept || c.persistent
	s.passToKeeper()
}

// passToKeeper passes the pods to a keeper that writes them at once. Until then they change, and a copy for each change
// would cost as much as there are pods.
func (s *Source) passToKeeper() {
	if s.unkept && s.keeperReady {
		s.keeper.keep(maps.Clone(s.pods.held))
		s.unkept, s.keeperReady = false, false
	}
}

// passLast passes pods to a keeper that is about to end.
func (s *Source) passLast() {
	if s.unkept {
		s.keeper.keep(s.pods.held)
	}
}

// answered records that requests of a verb succeed, and reports it if they failed before.
func (s *Source) answered(v reflector.Verb) {
	s.mode = modeWatch
	if s.failures[v] == nil {
		return
	}
	delete(s.failures, v)
	s.sink.Set(Name, s.corrected())
}

// refused records a failed request. Without a list so far, the pods of the checkpoint are used.
func (s *Source) refused(ctx context.Context, n news) {
	if !s.listed {
		s.restore(ctx)
	}
	now, text := s.cfg.Clock.Now(), Reason(n.err)
	failure := &source.Error{
		Path: s.Target(), SeenAt: now, Message: fmt.Sprintf("cannot %s pods: %s", n.verb, text),
	}
	last := s.failures[n.verb]
	s.failures[n.verb], s.mode = failure, modeRetrying
	reading := s.failed()
	if last == nil || last.Message != failure.Message {
		from := s.Target()
		reading.Causes = map[string]context.Context{from: s.trace(ctx, n.began, telemetry.AttrURL.String(from), text)}
	}
	s.sink.Set(Name, reading)
}

// kept returns what happens to the pods while requests fail.
func (s *Source) kept() string {
	switch {
	case s.listed:
		return "its pods continue to run in their last known form"
	case len(s.pods.held) > 0:
		return "the pods of the checkpoint run in the meantime"
	default:
		return "none of its pods is known yet, and running pods are not changed"
	}
}

// restore passes the pods of the checkpoint to the sink, as soon as they are read, unless there was a list or it has
// done so before.
func (s *Source) restore(ctx context.Context) {
	s.due = true
	if len(s.restored) == 0 {
		return
	}
	began := s.cfg.Clock.Now()
	s.pods.replace(s.restored, began)
	s.restored = nil
	s.cfg.Logger.Info("there is no list of the API server's pods yet; the last known pods run in the meantime",
		telemetry.KeySource, Name, telemetry.KeyFile, s.cfg.Checkpoint, "pods", len(s.pods.held))
	causes := map[string]context.Context{
		s.cfg.Checkpoint: s.trace(ctx, began, telemetry.AttrFile.String(s.cfg.Checkpoint), ""),
	}
	s.sink.Set(Name, s.reading(podset.Restore, s.pods.all(), causes))
}

// saved processes the result of writing the checkpoint.
func (s *Source) saved(err error) {
	if err != nil {
		s.unsaved = &source.Error{
			Path:   s.cfg.Checkpoint,
			SeenAt: s.cfg.Clock.Now(),
			Message: fmt.Sprintf(
				"cannot save the pods of the API server: %v; a node that starts without its API server runs the last saved pods: repair the disk",
				err,
			),
		}
		s.sink.Set(Name, s.corrected())
		return
	}
	if s.unsaved != nil || s.damaged != nil {
		s.unsaved, s.damaged = nil, nil
		s.sink.Set(Name, s.corrected())
	}
}
