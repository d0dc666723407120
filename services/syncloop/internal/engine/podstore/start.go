package podstore

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/phases"
)

// start follows a pod to its first Ready, so that its start can be measured.
type start struct {
	// followed is true for a pod that was not in the runtime when its status was first computed. The start of any other
	// pod cannot be measured, because it began before this process.
	followed bool
	// running, started and ready are true once the phase was Running, all containers ran, and the pod was ready.
	running, started, ready bool
}

// IsNew reports whether no sandbox and no container of a pod was observed in the runtime.
func (s *Store) IsNew(uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return isEmpty(s.observed[uid])
}

// measure updates the metrics with the progress of a pod in the status that was just computed. Called with mu held.
func (s *Store) measure(e *entry, before *v1.PodStatus, observed *lifecyclev1.PodStatus) {
	if before.Phase == "" {
		e.start.followed = isEmpty(observed)
		return
	}
	s.cfg.Metrics.statusChanged(before, &e.status)
	if !e.start.followed || e.start.ready {
		return
	}
	now, seen := s.cfg.Clock.Now(), podset.Seen(e.pod)
	if seen.IsZero() {
		return
	}
	if !e.start.running && e.status.Phase == v1.PodRunning {
		e.start.running = true
		s.cfg.Metrics.running(now.Sub(seen))
	}
	if !e.start.started && allRun(&e.status) {
		e.start.started = true
		s.cfg.Metrics.started(withStatus(e, e.status), s.cfg.Phases.TakePulls(e.pod.UID), now)
	}
	if isReady(&e.status) {
		e.start.ready = true
		at := observed.GetObservedAt().AsTime()
		observe, ready := at.Sub(lastStart(observed)), now.Sub(at)
		s.cfg.Metrics.podReady(now.Sub(seen))
		s.cfg.Phases.Passed(e.pod.UID, "", phases.Observe, at, observe)
		s.cfg.Phases.Passed(e.pod.UID, "", phases.Ready, now, ready)
	}
}

// allRun reports whether all ordinary containers of a pod run.
func allRun(status *v1.PodStatus) bool {
	for _, c := range status.ContainerStatuses {
		if c.State.Running == nil {
			return false
		}
	}
	return len(status.ContainerStatuses) > 0
}

// lastStart returns the latest start time of the running containers.
func lastStart(observed *lifecyclev1.PodStatus) time.Time {
	var last time.Time
	for _, c := range observed.GetContainers() {
		at := c.GetStartedAt().AsTime()
		if c.GetState() == lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING && at.After(last) {
			last = at
		}
	}
	return last
}
