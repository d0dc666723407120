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

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podstatus"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/phases"
)

// Runtime is the interface of workers to the container runtime; *executor.Manager implements it.
type Runtime interface {
	SyncPod(ctx context.Context, pod *v1.Pod, observed *lifecyclev1.PodStatus) (executor.Result, error)
	KillPod(ctx context.Context, pod *v1.Pod, observed *lifecyclev1.PodStatus, gracePeriodSeconds int64) error
	CleanUpPod(ctx context.Context, pod *v1.Pod, observed *lifecyclev1.PodStatus) error
	ReleasePod(ctx context.Context, pod *v1.Pod) error
	PruneContainers(ctx context.Context, observed *lifecyclev1.PodStatus, keepPerContainer int) error
}

// Observer is the interface of workers to pleg.
type Observer interface {
	// GetPodStatus returns the observation of a pod from an inspection that began after the boot time newerThan; 0 accepts
	// the recorded one.
	GetPodStatus(ctx context.Context, uid types.UID, newerThan time.Duration) (*lifecyclev1.PodStatus, error)
}

// Statuses takes the reports of workers, and has the observations that came with events. Its methods must not call the
// Pool.
type Statuses interface {
	// Observed returns the newest observation of a pod; nil if there is none.
	Observed(uid types.UID) *lifecyclev1.PodStatus
	// Observe records an observation. One that is older than the recorded one changes nothing.
	Observe(uid types.UID, status *lifecyclev1.PodStatus)
	// Synced records the results of a sync.
	Synced(uid types.UID, report SyncReport)
	// SetState records the state of a pod's worker.
	SetState(uid types.UID, state State)
	// SetReleased records that a terminated pod has released its resources of the machine.
	SetReleased(uid types.UID)
	// Resized is called after the record of a pod's resize has changed.
	Resized(uid types.UID)
	// Phase returns the last computed phase of a pod.
	Phase(uid types.UID) v1.PodPhase
	// Forget drops a pod of which nothing is left. A pod that a source names again keeps its place.
	Forget(uid types.UID)
}

// SyncReport holds the results of a sync for the pod's status.
type SyncReport struct {
	// ReasonsKnown reports whether Wait and Reasons are known. Without it the earlier ones stay: the sync ended before.
	ReasonsKnown bool
	// Wait is the reason of the pod as a whole; empty if it does not wait.
	Wait podstatus.Reason
	// Reasons are the reasons of waiting containers, by name.
	Reasons map[string]podstatus.Reason
	// Cgroup has the limits of the pod's cgroup. If it is nil, the earlier ones stay.
	Cgroup *resources.Resources
}

// Endings stores requested ends beyond the end of the process; *gracebook.Book implements it.
type Endings interface {
	// Left records that a pod is being ended with a grace period in seconds, and returns the seconds that are left. They
	// are also valid together with an error.
	Left(uid types.UID, grace int64) (int64, error)
	// Deadline returns the time in Config.BootTime by which a pod has to stop; ok is false if the pod is not being ended.
	Deadline(uid types.UID) (deadline time.Duration, ok bool)
	// Forget drops a pod of which nothing runs any more.
	Forget(uid types.UID) error
	// NoteReplaced records that a container has ended so that another one takes its place. After an error, the next
	// process does not know it.
	NoteReplaced(uid types.UID, container string) error
}

// Config holds the dependencies and settings of a Pool.
type Config struct {
	Runtime  Runtime
	Observer Observer
	// EndObserver observes pods that are ending; nil is Observer. It must not depend on pleg alone, because a pod ends
	// also while pleg hangs.
	EndObserver Observer
	Statuses    Statuses
	Endings     Endings
	// Resizes has the records of resized pods. If it is nil, no pod is resized.
	Resizes Resizes
	Clock   clock.Clock
	// BootTime returns the clock of observations; boottime.Now in production.
	BootTime func() time.Duration
	Tracer   trace.Tracer
	Logger   *slog.Logger
	// Metrics counts and times the work; nil counts nothing.
	Metrics *Metrics
	// Phases records the durations of the parts of a pod's start; nil records nothing.
	Phases *phases.Book
	// Volumes returns the state of a pod's volumes: (*volumes.Manager).Describe. Nil knows none.
	Volumes func(types.UID) []*enginev1.Volume
	// Events records events of pods; nil discards them.
	Events Events
	// Resync is the interval of syncs without a cause: syncFrequency of the KubeletConfiguration.
	Resync time.Duration
	// Jitter spreads a delay; nil adds up to a half.
	Jitter func(time.Duration) time.Duration
}

// goneMemory is how long the last write to a pod is kept after its worker has ended, in case a pod with the same UID
// comes back. It is longer than pleg takes to observe the result of the write in either of its modes.
const goneMemory = 10 * time.Minute

