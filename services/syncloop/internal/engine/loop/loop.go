// Package loop is the sync loop: the one goroutine through which everything passes that can make a pod change. It takes
// what is wanted from configmux, what has happened from pleg, and what is due by time, keeps which pods are wanted, and
// tells the workers. It waits for nothing but its events: whatever takes time is a worker's.
//
// The events come over channels, in no promised order between them:
//
//	config        from WatchPodUpdates: additions, updates, removes, reconciles, the state of sources
//	lifecycle     from WatchEvents: what pleg has seen happen
//	probes        from the probes: liveness, readiness and startup that have come to another result
//	due           the earliest time at which a worker works by itself
//	gate          whether pleg and the runtime can be relied on
//	nodes         from WatchNode: the node, whose labels, taints and allocatable admission asks for
//	housekeeping  every 2 s: orphans, and pods that have no worker
//	leftovers     every 10 s: the pods that there are files of
//	outcomes      what has become of I/O that the loop asked for: the loop does none itself
//
// The select over them is fair, and each channel is small, so a burst on one does not hold up another. A follower that
// finds its channel full waits; what it has not taken yet stays, folded or bounded, with the publisher.
package loop

import (
	"cmp"
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/mirrorpods"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/evictionbook"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/gracebook"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/resizes"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/admission"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resize"
	"github.com/quartet-node/quartet/services/syncloop/internal/probe/prober"
)

const (
	// configCapacity lets the follower decode the next pods while the loop dispatches: a handful is enough.
	configCapacity = 16
	// lifecycleCapacity takes the events of some pods that start together without a switch of goroutines for each.
	lifecycleCapacity = 64
	// gateCapacity holds the latest word on pleg's health and no other.
	gateCapacity = 1
	// housekeepingPeriod is how often the loop cleans up.
	housekeepingPeriod = 2 * time.Second
	// housekeepingWarning is how long a clean-up may take before it is worth a line: it holds up the loop.
	housekeepingWarning = time.Second
	// idleWake is how long the loop sleeps when nothing is due; housekeeping wakes it long before.
	idleWake = time.Hour
	// sourcesGrace is how long the pods are held back from readers for a source that has not spoken, after everything
	// else is known: a restart shows either all pods or none, but a source that is away hides the others only so long.
	sourcesGrace = 5 * time.Second
)

// Desired is one thing that configmux tells: a pod that is wanted, or the state of a source.
type Desired struct {
	// Pod is the pod; nil when this is about a source.
	Pod *v1.Pod
	// Source is the source's name.
	Source string
	// Ready is true when the source has spoken; only when this is about a source.
	Ready bool
	// Traceparent is the trace of the change.
	Traceparent string
	// Life is another one when the pod was gone from its source and came back. Empty says nothing.
	Life string
}

// Pleg is what the loop asks of pleg, besides its events.
type Pleg interface {
	// Health returns why pleg cannot be relied on, nil when it can, and why the runtime's network is not ready, empty when it
	// is. It fails when pleg does not answer.
	Health(ctx context.Context) (reasons []string, network string, err error)
	// Relist returns when a full relist has finished that began after the call.
	Relist(ctx context.Context) error
}

// Workers is the pool, as the loop uses it.
type Workers interface {
	Want(pod *v1.Pod, cause podworkers.Cause, end *podworkers.End)
	Poke(uid types.UID, cause podworkers.Cause)
	End(uid types.UID, cause podworkers.Cause, end podworkers.End) bool
	Has(uid types.UID) bool
	Ending(uid types.UID) bool
	RetryFailed()
	SetNetwork(reason string)
	Tidy()
	Due() *podworkers.Due
}

// Probes has the results of probes.
type Probes interface {
	// Changes has the results that change.
	Changes() <-chan prober.Change
	// UIDs returns the pods that there are results of, Forget drops one.
	UIDs() []types.UID
	Forget(uid types.UID)
}

