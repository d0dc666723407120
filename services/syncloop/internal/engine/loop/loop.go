// Package loop is the sync loop: one goroutine that handles everything that can change a pod. It takes the desired pods
// from configmux, the events of pleg, and what is due by time. It keeps which pods are desired, and gives work to the
// workers. It blocks only on its own channels: anything that takes time is done by a worker or beside the loop.
//
// The events come over channels, in no guaranteed order between them:
//
//	config        from WatchPodUpdates: added, changed and removed pods, and the state of sources
//	lifecycle     from WatchEvents: pleg's observations
//	probes        from the prober: changed results of liveness, readiness and startup probes
//	due           the earliest time of scheduled work of a worker
//	gate          whether pleg and the runtime are available
//	nodes         from WatchNode: the Node, with the labels, taints and allocatable resources for admission
//	housekeeping  every 2 s: orphans, and pods without a worker
//	leftovers     every 10 s: the pods that have files
//	outcomes      the results of I/O that the loop has requested, because it does none itself
//
// The select over them is fair, and each channel is small, so that a burst on one does not delay another. A follower
// with a full channel waits; the rest of its stream stays, folded or bounded, with the publisher.
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
	"github.com/quartet-node/quartet/internal/nodefeatures"
	"github.com/quartet-node/quartet/internal/privilege"
	"github.com/quartet-node/quartet/internal/stream"
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
	// configCapacity lets the follower decode the next pods while the loop dispatches. A few are enough.
	configCapacity = 16
	// lifecycleCapacity holds the events of a few pods that start together, without a switch of goroutines for each.
	lifecycleCapacity = 64
	// gateCapacity holds the latest state of the gate.
	gateCapacity = 1
	// housekeepingPeriod is the interval of housekeeping.
	housekeepingPeriod = 2 * time.Second
	// housekeepingWarning is the duration of housekeeping above which it is logged, because it delays the loop.
	housekeepingWarning = time.Second
	// idleWake is the timer of the loop if nothing is due. Housekeeping wakes it long before.
	idleWake = time.Hour
	// sourcesGrace bounds how long the pods are hidden from readers for a source that is not ready, after everything else
	// is known. After a restart, readers then see all pods or none, but an unreachable source hides the others only for
	// this long.
	sourcesGrace = 5 * time.Second
)

// Desired is an entry of configmux's stream: a desired pod, or the state of a source.
type Desired struct {
	// Pod is the pod; nil for the state of a source.
	Pod *v1.Pod
	// Source is the name of the source.
	Source string
	// Ready reports whether the source is ready; only for the state of a source.
	Ready bool
	// Traceparent is the trace of the change.
	Traceparent string
	// Life changes if the pod was removed from its source and came back. Empty is unknown.
	Life string
}

// Pleg is the interface of the loop to pleg, besides its events.
type Pleg interface {
	// Health returns why pleg is unhealthy, nil if it is healthy, and why the runtime's network is not ready, empty if it
	// is. It fails if pleg does not answer.
	Health(ctx context.Context) (reasons []string, network string, err error)
	// Relist returns after a full relist that began after the call.
	Relist(ctx context.Context) error
}

// Workers is the interface of the loop to the pool of workers.
type Workers interface {
	Want(pod *v1.Pod, cause podworkers.Cause, end *podworkers.End)
	EndAndWant(pod *v1.Pod, cause podworkers.Cause)
	Together() (end func())
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
	// Changes returns the channel of changed results.
	Changes() <-chan prober.Change
	// UIDs returns the pods with results, and Forget drops the results of one.
	UIDs() []types.UID
	Forget(uid types.UID)
}

