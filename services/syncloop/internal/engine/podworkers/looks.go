package podworkers

import (
	"container/list"
	"context"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
)

// lookPatience is how long the first look at a pod that runs waits for other work: about twice the start of a pod on a
// slow machine.
const lookPatience = time.Second

// looks orders the first work of the workers. When this process starts, each pod of the node gets a worker, and most
// pods run as they should: their workers only look. They do so one after another, and while no pod is worked on that
// needs something, so that it does not share the processors with all of them. A look waits for lookPatience at most,
// because other work may take as long as the pull of an image, or hang.
type looks struct {
	clock clock.Clock

	mu sync.Mutex
	// urgent is the number of pods that are worked on and do not only look. looking is true during a look that has its
	// turn.
	urgent  int
	looking bool
	// waiting has a channel for each look that waits, the longest first. It is closed when its turn comes.
	waiting list.List
}

// work begins other work than a look. It never waits. The returned function ends it.
func (l *looks) work() (end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.urgent++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.urgent--
		l.next()
	}
}

// look waits for the turn of a look, until lookPatience has passed, ctx ends, or hurry returns true after a value from
// wake. The returned function ends the look.
func (l *looks) look(ctx context.Context, wake <-chan struct{}, hurry func() bool) (end func()) {
	turn := make(chan struct{})
	l.mu.Lock()
	place := l.waiting.PushBack(turn)
	l.next()
	l.mu.Unlock()
	timer := l.clock.NewTimer(lookPatience)
	defer timer.Stop()
	for waits := true; waits; {
		select {
		case <-turn:
			return l.ended
		case <-timer.C():
			waits = false
		case <-ctx.Done():
			waits = false
		case <-wake:
			waits = !hurry()
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-turn: // it has come in the meantime
		return l.ended
	default:
		l.waiting.Remove(place)
		return func() {}
	}
}

// ended ends a look that had its turn.
func (l *looks) ended() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.looking = false
	l.next()
}

// next gives the turn to the look that has waited longest, if it may begin. The caller holds mu.
func (l *looks) next() {
	first := l.waiting.Front()
	if first == nil || l.looking || l.urgent > 0 {
		return
	}
	l.looking = true
	close(l.waiting.Remove(first).(chan struct{}))
}

// begin waits until the worker may sync, and returns the function that ends the sync. The first sync of a pod that runs
// is a look, and waits until something else happens to the pod.
func (w *worker) begin(ctx context.Context) (end func()) {
	if w.looked || !isSettled(w.pod, w.pool.cfg.Statuses.Observed(w.uid)) {
		return w.pool.looks.work()
	}
	return w.pool.looks.look(ctx, w.wake, w.isPressed)
}

// isPressed reports whether the pending update is of the pod itself or of the end of a container.
func (w *worker) isPressed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pending != nil && w.pending.Cause.Kind >= CauseLost
}

// isSettled reports whether all containers and sidecars of a pod run.
func isSettled(pod *v1.Pod, observed *lifecyclev1.PodStatus) bool {
	sandbox := podview.Sandbox(observed)
	missing := func(c v1.Container) bool {
		return !podview.Running(podview.LatestIn(observed, c.Name, sandbox.GetId()))
	}
	return podview.Ready(sandbox) && !slices.ContainsFunc(pod.Spec.Containers, missing) &&
		!slices.ContainsFunc(pod.Spec.InitContainers, func(c v1.Container) bool { return podset.IsSidecar(&c) && missing(c) })
}
