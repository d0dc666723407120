package podworkers

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podstatus"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/phases"
)

// Runtime is what workers do to the runtime; *executor.Manager does it.
type Runtime interface {
	SyncPod(ctx context.Context, pod *v1.Pod, observed *lifecyclev1.PodStatus) (executor.Result, error)
	KillPod(ctx context.Context, pod *v1.Pod, observed *lifecyclev1.PodStatus, gracePeriodSeconds int64) error
	CleanUpPod(ctx context.Context, pod *v1.Pod, observed *lifecyclev1.PodStatus) error
	ReleasePod(ctx context.Context, pod *v1.Pod) error
	PruneContainers(ctx context.Context, observed *lifecyclev1.PodStatus, keepPerContainer int) error
}

// Observer is pleg, as workers ask it.
type Observer interface {
	// GetPodStatus returns what was observed of a pod by an inspection that began after newerThan; 0 takes what is on
	// record.
	GetPodStatus(ctx context.Context, uid types.UID, newerThan time.Duration) (*lifecyclev1.PodStatus, error)
}

// Statuses is where workers report, and find what events have told. None of its methods may call the Pool.
type Statuses interface {
	// Observed returns the newest observation of a pod; nil when there is none.
	Observed(uid types.UID) *lifecyclev1.PodStatus
	// Observe takes in an observation; an older one than is known changes nothing.
	Observe(uid types.UID, status *lifecyclev1.PodStatus)
	// Synced takes in the results of a sync.
	Synced(uid types.UID, report SyncReport)
	// SetState takes in the state of a pod's worker.
	SetState(uid types.UID, state State)
	// SetReleased takes in that a pod of which nothing runs any more has given back what it held of the machine.
	SetReleased(uid types.UID)
	// Resized notes that the record of a pod's resize has changed.
	Resized(uid types.UID)
	// Phase returns the phase that was computed for a pod last.
	Phase(uid types.UID) v1.PodPhase
	// Forget drops what is known of a pod that nothing is left of. A pod that a source names again keeps its place.
	Forget(uid types.UID)
}

// SyncReport holds the results of a sync for the pod's status.
type SyncReport struct {
	// Waits reports whether Wait and Reasons are known. Without it the earlier ones stay: the sync ended before.
	Waits bool
	// Wait is the reason of the pod as a whole; empty if it does not wait.
	Wait podstatus.Reason
	// Reasons are the reasons of waiting containers, by name.
	Reasons map[string]podstatus.Reason
	// Cgroup has the limits of the pod's cgroup. If it is nil, the earlier ones stay.
	Cgroup *resources.Resources
}

// Endings remembers the ends that were asked for across the end of the process; *gracebook.Book does it.
type Endings interface {
	// Left notes that a pod is being ended with a grace period, in seconds, and returns how much of it is left. That is
	// right also beside an error.
	Left(uid types.UID, grace int64) (int64, error)
	// Deadline returns until when a pod that is being ended has to stop, by Config.BootTime; ok is false for a pod that is not
	// being ended.
	Deadline(uid types.UID) (deadline time.Duration, ok bool)
	// Forget drops a pod of which nothing runs any more.
	Forget(uid types.UID) error
}

// Config is what workers need.
type Config struct {
	Runtime  Runtime
	Observer Observer
	Statuses Statuses
	Endings  Endings
	// Resizes has the records of resized pods; nil resizes no pod.
	Resizes Resizes
	Clock   clock.Clock
	// BootTime is boottime.Now: the clock that observations are stamped with.
	BootTime func() time.Duration
	Tracer   trace.Tracer
	Logger   *slog.Logger
	// Metrics counts and times the work; nil counts nothing.
	Metrics *Metrics
	// Phases has how long each part of a pod's start took, and is told the first ones; nil keeps nothing.
	Phases *phases.Book
	// Events is told what cannot be done for pods; nil is for nobody to read.
	Events Events
	// Resync is how often a pod is looked at when nothing happens to it: syncFrequency of the KubeletConfiguration.
	Resync time.Duration
	// Jitter spreads a delay; by a half when nil.
	Jitter func(time.Duration) time.Duration
}

// goneMemory is how long the last write to a pod is remembered after its worker is gone, for a pod of the same UID that
// comes back: longer than pleg takes to see what has become of it in either of its modes.
const goneMemory = 10 * time.Minute

// Pool has the workers of all pods.
type Pool struct {
	cfg     Config
	process context.Context //nolint:containedctx // it is what every worker lives under, named so in the package's comment
	running sync.WaitGroup
	due     *Due

	mu      sync.Mutex
	workers map[types.UID]*worker
	// network is why the network of pods is not ready; empty when it is.
	network string
	// names has the worker that holds each full name: two pods of one name never run at a time.
	names map[types.NamespacedName]types.UID
	// waiting has the pods that wait for the holder of their full name to be gone, first come first.
	waiting map[types.NamespacedName][]waiter
	written map[types.UID]write
}