// Config holds the dependencies and settings of a Loop.
type Config struct {
	// Desired is configmux's stream of pods and sources.
	Desired stream.Source[*Desired]
	// Events is pleg's stream of events.
	Events stream.Source[*lifecyclev1.Event]
	// Probes has the results of probes: *prober.Manager. A node without a prober has nil.
	Probes  Probes
	Pleg    Pleg
	Workers Workers
	Store   *podstore.Store
	// Node is nodestatus's stream of the Node. If it is nil, admission does not wait for a Node.
	Node stream.Source[*nodev1.Node]
	// Learned is called with each Node, in another goroutine; it may be nil.
	Learned func(*v1.Node)
	// Pressing is called with the eviction signals of the node, in another goroutine: (*eviction.Evictor).Pressing. It may
	// be nil.
	Pressing func([]*nodev1.EvictionSignal)
	// Preempt ends a pod to make room for a critical one. If it is nil, no pod is preempted.
	Preempt func(ctx context.Context, uid types.UID, eviction podstore.Eviction) error
	// Mirrors shows the pods of other sources in an API server. Required.
	Mirrors Mirrors
	// Machine has the abilities of the machine, for admission.
	Machine admission.Machine
	// Features are the features of the node, for admission; nil admits every pod.
	Features *nodefeatures.Features
	// UnsafeSysctls is allowedUnsafeSysctls of the KubeletConfiguration.
	UnsafeSysctls []string
	// Privileges are the sources whose pods may have access to the host.
	Privileges privilege.Allowed
	// PodEvents records events of pods without a worker: *podevents.Recorder. Nil discards them.
	PodEvents PodEvents
	// Devices allocates the devices of new pods. If it is nil, there are none.
	Devices Devices
	// Evictions has the evicted pods that their source still names.
	Evictions *evictionbook.Book
	// Endings has the pods that an earlier process was ending.
	Endings *gracebook.Book
	// Resizes has the records of resized pods. Nil keeps them in memory.
	Resizes *resizes.Book
	// Resizing has the properties of the node that make resizes infeasible.
	Resizing resize.Node
	// PodFromObserved makes a pod from its observation, for one that no source names: executor.PodFromObserved.
	PodFromObserved func(*lifecyclev1.PodStatus) *v1.Pod
	// Leftovers lists the pods that have files, as far as these tell: (*executor.Manager).Leftovers. If it is nil, files
	// of pods that are gone stay.
	Leftovers func() ([]*v1.Pod, error)
	// Waiting is called with what the loop waits for: (*rpc.Health).Set. It may be nil.
	Waiting func(part, reason string)
	Clock   clock.WithTicker
	Tracer  trace.Tracer
	Logger  *slog.Logger
	// Metrics counts and times the events; nil counts nothing.
	Metrics *Metrics
	// DesiredMetrics, EventsMetrics and NodeMetrics count the messages of the streams; nil counts nothing.
	DesiredMetrics, EventsMetrics, NodeMetrics *stream.FollowedMetrics
	// Resync is syncFrequency of the KubeletConfiguration. The loop is unhealthy if it has handled no event for twice as
	// long.
	Resync time.Duration
}

// Loop is the sync loop. New creates it, and Run runs it once.
type Loop struct {
	cfg       Config
	config    chan configEvent
	lifecycle chan lifecycleEvent
	gate      chan gateState
	nodes     chan nodeWord
	leftovers chan []*v1.Pod
	// outcomes are the results of I/O that the loop has requested.
	outcomes chan outcome
	// group has every goroutine of the loop, and ctx ends with it.
	group *errgroup.Group
	ctx   context.Context //nolint:containedctx // it lives as long as the loop
	// begun is closed when the loop begins to handle events.
	begun chan struct{}
	// lastTurn is the time of the last event; nil before the first. It keeps the monotonic reading, so that a step of the
	// wall clock neither hides a loop that stands still nor makes one of a loop that turns.
	lastTurn atomic.Pointer[time.Time]
	waiting  waiting

	// Only the loop's goroutine uses the following fields.

	desired map[types.UID]*desiredPod
	// node is the last Node; nil before the first.
	node *v1.Node
	// shuttingDown is true while the machine is about to shut down.
	shuttingDown bool
	// sources maps each source to whether it is ready.
	sources map[string]bool
	// snapshot collects the new and changed pods of a snapshot, so that the oldest is dispatched first.
	snapshot []*Desired
	// held is the work that waits for the gate, by pod.
	held map[types.UID]podworkers.Cause
	// configSynced and plegSynced are true after the snapshots were handled; the latter only while pleg is connected.
	configSynced, plegSynced bool
	gateState                gateState
	// snapshotEnded is true from the end of pleg's snapshot until all of it is handled.
	snapshotEnded bool
	// reading has the pods whose termination messages are being read.
	reading map[types.UID]*reading
	// recording has the pods whose entry in the book of evictions is being changed; forgotten has those whose entry is
	// being removed.
	recording, forgotten map[types.UID]bool
	// forgettingEndings is true while files of endings are being removed.
	forgettingEndings bool
	// network is the last state of the network that the workers have.
	network string
	// configDown is why configmux is not followed; empty while it is.
	configDown string
	// unread is true while the book of evictions cannot be read.
	unread bool
	// readingResizes is true while records of resizes are read again.
	readingResizes bool
	// saving has the records of resizes that are being written to disk.
	saving map[types.UID]*saving
	// resizeFor is why resizes are decided at the end of the current event, and resizeLater why at the next housekeeping;
	// empty for neither. lastActive is the number of active pods at the last housekeeping.
	resizeFor, resizeLater resizeTrigger
	lastActive             int
	// copies is the memory of withActive.
	copies []v1.Pod
	// opened is the time at which both snapshots were complete; zero before.
	opened time.Time
	// serving is true after the pods have become visible to readers.
	serving bool
}