// Config is what a Loop needs.
type Config struct {
	// Desired is configmux's stream of pods and sources.
	Desired stream.Source[*Desired]
	// Events is pleg's stream of events.
	Events stream.Source[*lifecyclev1.Event]
	// Probes tells which probes have come to another result: *prober.Manager. Nil is a node without a prober.
	Probes  Probes
	Pleg    Pleg
	Workers Workers
	Store   *podstore.Store
	// Node is nodestatus's stream of the Node; nil for a node whose Node nobody tells, and then admission does without.
	Node stream.Source[*nodev1.Node]
	// Learned is told the Node, each time that it is said, by another goroutine. Nil tells nobody.
	Learned func(*v1.Node)
	// Pressing is told what presses on the node, each time that it is said, by another goroutine: (*eviction.Evictor).Pressing. Nil tells
	// nobody.
	Pressing func([]*nodev1.EvictionSignal)
	// Preempt ends a pod for one that the node cannot do without. Nil ends none.
	Preempt func(ctx context.Context, uid types.UID, eviction podstore.Eviction) error
	// Mirrors has an API server show the pods of other sources: *mirrorpods.Manager. Nil is mirrorpods.None.
	Mirrors Mirrors
	// Machine is what the machine is able to do, which decides whether it takes a pod.
	Machine admission.Machine
	// UnsafeSysctls are allowedUnsafeSysctls of the KubeletConfiguration.
	UnsafeSysctls []string
	// PodEvents is told what becomes of pods that no worker has: *podevents.Recorder. Nil is for nobody to read.
	PodEvents PodEvents
	// Evictions has the pods that were evicted and are still named by their source.
	Evictions *evictionbook.Book
	// Endings has the pods that were being ended when the process before this one was.
	Endings *gracebook.Book
	// Resizes has the records of resized pods. Nil keeps them in memory.
	Resizes *resizes.Book
	// Resizing has the properties of the node that make resizes infeasible.
	Resizing resize.Node
	// PodFromObserved makes a pod of what the runtime says of one that nobody knows: executor.PodFromObserved.
	PodFromObserved func(*lifecyclev1.PodStatus) *v1.Pod
	// Leftovers lists the pods that there are files of, with what their names tell: (*executor.Manager).Leftovers. Nil
	// leaves files of pods that are gone where they are.
	Leftovers func() ([]*v1.Pod, error)
	// Waiting is told what the loop waits for: (*rpc.Health).Set. It may be nil.
	Waiting func(what, reason string)
	Clock   clock.WithTicker
	Tracer  trace.Tracer
	Logger  *slog.Logger
	// Metrics counts and times the turns; nil counts nothing.
	Metrics *Metrics
	// DesiredMetrics, EventsMetrics and NodeMetrics count what comes by the streams; nil counts nothing.
	DesiredMetrics, EventsMetrics, NodeMetrics *stream.FollowedMetrics
	// Resync is syncFrequency of the KubeletConfiguration; the loop is unhealthy when it has not turned for twice as long.
	Resync time.Duration
}

