package podstore

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
)

// Active returns those of Pods that have, or are to be given, something of the node: all but the ones that were refused or have run to
// their end, and of those the ones that are still being ended, too. It fails with NotReadyError.
func (s *Store) Active() ([]*v1.Pod, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting != "" {
		return nil, &NotReadyError{Reason: s.waiting}
	}
	var pods []*v1.Pod
	for _, e := range s.entries {
		if e.desired && (e.isActive() || e.state == podworkers.Terminating) {
			pods = append(pods, withStatus(e))
		}
	}
	slices.SortFunc(pods, byName)
	return pods, nil
}