// desiredPod is a pod that a source names.
type desiredPod struct {
	// wanted is the pod as its source names it, and pod the version for the worker. They differ while wanted asks for
	// resources that the node cannot allocate.
	pod, wanted *v1.Pod
	source      string
	// life is Desired.Life.
	life string
	// missing is true if the pod is not in a new snapshot of configmux. It is removed when its source is ready.
	missing     bool
	traceparent string
	// admitted is true after the pod was admitted, and refused after it was not. Both are final.
	admitted, refused bool
	// has are the allocated resources, once allocated is true. waits is true while the source asks for others, and
	// infeasible if the node can never allocate those.
	has                          resize.Allocation
	allocated, waits, infeasible bool
	// undecided is true until the loop has decided about the resources of this version of the pod for the first time.
	undecided bool
	// promise is a new allocation while it is written to disk; nil if there is none.
	promise *promise
	// allocating is the allocation of devices under way; nil if there is none.
	allocating *allocating
	// behind are the pods that were preempted for this critical one. It waits until they are gone.
	behind []types.UID
}

// PodEvents records events of pods; *podevents.Recorder implements it.
type PodEvents interface {
	Normal(ctx context.Context, pod *v1.Pod, container, reason, message string)
	Warning(ctx context.Context, pod *v1.Pod, container, reason, message string)
}

// noopEvents discards events.
type noopEvents struct{}

// Normal implements PodEvents.
func (noopEvents) Normal(context.Context, *v1.Pod, string, string, string) {}

// Warning implements PodEvents.
func (noopEvents) Warning(context.Context, *v1.Pod, string, string, string) {}

// New returns a loop that is not running yet.
func New(cfg Config) *Loop {
	if cfg.Waiting == nil {
		cfg.Waiting = func(string, string) {}
	}
	if cfg.PodEvents == nil {
		cfg.PodEvents = noopEvents{}
	}
	if cfg.Devices == nil {
		cfg.Devices = noDevices{}
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
		reading: map[types.UID]*reading{}, recording: map[types.UID]bool{}, forgotten: map[types.UID]bool{},
		saving: map[types.UID]*saving{},
	}
	l.unread = cfg.Evictions != nil && cfg.Evictions.Unread() != nil
	l.gateState.reason = "pleg has not been asked yet"
	l.reportWaiting()
	cfg.Metrics.Expose(func() time.Time { return l.Health().LastTurn })
	return l
}

// Run handles events until ctx ends, and returns its error. It stops no pod.
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
	l.noteTurn()
	close(l.begun)
	for {
		l.noteTurn()
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
			l.timed(done.event, done.react)
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

// noteTurn records the time of an event.
func (l *Loop) noteTurn() {
	now := l.cfg.Clock.Now()
	l.lastTurn.Store(&now)
}

// timed handles an event, then decides about the resizes that it has requested, and records the duration, during which
// the loop handles no other event.
func (l *Loop) timed(event event, handle func()) {
	begun := l.cfg.Clock.Now()
	handle()
	if trigger := l.resizeFor; trigger != "" {
		l.resizeFor = ""
		l.resizePods(trigger)
	}
	l.cfg.Metrics.turned(event, l.cfg.Clock.Since(begun))
}

// arm sets the timer to the earliest scheduled work.
func (l *Loop) arm(timer clock.Timer) {
	wait := idleWake
	if at, ok := l.cfg.Workers.Due().Next(); ok {
		wait = max(0, at.Sub(l.cfg.Clock.Now()))
	}
	timer.Reset(wait)
}

// handleDue wakes the workers whose scheduled work is due.
func (l *Loop) handleDue() {
	for _, uid := range l.cfg.Workers.Due().Take(l.cfg.Clock.Now()) {
		l.poke(uid, podworkers.Cause{Kind: podworkers.CauseDue})
	}
}

// poke wakes a worker, or holds the cause until the gate is open. The end of a pod and its retries do not wait for the
// gate.
func (l *Loop) poke(uid types.UID, cause podworkers.Cause) {
	if !l.isOpen() && !l.cfg.Workers.Ending(uid) {
		l.hold(uid, cause)
		return
	}
	l.cfg.Workers.Poke(uid, cause)
}

// hold keeps a cause until the gate is open; the most urgent one wins.
func (l *Loop) hold(uid types.UID, cause podworkers.Cause) {
	if known, ok := l.held[uid]; ok {
		cause = podworkers.Fold(podworkers.Update{Cause: known}, podworkers.Update{Cause: cause}).Cause
	}
	l.held[uid] = cause
}
