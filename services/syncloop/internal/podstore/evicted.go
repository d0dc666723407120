package podstore

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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
}

// apply puts an eviction into a status. Begun is false for a pod that was never let in: there is nothing to say of its containers.
func (e *Eviction) apply(pod *v1.Pod, status *v1.PodStatus, begun bool) {
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
