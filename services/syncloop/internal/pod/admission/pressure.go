package admission

import (
	"fmt"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/kubectl/pkg/util/qos"

	"github.com/quartet-node/quartet/internal/podset"
)

// systemCritical is the lowest priority of critical pods: that of system-cluster-critical.
const systemCritical = 2_000_000_000

// IsCritical reports whether a pod is critical: static pods, which no controller replaces, their mirror pods, and those
// with a system priority.
func IsCritical(pod *v1.Pod, static bool) bool {
	_, mirror := pod.Annotations[podset.AnnotationMirror]
	return static || mirror || HasCriticalPriority(pod)
}

// HasCriticalPriority reports whether a pod has a system priority.
func HasCriticalPriority(pod *v1.Pod) bool {
	return pod.Spec.Priority != nil && *pod.Spec.Priority >= systemCritical
}

// pressure refuses pods while the node is under pressure: all except critical ones for disk and processes, and for
// memory those that request none, unless they tolerate it.
func pressure(r Request) *Refusal {
	if r.Node == nil || r.Critical {
		return nil
	}
	var pressing []v1.NodeConditionType
	for _, condition := range r.Node.Status.Conditions {
		switch condition.Type { //nolint:exhaustive // others are no pressure
		case v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure:
			if condition.Status == v1.ConditionTrue {
				pressing = append(pressing, condition.Type)
			}
		}
	}
	if len(pressing) == 0 {
		return nil
	}
	if len(pressing) == 1 && pressing[0] == v1.NodeMemoryPressure {
		taint := &v1.Taint{Key: v1.TaintNodeMemoryPressure, Effect: v1.TaintEffectNoSchedule}
		if qos.GetPodQOS(r.Pod) != v1.PodQOSBestEffort ||
			corev1helpers.TolerationsTolerateTaint(logr.Discard(), r.Pod.Spec.Tolerations, taint, true) {
			return nil
		}
	}
	return &Refusal{Reason: ReasonPressure, Message: fmt.Sprintf("The node had condition: %v. ", pressing)}
}
