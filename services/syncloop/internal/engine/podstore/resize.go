package podstore

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resize"
)

// Resizes has the records of resized pods; *resizes.Book implements it. It is called with the store's lock held.
type Resizes interface {
	Get(uid types.UID) (record resize.Record, ok bool)
}

// SetUndecided is like SetPod, for a version of a pod whose resize is not decided yet. Until Decide or SetPod is
// called, the status keeps the observedGeneration of the version before it, because clients take a resize without a
// condition for done.
func (s *Store) SetUndecided(pod *v1.Pod, source, traceparent string) {
	s.setPod(pod, source, traceparent, true)
}

// Decide notes that the resize of a pod is decided.
func (s *Store) Decide(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[uid]; e != nil && e.undecided {
		e.undecided = false
		s.compute(uid, false)
	}
}

// Resized computes the status of a pod again, because the record of its resize has changed.
func (s *Store) Resized(uid types.UID) { s.Refresh(uid) }

// Refresh computes the status of a pod again, because something that its configuration names has changed, such as the
// health of its volumes.
func (s *Store) Refresh(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.entries[uid] != nil {
		s.compute(uid, false)
	}
}

// Status returns the status that was computed for a pod last; it must not be changed.
func (s *Store) Status(uid types.UID) v1.PodStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[uid]; e != nil {
		return e.status
	}
	return v1.PodStatus{}
}
