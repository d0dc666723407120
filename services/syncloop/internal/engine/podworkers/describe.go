package podworkers

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/types"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
)

// List returns the activity of each worker, sorted by namespace, name and UID. A pod that waits for the end of another
// one is listed as pending.
func (p *Pool) List() []*enginev1.Worker {
	list := p.describe()
	now, boot := p.cfg.Clock.Now(), p.cfg.BootTime()
	for _, w := range list {
		// The pool's lock is not held, because the book may be writing to disk.
		if deadline, ok := p.cfg.Endings.Deadline(types.UID(w.GetPodUid())); ok &&
			w.GetState() == enginev1.WorkerState_WORKER_STATE_TERMINATING {
			w.TerminateBy = timestamppb.New(now.Add(deadline - boot))
		}
		w.Phases = p.cfg.Phases.Of(types.UID(w.GetPodUid()))
		if p.cfg.Volumes != nil && mayWaitForVolumes(w) {
			w.WaitsFor = cmp.Or(volumesWait(p.cfg.Volumes(types.UID(w.GetPodUid())), w.GetState()), w.GetWaitsFor())
		}
	}
	slices.SortFunc(list, func(a, b *enginev1.Worker) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()),
			cmp.Compare(a.GetPodUid(), b.GetPodUid()))
	})
	return list
}

// describe returns what the pool itself knows of each worker, and of the queued pods without one.
func (p *Pool) describe() []*enginev1.Worker {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := make([]*enginev1.Worker, 0, len(p.workers))
	byUID := make(map[types.UID]*enginev1.Worker, len(p.workers))
	for _, w := range p.workers {
		one := w.describe()
		if at, ok := p.due.At(w.uid); ok {
			one.NextSyncAt = timestamppb.New(at)
		}
		list, byUID[w.uid] = append(list, one), one
	}
	for name, queue := range p.waiting {
		for _, waiting := range queue {
			if earlier := byUID[waiting.uid]; earlier != nil {
				earlier.Pending = true // the queued update is its next life
				continue
			}
			behind := p.names[name]
			list = append(list, &enginev1.Worker{
				PodUid: string(waiting.uid), Namespace: name.Namespace, Name: name.Name,
				State: enginev1.WorkerState_WORKER_STATE_SYNCING, Pending: true,
				BehindPodUid: string(behind), WaitsFor: WaitOf(Facts{Behind: behind}).For,
			})
		}
	}
	return list
}

// describe returns the state of the worker.
func (w *worker) describe() *enginev1.Worker {
	w.mu.Lock()
	defer w.mu.Unlock()
	return &enginev1.Worker{
		PodUid: string(w.uid), Namespace: w.fullName.Namespace, Name: w.fullName.Name, State: w.state.Proto(),
		StateSince: timestamppb.New(w.since), Busy: w.interrupt != nil, Pending: w.pending != nil, LastError: w.lastError,
		WaitsFor: w.waits,
	}
}

// Proto returns the state in the words of EngineService. A pod that is gone is not listed.
func (s State) Proto() enginev1.WorkerState {
	switch s {
	case Syncing:
		return enginev1.WorkerState_WORKER_STATE_SYNCING
	case Terminating:
		return enginev1.WorkerState_WORKER_STATE_TERMINATING
	case Terminated, Gone:
		return enginev1.WorkerState_WORKER_STATE_TERMINATED
	default:
		return enginev1.WorkerState_WORKER_STATE_UNSPECIFIED
	}
}