// Loop is the sync loop. Make it with New, and Run it once.
type Loop struct {
	cfg       Config
	config    chan configEvent
	lifecycle chan lifecycleEvent
	gate      chan gateState
	nodes     chan nodeWord
	leftovers chan []*v1.Pod
	// outcomes are those of I/O that the loop asked for.
	outcomes chan outcome
	// group and ctx are those of Run: group has every goroutine of the loop, ctx ends with it.
	group *errgroup.Group
	ctx   context.Context //nolint:containedctx // it lives as long as the loop
	// begun is closed when the loop turns for the first time.
	begun chan struct{}
	// lastTurn is when the loop last turned, as nanoseconds of the Unix epoch; 0 before the first turn.
	lastTurn atomic.Int64
	waiting  waiting

	// What follows is the loop's own.

	desired map[types.UID]*desiredPod
	// node is the Node as it was told last; nil before.
	node *v1.Node
	// shuttingDown is true while the machine is about to go down.
	shuttingDown bool
	// sources says of each source whether it has spoken.
	sources map[string]bool
	// snapshot collects the pods of a snapshot that are new or changed, so that the oldest is dispatched first.
	snapshot []*Desired
	// held has the work that waits for the gate, by pod.
	held map[types.UID]podworkers.Cause
	// configSynced and plegSynced are true once the snapshots have been handled; the latter only while pleg is followed.
	configSynced, plegSynced bool
	gateState                gateState
	// snapshotEnded is true from the end of pleg's snapshot until all of it is taken in.
	snapshotEnded bool
	// reading has the pods whose termination messages are being read.
	reading map[types.UID]*reading
	// recording has the pods whose entry in the book of evictions is being changed; forgotten has those that shall have none.
	recording, forgotten map[types.UID]bool
	// forgettingEndings is true while files of terminations are being removed.
	forgettingEndings bool
	// network is what the workers were told last of the network of pods.
	network string
	// configDown is why configmux is away; empty when it is followed.
	configDown string
	// saving has the records of resizes that are being written to disk.
	saving map[types.UID]*saving
	// resizeFor is why resizes are decided at the end of the current event, resizeLater why at the next housekeeping; empty is
	// neither. lastActive is the number of active pods at the last housekeeping.
	resizeFor, resizeLater resizeTrigger
	lastActive             int
	// opened is when both snapshots were in; zero before.
	opened time.Time
	// serving is true once the pods are shown to readers.
	serving bool
}

// desiredPod is a pod that a source names.
type desiredPod struct {
	// pod is the pod as it is worked on, and wanted as its source names it: it may ask for resources that the node has no room for.
	pod, wanted *v1.Pod
	source      string
	// life is the pod's life, as configmux has named it.
	life string
	// missing is true when a fresh snapshot of configmux does not have the pod. It is removed when its source has spoken.
	missing     bool
	traceparent string
	// admitted is true once the pod was let in, refused once it was not. Neither is taken back.
	admitted, refused bool
	// has are the allocated resources, once allocated is true. waits is true while the source asks for others, and infeasible
	// if the node can never allocate those.
	has                          resize.Allocation
	allocated, waits, infeasible bool
	// undecided is true until the loop has decided about the resources of this version of the pod for the first time.
	undecided bool
	// promise is a new allocation while it is written to disk; nil if there is none.
	promise *promise
	// behind are the pods that were ended so that this one, a critical one, can be let in; it waits until nothing of them runs.
	behind []types.UID
}

// PodEvents is told what happens to pods; *podevents.Recorder keeps it.
type PodEvents interface {
	Normal(ctx context.Context, pod *v1.Pod, container, reason, message string)
	Warning(ctx context.Context, pod *v1.Pod, container, reason, message string)
}

// discard is a PodEvents for nobody to read.
type discard struct{}

// Normal implements PodEvents.
func (discard) Normal(context.Context, *v1.Pod, string, string, string) {}

// Warning implements PodEvents.
func (discard) Warning(context.Context, *v1.Pod, string, string, string) {}

// New returns a loop that has not begun to turn.
func New(cfg Config) *Loop {
	if cfg.Waiting == nil {
		cfg.Waiting = func(string, string) {}
	}
	if cfg.PodEvents == nil {
		cfg.PodEvents = discard{}
	}
	if cfg.Mirrors == nil {
		cfg.Mirrors = mirrorpods.None{}
	}
	if cfg.Resizes == nil {
		cfg.Resizes = resizes.InMemory()
	}
	cfg.Metrics = cmp.Or(cfg.Metrics, NewMetrics(nil))
	l := &Loop{
		cfg:     cfg,
		config:  make(chan configEvent, configCapacity),
		begun:   make(chan struct{}),
		desired: map[types.UID]*desiredPod{}, sources: map[string]bool{}, held: map[types.UID]podworkers.Cause{},
		lifecycle: make(chan lifecycleEvent, lifecycleCapacity),
		gate:      make(chan gateState, gateCapacity),
		nodes:     make(chan nodeWord),
		leftovers: make(chan []*v1.Pod), outcomes: make(chan outcome),
		reading: map[types.UID]*reading{}, recording: map[types.UID]bool{}, forgotten: map[types.UID]bool{}, saving: map[types.UID]*saving{},
	}
	l.gateState.reason = "pleg has not been asked yet"
	l.tellWaiting()
	cfg.Metrics.Expose(func() time.Time { return l.Health().LastTurn })
	return l
}