// Pool has the workers of all pods.
type Pool struct {
	cfg     Config
	process context.Context //nolint:containedctx // it is what every worker lives under, named so in the package's comment
	running sync.WaitGroup
	due     *Due
	looks   *looks

	mu      sync.Mutex
	workers map[types.UID]*worker
	// network is why the network of pods is not ready; empty if it is.
	network string
	// names maps each full name to the pod that holds it. Two pods of one name never run at a time.
	names map[types.NamespacedName]types.UID
	// waiting has the pods that wait until the holder of their full name is gone, in the order of arrival.
	waiting map[types.NamespacedName][]waiter
	written map[types.UID]write
}

// waiter is a pod that waits for its full name.
type waiter struct {
	uid    types.UID
	update Update
	// again is true for a pod that came back while its earlier life was ending.
	again bool
}

// write is the last write of a worker that has ended.
type write struct {
	boot time.Duration
	at   time.Time
	// left is worker.left.
	left bool
}

// NewPool returns a pool whose workers live until the context process ends. Its end stops no pod.
func NewPool(process context.Context, cfg Config) *Pool {
	if cfg.Jitter == nil {
		cfg.Jitter = func(d time.Duration) time.Duration { return wait.Jitter(d, delayJitter) }
	}
	cfg.Metrics = cmp.Or(cfg.Metrics, NewMetrics(nil))
	if cfg.Events == nil {
		cfg.Events = noopEvents{}
	}
	if cfg.EndObserver == nil {
		cfg.EndObserver = cfg.Observer
	}
	p := &Pool{
		cfg: cfg, process: process, due: NewDue(), looks: &looks{clock: cfg.Clock},
		workers: map[types.UID]*worker{}, names: map[types.NamespacedName]types.UID{},
		waiting: map[types.NamespacedName][]waiter{}, written: map[types.UID]write{},
	}
	cfg.Metrics.Expose(p.Census)
	return p
}

// Due returns the schedule of the workers. The loop takes what is due from it and calls Poke.
func (p *Pool) Due() *Due { return p.due }

// Wait returns after every worker has returned; the process's context must have ended.
func (p *Pool) Wait() { p.running.Wait() }

// Want sets the desired pod. It starts at once, unless another pod of its full name or an earlier life of its own UID
// is still there; then it starts when that is gone. With end, the pod is not started but ended at once, even if another
// pod holds its full name.
func (p *Pool) Want(pod *v1.Pod, cause Cause, end *End) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.want(pod, cause, end)
}

// want is Want for a caller that holds mu.
func (p *Pool) want(pod *v1.Pod, cause Cause, end *End) {
	u := Update{Pod: pod, Cause: cause, End: end, requestedAt: p.cfg.Clock.Now()}
	name := nameOf(pod)
	if w := p.workers[pod.UID]; w != nil && !w.leaving() {
		w.deliver(u)
		return
	}
	_, taken := p.names[name]
	again := p.workers[pod.UID] != nil
	if again || (taken && end == nil) {
		u.behind = p.names[name]
		p.queue(name, waiter{uid: pod.UID, update: u, again: again})
		return
	}
	if waited, waiting := p.unqueue(pod.UID); waiting {
		u = Fold(waited, u)
	}
	p.start(name, pod.UID, u)
}

// Together begins the dispatch of many pods, and returns the function that ends it. Until then no pod that runs is
// looked at, because another one of them may be urgent.
func (p *Pool) Together() (end func()) { return p.looks.work() }

// Poke gives a worker a cause to work. It is a no-op for a pod without a worker.
func (p *Pool) Poke(uid types.UID, cause Cause) {
	if w := p.worker(uid); w != nil {
		w.deliver(Update{Cause: cause})
	}
}

// End requests the end of a pod. It returns false if there is no such pod.
func (p *Pool) End(uid types.UID, cause Cause, end End) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	waited, pod := p.endWaiting(uid, end)
	w := p.workers[uid]
	switch {
	case w == nil && pod != nil && (p.written[uid].left || Runs(p.cfg.Statuses.Observed(uid))):
		// This worker has not started the pod, but its earlier life, or an earlier process, has.
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
		w.deliver(Update{Cause: cause, End: &end})
	case end.Grace != nil: // its next life waits, and the earlier life has to end within this time, too
		w.deliver(Update{Cause: cause, End: &End{Grace: end.Grace}})
	}
	return true
}

// endWaiting ends a queued pod. A removed pod leaves the queue and is returned; an evicted pod gets its end when its
// turn comes. waited reports whether the pod was queued. The caller holds mu.
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
		update, _ := p.unqueue(uid)
		for _, c := range slices.Concat(end.Stopped, stoppedOf(update)) {
			close(c)
		}
		return true, update.Pod
	}
	return false, nil
}

