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

// Eviction is the reason why the node ended or rejected a pod.
type Eviction struct {
	// Reason is one word, the pod's status.reason.
	Reason string `json:"reason"`
	// Message is a sentence, the pod's status.message.
	Message string `json:"message"`
	// Disruption is the message of the condition DisruptionTarget, which shows that the node ended a healthy pod; empty if
	// the cause is the pod itself.
	Disruption string `json:"disruption,omitempty"`
	// At is the time of that decision; zero if Disruption is empty.
	At time.Time `json:"at,omitzero"`
	// Boot is the boot of the machine that the eviction is valid for; empty if it is valid for every boot.
	Boot string `json:"boot,omitempty"`
	// Discard is true if the ended containers are removed as soon as the pod has ended, to free disk space.
	Discard bool `json:"discard,omitempty"`
	// Last is the last status of a pod whose ended containers are removed; nil while they are kept. A restarted process
	// takes the statuses of the containers from it. An Eviction with Last and without a Reason is a pod that ran to its
	// end.
	Last *v1.PodStatus `json:"last,omitempty"`
}

// apply puts an eviction into a status. Begun is false for a pod that was never admitted; it has no container statuses.
func (e *Eviction) apply(pod *v1.Pod, status *v1.PodStatus, begun bool) {
	if e.Last != nil && e.Reason == "" {
		return // the pod ran to its end
	}
	status.Phase, status.Reason, status.Message = v1.PodFailed, e.Reason, e.Message
	if !begun {
		status.InitContainerStatuses, status.ContainerStatuses, status.EphemeralContainerStatuses = nil, nil, nil
	}
	if e.Disruption == "" {
		return
	}
	status.Conditions = slices.DeleteFunc(slices.Clone(status.Conditions), func(c v1.PodCondition) bool {
		return c.Type == v1.DisruptionTarget
	})
	status.Conditions = append(status.Conditions, v1.PodCondition{
		Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonTerminationByKubelet, Message: e.Disruption,
		LastTransitionTime: metav1.NewTime(e.At).Rfc3339Copy(), ObservedGeneration: pod.Generation,
	})
}

// IsGone reports whether a pod runs nothing and has released its resources. It is also true for a pod that the store
// does not have, and for one that was never started.
func (s *Store) IsGone(uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[uid]
	return e == nil || e.released || !s.begun(e)
}

// HasBegun reports whether a pod has had a worker, or a sandbox or a container of it was observed in the runtime.
func (s *Store) HasBegun(uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[uid]
	return e != nil && s.begun(e)
}

// begun is HasBegun. The caller holds mu.
func (s *Store) begun(e *entry) bool { return e.worked || !isEmpty(s.observed[e.pod.UID]) }

// Ended returns the last status of a pod that its source still names, that has ended for good and that has released its
// resources. Ok is false for every other pod, for one that pleg cannot inspect, and for one whose eviction is valid for
// this boot only. Evicted is true if the ended containers of the pod may be discarded, static if the pod is not from an
// API server.
func (s *Store) Ended(uid types.UID) (last *v1.PodStatus, evicted, static, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, observed := s.entries[uid], s.observed[uid]
	if !s.open || e == nil || !e.desired || e.state != podworkers.Terminated || !e.released ||
		observed.GetInspectError() != "" || seen.AnyAlive(observed) {
		return nil, false, false, false
	}
	if phase := e.status.Phase; (phase != v1.PodSucceeded && phase != v1.PodFailed) ||
		(e.eviction != nil && e.eviction.Boot != "") {
		return nil, false, false, false
	}
	return e.status.DeepCopy(), e.eviction != nil && e.eviction.Discard, podset.IsStaticSource(e.source), true
}

// SetLast keeps the last status of a pod for which Ended returned ok, because its containers are about to be removed.
func (s *Store) SetLast(uid types.UID, last *v1.PodStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[uid]; e != nil && e.state == podworkers.Terminated {
		e.last = last
	}
}

// keepLast copies the kept container statuses of a pod, if there are any, into its status.
func (e *entry) keepLast(status *v1.PodStatus) {
	if e.last != nil {
		status.InitContainerStatuses, status.ContainerStatuses = e.last.InitContainerStatuses, e.last.ContainerStatuses
		status.EphemeralContainerStatuses = e.last.EphemeralContainerStatuses
	}
}

// endedBefore reports whether the pod had ended, or was evicted, before it had a worker. The status of such a pod
// changes when it gets a worker.
func (e *entry) endedBefore() bool {
	phase := e.pod.Status.Phase
	return e.eviction != nil || e.last != nil || phase == v1.PodFailed || phase == v1.PodSucceeded
}
