package podworkers

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/cri"
)

// worker is the worker of one pod. It does one thing at a time, and keeps at most one update for after that.
type worker struct {
	pool     *Pool
	uid      types.UID
	fullName types.NamespacedName
	// wake has room for one signal: the worker takes all that is pending when it wakes.
	wake chan struct{}

	mu sync.Mutex
	// pending is what the worker has been told and not begun with; nil when there is nothing.
	pending *Update
	// interrupt cuts the running work short; nil while nothing runs.
	interrupt context.CancelFunc
	state     State
	// since is when it came into its state.
	since     time.Time
	lastError string
	// waits is Wait.For after the last work.
	waits string

	// What follows is the goroutine's own.

	// pod and end are what is wanted, all updates so far folded.
	pod *v1.Pod
	end *End
	// lastWrite is the boot time after the last call that may have changed the runtime; what was observed before does
	// not count any more.
	lastWrite time.Duration
	// away counts the failures in a row because a service was away.
	away int
	// looked is true once pleg has been asked for the pod.
	looked bool
	// looking is true while the running work is a regular look of which nothing has come.
	looking bool
	thread  thread
	// told is when the worker was first given the work that it does; measured is true once the beginning of the pod's
	// start has been timed, or it was found to have been started before.
	told     time.Time
	measured bool
}

// tell gives the worker an update. Running work is cut short when the pod is to end, or to end sooner.
func (w *worker) tell(u Update) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if u.told.IsZero() {
		u.told = w.pool.cfg.Clock.Now()
	}
	folded := u
	if w.pending != nil {
		folded = Fold(*w.pending, u)
	}
	w.pending = &folded
	if w.interrupt != nil && w.overtaken() {
		w.interrupt()
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// overtaken tells whether what is pending makes the running work pointless: the pod is to end while it is being synced,
// or to end sooner than the running kill would have it. Called with mu held.
func (w *worker) overtaken() bool {
	if w.pending == nil || w.pending.End == nil {
		return false
	}
	switch w.state {
	case Syncing:
		return true
	case Terminating:
		wanted := Fold(Update{Pod: w.pod, End: w.end}, *w.pending)
		return GraceOf(wanted.Pod, wanted.End) < GraceOf(w.pod, w.end)
	case Terminated, Gone:
	}
	return false
}

// run works until the process ends or nothing of the pod is left.
func (w *worker) run(process context.Context) {
	for {
		select {
		case <-process.Done():
			return
		case <-w.wake:
		}
		for {
			cause, ok := w.take()
			if !ok {
				break
			}
			if w.step(process, cause); w.state == Gone || process.Err() != nil {
				return
			}
		}
	}
}

// take makes the pending update what is wanted. It returns false when there is none.
func (w *worker) take() (Cause, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pending == nil {
		return Cause{}, false
	}
	u := Fold(Update{Pod: w.pod, End: w.end}, *w.pending)
	w.pending, w.pod, w.end, w.told = nil, u.Pod, u.End, u.told
	if w.end != nil {
		w.move(InputEnd)
	}
	return u.Cause, true
}

// move enters the state after an input. Called with mu held.
func (w *worker) move(in Input) {
	next, ok := Next(w.state, in)
	if !ok {
		w.pool.cfg.Logger.Error("a worker was given what cannot happen in its state; it is ignored",
			"pod", w.fullName.String(), "state", w.state.String(), "input", in.String())
		return
	}
	if next != w.state {
		w.state, w.since, w.waits = next, w.pool.cfg.Clock.Now(), ""
	}
	if w.end != nil && next >= Terminated {
		for _, c := range w.end.Stopped {
			close(c)
		}
		w.end.Stopped = nil
	}
}

// step does one piece of work after another until the worker has to wait, and sets when it works again by itself.
func (w *worker) step(process context.Context, cause Cause) {
	w.pool.due.Clear(w.uid)
	for {
		operation := w.operation(cause)
		out := w.work(process, cause)
		if now := w.pool.cfg.Clock.Now(); !out.skipped {
			w.pool.cfg.Metrics.worked(operation, now.Sub(w.told))
			w.told = now
		}
		if process.Err() != nil {
			return
		}
		if w.settle(out) {
			continue
		}
		if w.state == Gone {
			w.pool.gone(w)
		}
		return
	}
}

// work does what the state asks for.
func (w *worker) work(process context.Context, cause Cause) outcome {
	ctx, cancel := context.WithCancel(process)
	defer cancel()
	w.mu.Lock()
	state := w.state
	w.interrupt = cancel
	if w.overtaken() {
		cancel() // it was told between two pieces of work, when there was nothing to interrupt
	}
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.interrupt = nil
		w.mu.Unlock()
	}()
	w.pool.cfg.Statuses.SetState(w.uid, state)
	switch state {
	case Syncing:
		return w.sync(ctx, cause)
	case Terminating:
		return w.terminate(ctx, cause)
	case Terminated:
		return w.cleanUp(ctx, cause)
	case Gone:
	}
	return outcome{}
}

// settle takes in the outcome of a piece of work; it returns true when the next follows at once.
func (w *worker) settle(out outcome) bool {
	if out.err == nil && !out.skipped {
		w.away = 0
	}
	if !out.skipped {
		w.thread.done(out.err != nil || out.unfinished || out.input != 0)
		w.thread.pause = pause{since: w.pool.cfg.Clock.Now(), reason: out.waits}
	}
	w.mu.Lock()
	if !out.skipped {
		w.lastError, w.waits = "", out.waits
	}
	if out.err != nil {
		w.lastError = out.err.Error()
	}
	pending := w.pending != nil
	if out.input != 0 {
		w.move(out.input)
	}
	state := w.state
	w.mu.Unlock()
	if pending && state != Gone {
		return false // the caller takes the update first
	}
	if out.input != 0 && state != Gone {
		return true
	}
	if out.after > 0 {
		w.pool.due.Set(w.uid, w.pool.cfg.Clock.Now().Add(out.after))
	}
	return false
}

// ending tells whether the pod is being ended, or is about to be.
func (w *worker) ending() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state > Syncing || (w.pending != nil && w.pending.End != nil)
}

// leaving tells whether the worker ends its pod for good, so that the pod can only come back by a worker of its own.
func (w *worker) leaving() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return (w.end != nil && w.end.Removed) || (w.pending != nil && w.pending.End != nil && w.pending.End.Removed)
}

// failing tells whether the last work failed.
func (w *worker) failing() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lastError != ""
}

// failedOf tells whether the last work failed of the same, whatever IDs the runtime has given to what it then did not make.
func (w *worker) failedOf(err error) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return cri.WithoutIDs(w.lastError, "") == cri.WithoutIDs(err.Error(), "")
}
