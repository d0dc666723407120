package podworkers

import (
	"time"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/phases"
)

// Census counts the workers now.
func (p *Pool) Census() Census {
	p.mu.Lock()
	defer p.mu.Unlock()
	census := Census{States: map[string]int{Syncing.String(): 0, Terminating.String(): 0, Terminated.String(): 0}}
	for _, w := range p.workers {
		w.count(&census)
	}
	for _, queue := range p.waiting {
		census.Queued += len(queue)
	}
	return census
}

func (w *worker) count(census *Census) {
	w.mu.Lock()
	defer w.mu.Unlock()
	state := w.state
	if state == Gone { // it is about to be removed from the pool
		state = Terminated
	}
	census.States[state.String()]++
	if w.interrupt != nil {
		census.Busy++
	}
	if w.lastError != "" {
		census.Failing++
	}
	if w.pending != nil {
		census.Pending++
	}
}

// operation returns the kubelet's name for the next work of the worker.
func (w *worker) operation(cause Cause) operation {
	switch {
	case w.state == Terminating:
		return operationKill
	case w.state >= Terminated:
		return operationTerminated
	case !w.measured:
		return operationCreate
	case cause.Kind == CauseConfig:
		return operationUpdate
	default:
		return operationSync
	}
}

// measureStart records the time until the pod's start begins: once, while the runtime has nothing of the pod.
func (w *worker) measureStart(begun time.Time, observed *lifecyclev1.PodStatus) {
	if w.measured {
		return
	}
	w.measured = true
	seen := podset.Seen(w.pod)
	if len(observed.GetSandboxes()) == 0 && len(observed.GetContainers()) == 0 && !seen.IsZero() {
		w.pool.cfg.Metrics.started(begun.Sub(seen))
		w.pool.cfg.Phases.Passed(w.uid, "", phases.Dispatch, w.requestedAt, w.requestedAt.Sub(seen))
		w.pool.cfg.Phases.Passed(w.uid, "", phases.Wait, begun, begun.Sub(w.requestedAt))
	}
}
