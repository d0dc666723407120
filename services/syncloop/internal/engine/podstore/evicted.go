package podstore

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
	seen "github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
)

// Eviction is why a pod was ended by the node.
type Eviction struct {
	// Reason is one word, the pod's status.reason.
	Reason string `json:"reason"`
	// Message is a sentence, the pod's status.message.
	Message string `json:"message"`
	// Disruption is the message of the condition DisruptionTarget, which says that the pod was well and had to make room; empty for a pod
	// that is ended for something of its own.
	Disruption string `json:"disruption,omitempty"`
	// At is when that was decided; zero where Disruption is empty.
	At time.Time `json:"at,omitzero"`
	// Boot is the boot of the machine that this counts for; empty for one that counts for ever.
	Boot string `json:"boot,omitempty"`
	// Discard is true for a pod whose ended containers are removed as soon as it has ended, so that they free the disk.
	Discard bool `json:"discard,omitempty"`
	// Last is the last status of a pod whose ended containers are removed; nil while they are kept. A restarted process takes the
	// statuses of the containers from it. With Last and without a Reason the pod ran to its end by itself.
	Last *v1.PodStatus `json:"last,omitempty"`
}

// apply puts an eviction into a status. Begun is false for a pod that was never let in: there is nothing to say of its containers.
func (e *Eviction) apply(pod *v1.Pod, status *v1.PodStatus, begun bool) {
	if e.Last != nil && e.Reason == "" {
		return // it ran to its end
	}
	status.Phase, status.Reason, status.Message = v1.PodFailed, e.Reason, e.Message
	if !begun {
		status.InitContainerStatuses, status.ContainerStatuses, status.EphemeralContainerStatuses = nil, nil, nil
	}
	if e.Disruption == "" {
		return
	}
	status.Conditions = slices.DeleteFunc(slices.Clone(status.Conditions), func(c v1.PodCondition) bool { return c.Type == v1.DisruptionTarget })
	status.Conditions = append(status.Conditions, v1.PodCondition{
		Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonTerminationByKubelet, Message: e.Disruption,
		LastTransitionTime: metav1.NewTime(e.At).Rfc3339Copy(), ObservedGeneration: pod.Generation,
	})
}

// IsGone tells whether nothing of a pod is left: nothing of it runs, and what it held of the machine is given back. So is one that
// the store does not have, and one that was never begun.
func (s *Store) IsGone(uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[uid]
	return e == nil || e.released || (!e.worked && isEmpty(s.observed[uid]))
}

// Ended returns the last status of a pod that is still named by its source, has ended for good and has given back what it held of the
// machine. It returns false for every other pod, for one that pleg cannot inspect, and for one whose end counts for this boot only.
// Evicted tells whether the ended containers of the pod are of no use at all, and static whether the pod is from another source than an
// API server.
func (s *Store) Ended(uid types.UID) (last *v1.PodStatus, evicted, static, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, observed := s.entries[uid], s.observed[uid]
	if !s.open || e == nil || !e.desired || e.state != podworkers.Terminated || !e.released || observed.GetInspectError() != "" || seen.AnyAlive(observed) {
		return nil, false, false, false
	}
	if phase := e.status.Phase; (phase != v1.PodSucceeded && phase != v1.PodFailed) || (e.eviction != nil && e.eviction.Boot != "") {
		return nil, false, false, false
	}
	return e.status.DeepCopy(), e.eviction != nil && e.eviction.Discard, podset.IsStaticSource(e.source), true
}

// SetLast keeps the statuses of the containers of a pod for which Ended holds, because its containers are about to be removed.
func (s *Store) SetLast(uid types.UID, last *v1.PodStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[uid]; e != nil && e.state == podworkers.Terminated {
		e.last = last
	}
}

// keepLast puts what is kept of a pod's containers into its status.
func (e *entry) keepLast(status *v1.PodStatus) {
	if e.last != nil {
		status.InitContainerStatuses, status.ContainerStatuses = e.last.InitContainerStatuses, e.last.ContainerStatuses
		status.EphemeralContainerStatuses = e.last.EphemeralContainerStatuses
	}
}

// endedBefore reports whether the pod had ended, or was evicted, before it had a worker. Its status then changes when it
// gets one.
func (e *entry) endedBefore() bool {
	phase := e.pod.Status.Phase
	return e.eviction != nil || e.last != nil || phase == v1.PodFailed || phase == v1.PodSucceeded
}
