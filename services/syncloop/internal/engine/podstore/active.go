package podstore

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
)

// Active returns those of Pods that use, or are about to use, resources of the node: all except pods that were rejected
// or have ended. A rejected or ended pod that is still terminating counts as active. It fails with NotReadyError.
func (s *Store) Active() ([]*v1.Pod, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting != "" {
		return nil, &NotReadyError{Reason: s.waiting}
	}
	var pods []*v1.Pod
	for _, e := range s.entries {
		if e.desired && (e.isActive() || e.state == podworkers.Terminating) {
			pods = append(pods, withStatus(e, e.status))
		}
	}
	slices.SortFunc(pods, byName)
	return pods, nil
}