func stoppedOf(u Update) []chan<- struct{} {
	if u.End == nil {
		return nil
	}
	return u.End.Stopped
}

// RetryFailed makes every worker whose last work failed work now, because the cause of the failure may be over.
func (p *Pool) RetryFailed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.workers {
		if w.failing() {
			w.deliver(Update{Cause: Cause{Kind: CauseDue}})
		}
	}
}

// SetNetwork sets why the network of pods is not ready; empty if it is. Until then no sandbox with a network of its own
// is made.
func (p *Pool) SetNetwork(reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.network = reason
}

// Has reports whether a pod has a worker, or is queued for one.
func (p *Pool) Has(uid types.UID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.workers[uid] != nil || p.waits(uid)
}

// waits reports whether a pod is queued. The caller holds mu.
func (p *Pool) waits(uid types.UID) bool {
	for _, queue := range p.waiting {
		if slices.ContainsFunc(queue, func(w waiter) bool { return w.uid == uid }) {
			return true
		}
	}
	return false
}

// OtherHas reports whether a full name is held by another pod than uid, or by an earlier life of uid that is ending.
func (p *Pool) OtherHas(name types.NamespacedName, uid types.UID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	holder, has := p.names[name]
	return has && (holder != uid || p.workers[holder].leaving())
}

// Ending reports whether a pod is being ended, or is about to be: its worker does not sync it any more.
func (p *Pool) Ending(uid types.UID) bool {
	w := p.worker(uid)
	return w != nil && w.ending()
}

// Tidy drops the last writes of pods that are long gone.
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

// unqueue removes a pod from the queues, and returns its folded updates. The caller holds mu.
func (p *Pool) unqueue(uid types.UID) (update Update, waited bool) {
	for name, queue := range p.waiting {
		i := slices.IndexFunc(queue, func(w waiter) bool { return w.uid == uid })
		if i < 0 {
			continue
		}
		update = queue[i].update
		if queue = slices.Delete(queue, i, i+1); len(queue) == 0 {
			delete(p.waiting, name)
		} else {
			p.waiting[name] = queue
		}
		return update, true
	}
	return Update{}, false
}

// queue makes a pod wait for its full name. The caller holds mu.
func (p *Pool) queue(name types.NamespacedName, next waiter) {
	queue := p.waiting[name]
	if i := slices.IndexFunc(queue, func(w waiter) bool { return w.uid == next.uid }); i >= 0 {
		queue[i].update = Fold(queue[i].update, next.update)
		return
	}
	p.waiting[name] = append(queue, next)
}

// start starts the worker of a pod. The pod gets its full name unless another one holds it, which is only possible for
// a pod that is to end. The caller holds mu.
func (p *Pool) start(name types.NamespacedName, uid types.UID, u Update) {
	if p.process.Err() != nil {
		return
	}
	w := &worker{
		pool: p, uid: uid, fullName: name, state: Syncing, since: p.cfg.Clock.Now(), pod: u.Pod,
		lastWrite: p.written[uid].boot, wake: make(chan struct{}, 1),
	}
	if u.behind != "" {
		w.thread.pause = pause{since: u.requestedAt, reason: WaitOf(Facts{Behind: u.behind}).For, first: true}
	}
	p.workers[uid] = w
	if _, taken := p.names[name]; !taken {
		p.names[name] = uid
	}
	w.deliver(u)
	p.running.Go(func() { w.run(p.process) })
}

// gone removes a worker and starts the next pod of its full name.
func (p *Pool) gone(w *worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.due.Clear(w.uid)
	delete(p.workers, w.uid)
	if p.names[w.fullName] == w.uid {
		delete(p.names, w.fullName)
		for _, other := range p.workers {
			if other.fullName == w.fullName { // it is ending, too, and no other pod may start before it has ended
				p.names[w.fullName] = other.uid
				break
			}
		}
	}
	if w.lastWrite > 0 || w.left {
		p.written[w.uid] = write{boot: w.lastWrite, at: p.cfg.Clock.Now(), left: w.left}
	}
	p.cfg.Statuses.Forget(w.uid)
	if w.left && !p.waits(w.uid) {
		// The next life was removed after the containers were left for it.
		p.start(w.fullName, w.uid, Update{Pod: w.pod, End: &End{Removed: true}})
	}
	p.startNext(w.fullName)
	for name, queue := range p.waiting { // a pod with this UID may have come back with another name
		if slices.ContainsFunc(queue, func(next waiter) bool { return next.uid == w.uid }) {
			p.startNext(name)
			return
		}
	}
}

// startNext starts the first pod that waits for a full name, if no pod holds the name. A pod whose UID has a worker
// continues to wait for its end. The caller holds mu.
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