// waiter is a pod that waits for its full name.
type waiter struct {
	uid    types.UID
	update Update
	// again is true for a pod that has come back while its earlier life was ending.
	again bool
}

// write is the last write of a worker that is gone.
type write struct {
	boot time.Duration
	at   time.Time
}

// NewPool returns a pool whose workers live until process ends. Its end stops no pod.
func NewPool(process context.Context, cfg Config) *Pool {
	if cfg.Jitter == nil {
		cfg.Jitter = func(d time.Duration) time.Duration { return wait.Jitter(d, delayJitter) }
	}
	cfg.Metrics = cmp.Or(cfg.Metrics, NewMetrics(nil))
	if cfg.Events == nil {
		cfg.Events = untold{}
	}
	p := &Pool{
		cfg: cfg, process: process, due: NewDue(),
		workers: map[types.UID]*worker{}, names: map[types.NamespacedName]types.UID{},
		waiting: map[types.NamespacedName][]waiter{}, written: map[types.UID]write{},
	}
	cfg.Metrics.Expose(p.Census)
	return p
}

// Due has when each worker works again by itself; who turns the loop takes from it and calls Poke.
func (p *Pool) Due() *Due { return p.due }

// Wait returns when every worker has returned, after the process has ended.
func (p *Pool) Wait() { p.running.Wait() }

// Want makes pod what is wanted. It starts at once, unless another of its full name, or an earlier life of its own UID,
// is not gone yet: then it starts when that is. An end may be asked for with it, and a pod that is to end is not started: it ends
// at once, whoever holds its full name, also when it has waited for that.
func (p *Pool) Want(pod *v1.Pod, cause Cause, end *End) {
	u := Update{Pod: pod, Cause: cause, End: end, told: p.cfg.Clock.Now()}
	name := nameOf(pod)
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.workers[pod.UID]; w != nil && !w.leaving() {
		w.tell(u)
		return
	}
	_, taken := p.names[name]
	again := p.workers[pod.UID] != nil
	if again || (taken && end == nil) {
		u.behind = p.names[name]
		p.queue(name, waiter{uid: pod.UID, update: u, again: again})
		return
	}
	if waited, was := p.unqueue(pod.UID); was {
		u = Fold(waited, u)
	}
	p.start(name, pod.UID, u)
}

// Poke gives a worker something to do; it does nothing for a pod without one.
func (p *Pool) Poke(uid types.UID, cause Cause) {
	if w := p.worker(uid); w != nil {
		w.tell(Update{Cause: cause})
	}
}

// End ends a pod. It returns false when there is no such pod.
func (p *Pool) End(uid types.UID, cause Cause, end End) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	waited, pod := p.endWaiting(uid, end)
	w := p.workers[uid]
	switch {
	case w == nil && pod != nil && Runs(p.cfg.Statuses.Observed(uid)):
		// This process has not started it, but one before has.
		p.start(nameOf(pod), uid, Update{Pod: pod, Cause: cause, End: &End{Removed: true, Grace: end.Grace}})
		return true
	case w == nil && pod != nil:
		p.cfg.Statuses.Forget(uid)
		return true
	case w == nil:
		return waited
	}
	switch {
	case !waited:
		w.tell(Update{Cause: cause, End: &end})
	case end.Grace != nil: // its next life waits, and the one before is to end in this time, too
		w.tell(Update{Cause: cause, End: &End{Grace: end.Grace}})
	}
	return true
}

// endWaiting ends a pod that has not been started: one that is removed just stops to wait, one that is evicted is told
// when its turn comes. It tells whether the pod waited, and returns the one that does not any more. Called with mu held.
func (p *Pool) endWaiting(uid types.UID, end End) (waited bool, removed *v1.Pod) {
	for _, queue := range p.waiting {
		i := slices.IndexFunc(queue, func(w waiter) bool { return w.uid == uid })
		if i < 0 {
			continue
		}
		if !end.Removed {
			queue[i].update = Fold(queue[i].update, Update{End: &end})
			return true, nil
		}
		told, _ := p.unqueue(uid)
		for _, c := range slices.Concat(end.Stopped, stoppedOf(told)) {
			close(c)
		}
		return true, told.Pod
	}
	return false, nil
}

func stoppedOf(u Update) []chan<- struct{} {
	if u.End == nil {
		return nil
	}
	return u.End.Stopped
}

// RetryFailed makes every worker whose last work failed work now: what it failed of is thought to be over.
func (p *Pool) RetryFailed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.workers {
		if w.failing() {
			w.tell(Update{Cause: Cause{Kind: CauseDue}})
		}
	}
}

