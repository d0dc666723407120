package podworkers

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/cri"
)

// worker is the worker of one pod. It does one thing at a time, and keeps at most one update for later.
type worker struct {
	pool     *Pool
	uid      types.UID
	fullName types.NamespacedName
	// wake has room for one signal. The worker takes the pending update when it wakes.
	wake chan struct{}

	mu sync.Mutex
	// pending is the update that the worker has not begun with; nil if there is none.
	pending *Update
	// interrupt cancels the running work; nil while nothing runs.
	interrupt context.CancelFunc
	state     State
	// since is the time of the last change of the state.
	since     time.Time
	lastError string
	// waits is Wait.For after the last work.
	waits string

	// Only the worker's goroutine uses the following fields.

	// pod and end are the desired pod and its requested end, with all updates folded.
	pod *v1.Pod
	end *End
	// lastWrite is the boot time after the last call that may have changed the runtime. Earlier observations do not count.
	lastWrite time.Duration
	// away counts the consecutive failures because a service was unreachable.
	away int
	// left is true if the pod's ended containers were left in the runtime for its next life.
	left bool
	// looked is true after the first question to pleg.
	looked bool
	// looking is true while the running work is a periodic sync that has changed nothing so far.
	looking bool
	thread  thread
	// requestedAt is the time of the first request for the running work. measured is true after measureStart has recorded
	// the start of the pod, or has found that it was started before.
	requestedAt time.Time
	measured    bool
}

// deliver gives the worker an update. It cancels the running work if the pod is to end, or to end sooner.
func (w *worker) deliver(u Update) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if u.requestedAt.IsZero() {
		u.requestedAt = w.pool.cfg.Clock.Now()
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

// overtaken reports whether the pending update makes the running work pointless: the pod is to end while it is being
// synced, or to end sooner than the running kill ends it. The caller holds mu.
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

// take folds the pending update into pod and end, and returns its cause; ok is false if there is none.
func (w *worker) take() (Cause, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pending == nil {
		return Cause{}, false
	}
	u := Fold(Update{Pod: w.pod, End: w.end}, *w.pending)
	w.pending, w.pod, w.end, w.requestedAt = nil, u.Pod, u.End, u.requestedAt
	if w.end != nil {
		w.move(InputEnd)
	}
	return u.Cause, true
}

// move enters the state after an input. The caller holds mu.
func (w *worker) move(in Input) {
	next, ok := Next(w.state, in)
	if !ok {
		w.pool.cfg.Logger.Error("ignoring an input that cannot occur in the state of the worker",
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

// step works until the worker has to wait, and schedules its next work.
func (w *worker) step(process context.Context, cause Cause) {
	w.pool.due.Clear(w.uid)
	for {
		operation := w.operation(cause)
		out := w.work(process, cause)
		if now := w.pool.cfg.Clock.Now(); !out.skipped {
			w.pool.cfg.Metrics.worked(operation, now.Sub(w.requestedAt))
			w.requestedAt = now
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

// work does the work of the current state.
func (w *worker) work(process context.Context, cause Cause) outcome {
	ctx, cancel := context.WithCancel(process)
	defer cancel()
	w.mu.Lock()
	state := w.state
	w.interrupt = cancel
	if w.overtaken() {
		cancel() // the update came between two pieces of work, when there was nothing to cancel
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

// settle records the outcome of a piece of work, and reports whether the next piece follows at once.
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

// ending reports whether the pod is being ended, or is about to be.
func (w *worker) ending() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state > Syncing || (w.pending != nil && w.pending.End != nil)
}

// leaving reports whether the worker ends its pod for good, so that the pod needs a new worker if it comes back.
func (w *worker) leaving() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return (w.end != nil && w.end.Removed) || (w.pending != nil && w.pending.End != nil && w.pending.End.Removed)
}

// failing reports whether the last work failed.
func (w *worker) failing() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lastError != ""
}

// failedOf reports whether the last work failed with the same error, apart from IDs of objects in the runtime.
func (w *worker) failedOf(err error) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return cri.WithoutIDs(w.lastError, "") == cri.WithoutIDs(err.Error(), "")
}