// Run turns the loop until ctx ends, and returns its error. It stops no pod.
func (l *Loop) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	l.group, l.ctx = group, ctx
	group.Go(func() error { return l.followConfig(ctx) })
	group.Go(func() error { return l.followPleg(ctx) })
	group.Go(func() error { return l.followNode(ctx) })
	group.Go(func() error { return l.watchGate(ctx) })
	group.Go(func() error { return l.sweep(ctx) })
	group.Go(func() error { return l.turn(ctx) })
	return group.Wait()
}

func (l *Loop) turn(ctx context.Context) error {
	housekeeping := l.cfg.Clock.NewTicker(housekeepingPeriod)
	defer housekeeping.Stop()
	due := l.cfg.Clock.NewTimer(idleWake)
	defer due.Stop()
	var probed <-chan prober.Change
	if l.cfg.Probes != nil {
		probed = l.cfg.Probes.Changes()
	}
	l.lastTurn.Store(l.cfg.Clock.Now().UnixNano())
	close(l.begun)
	for {
		l.lastTurn.Store(l.cfg.Clock.Now().UnixNano())
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e := <-l.config:
			l.timed(eventConfig, func() { l.handleConfig(e) })
		case e := <-l.lifecycle:
			l.timed(eventLifecycle, func() { l.handleLifecycle(e) })
		case change := <-probed:
			l.timed(eventProbe, func() { l.handleProbe(change) })
		case state := <-l.gate:
			l.timed(eventGate, func() { l.handleGate(state) })
		case word := <-l.nodes:
			l.timed(eventNode, func() { l.handleNode(word) })
		case done := <-l.outcomes:
			l.timed(done.event, done.then)
		case pods := <-l.leftovers:
			l.timed(eventLeftovers, func() { l.handleLeftovers(pods) })
		case <-due.C():
			l.timed(eventDue, l.handleDue)
			l.arm(due)
		case <-l.cfg.Workers.Due().Changed():
			l.arm(due)
		case <-housekeeping.C():
			l.timed(eventHousekeeping, l.housekeep)
		}
	}
}

// timed handles an event, then decides about the resizes that it asked for, and records how long that took: no other event
// was handled meanwhile.
func (l *Loop) timed(event event, handle func()) {
	begun := l.cfg.Clock.Now()
	handle()
	if trigger := l.resizeFor; trigger != "" {
		l.resizeFor = ""
		l.resizePods(trigger)
	}
	l.cfg.Metrics.turned(event, l.cfg.Clock.Since(begun))
}

// arm sets the timer to the earliest time at which something is due.
func (l *Loop) arm(timer clock.Timer) {
	wait := idleWake
	if at, ok := l.cfg.Workers.Due().Next(); ok {
		wait = max(0, at.Sub(l.cfg.Clock.Now()))
	}
	timer.Reset(wait)
}

// handleDue gives work to the workers whose time has come.
func (l *Loop) handleDue() {
	for _, uid := range l.cfg.Workers.Due().Take(l.cfg.Clock.Now()) {
		l.poke(uid, podworkers.Cause{Kind: podworkers.CauseDue})
	}
}

// poke gives a worker work, or keeps it until the gate is open. The end of a pod waits for no gate, nor do its next tries.
func (l *Loop) poke(uid types.UID, cause podworkers.Cause) {
	if !l.isOpen() && !l.cfg.Workers.Ending(uid) {
		l.hold(uid, cause)
		return
	}
	l.cfg.Workers.Poke(uid, cause)
}

// hold keeps work until the gate is open; the most pressing cause counts.
func (l *Loop) hold(uid types.UID, cause podworkers.Cause) {
	if known, ok := l.held[uid]; ok {
		cause = podworkers.Fold(podworkers.Update{Cause: known}, podworkers.Update{Cause: cause}).Cause
	}
	l.held[uid] = cause
}