// SetNetwork says why the network of pods is not ready; empty when it is. Until then no sandbox is made that needs one.
func (p *Pool) SetNetwork(reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.network = reason
}

// Has tells whether a pod has a worker, or waits for one.
func (p *Pool) Has(uid types.UID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.workers[uid] != nil {
		return true
	}
	for _, queue := range p.waiting {
		if slices.ContainsFunc(queue, func(w waiter) bool { return w.uid == uid }) {
			return true
		}
	}
	return false
}

// OtherHas tells whether another pod than the one with a UID has a full name, or an earlier life of it that is ending.
func (p *Pool) OtherHas(name types.NamespacedName, uid types.UID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	holder, has := p.names[name]
	return has && (holder != uid || p.workers[holder].leaving())
}

// Ending tells whether a pod is being ended, or is about to be: its worker has stopped to sync it.
func (p *Pool) Ending(uid types.UID) bool {
	w := p.worker(uid)
	return w != nil && w.ending()
}

// Tidy forgets what is not needed any more of pods that are long gone.
func (p *Pool) Tidy() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for uid, w := range p.written {
		if p.cfg.Clock.Since(w.at) > goneMemory {
			delete(p.written, uid)
		}
	}
}

func (p *Pool) worker(uid types.UID) *worker {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.workers[uid]
}

// unqueue lets a pod wait no longer, and returns what it was told while it did. Called with mu held.
func (p *Pool) unqueue(uid types.UID) (told Update, waited bool) {
	for name, queue := range p.waiting {
		i := slices.IndexFunc(queue, func(w waiter) bool { return w.uid == uid })
		if i < 0 {
			continue
		}
		told = queue[i].update
		if queue = slices.Delete(queue, i, i+1); len(queue) == 0 {
			delete(p.waiting, name)
		} else {
			p.waiting[name] = queue
		}
		return told, true
	}
	return Update{}, false
}

// queue makes a pod wait for its full name. Called with mu held.
func (p *Pool) queue(name types.NamespacedName, next waiter) {
	queue := p.waiting[name]
	if i := slices.IndexFunc(queue, func(w waiter) bool { return w.uid == next.uid }); i >= 0 {
		queue[i].update = Fold(queue[i].update, next.update)
		return
	}
	p.waiting[name] = append(queue, next)
}

// start starts the worker of a pod, which holds its full name unless another does: that may only be when the pod is to
// end. Called with mu held.
func (p *Pool) start(name types.NamespacedName, uid types.UID, u Update) {
	if p.process.Err() != nil {
		return
	}
	w := &worker{
		pool: p, uid: uid, fullName: name, state: Syncing, since: p.cfg.Clock.Now(), pod: u.Pod,
		lastWrite: p.written[uid].boot, wake: make(chan struct{}, 1),
	}
	if u.behind != "" {
		w.thread.pause = pause{since: u.told, reason: WaitOf(Facts{Behind: u.behind}).For, first: true}
	}
	p.workers[uid] = w
	if _, taken := p.names[name]; !taken {
		p.names[name] = uid
	}
	w.tell(u)
	p.running.Go(func() { w.run(p.process) })
}

// gone forgets a worker and lets the next pod of its full name start.
func (p *Pool) gone(w *worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.due.Clear(w.uid)
	delete(p.workers, w.uid)
	if p.names[w.fullName] == w.uid {
		delete(p.names, w.fullName)
		for _, other := range p.workers {
			if other.fullName == w.fullName { // it is ending, too, and nobody may start before it has
				p.names[w.fullName] = other.uid
				break
			}
		}
	}
	if w.lastWrite > 0 {
		p.written[w.uid] = write{boot: w.lastWrite, at: p.cfg.Clock.Now()}
	}
	p.cfg.Statuses.Forget(w.uid)
	p.startNext(w.fullName)
	for name, queue := range p.waiting { // a pod of this UID may have come back by another name
		if slices.ContainsFunc(queue, func(next waiter) bool { return next.uid == w.uid }) {
			p.startNext(name)
			return
		}
	}
}

// startNext starts the first of the pods that wait for a full name, when nobody holds that. One whose UID has a worker
// goes on waiting for the end of that. Called with mu held.
func (p *Pool) startNext(name types.NamespacedName) {
	queue := p.waiting[name]
	i := slices.IndexFunc(queue, func(w waiter) bool { return p.workers[w.uid] == nil })
	if _, taken := p.names[name]; taken || i < 0 {
		return
	}
	next := queue[i]
	if queue = slices.Delete(queue, i, i+1); len(queue) == 0 {
		delete(p.waiting, name)
	} else {
		p.waiting[name] = queue
	}
	if next.again {
		p.cfg.Metrics.restarted(podset.IsStaticSource(next.update.Pod.Annotations[podset.AnnotationSource]))
	}
	p.start(name, next.uid, next.update)
}

func nameOf(pod *v1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}
