package resize

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/kubectl/pkg/util/qos"
)

// policyStatic is the policy of a CPU manager that assigns processors to pods exclusively.
const policyStatic = "static"

// Node has the properties of a node that make resizes infeasible.
type Node struct {
	// CPUManager and MemoryManager are cpuManagerPolicy and memoryManagerPolicy of the KubeletConfiguration.
	CPUManager, MemoryManager string
	// PodLevel is true if pod-level resources can be changed.
	PodLevel bool
	// Swaps reports whether a container of a pod may swap; nil is a node without swap.
	Swaps func(pod *v1.Pod, c *v1.Container) bool
}

// Refusal is why a resize is infeasible, in the kubelet's words.
type Refusal struct {
	// Message is for the condition, Detail a label of a metric.
	Message, Detail string
}

// Infeasible returns why this node can never resize a pod as wanted; nil if it can.
func Infeasible(wanted, allocated *v1.Pod, node Node) *Refusal {
	if refusal := refusedByServer(wanted, allocated); refusal != nil {
		return refusal
	}
	if swapping(wanted, allocated, node) {
		return &Refusal{Message: "In-place resize of containers with swap is not supported.", Detail: "swap_limitation"}
	}
	if !node.PodLevel && !same(wanted.Spec.Resources, allocated.Spec.Resources) {
		return &Refusal{Message: "InPlacePodLevelResourcesVerticalScaling is disabled", Detail: "plr_feature_gate_off"}
	}
	if qos.GetPodQOS(wanted) != v1.PodQOSGuaranteed {
		return nil
	}
	if node.CPUManager == policyStatic && requestChanges(wanted, allocated, v1.ResourceCPU) {
		return &Refusal{
			Message: fmt.Sprintf("Resize is infeasible for Guaranteed Pods alongside CPU Manager policy %q", node.CPUManager),
			Detail:  "guaranteed_pod_cpu_manager_static_policy",
		}
	}
	if node.MemoryManager == "Static" && requestChanges(wanted, allocated, v1.ResourceMemory) {
		return &Refusal{
			Message: fmt.Sprintf("Resize is infeasible for Guaranteed Pods alongside Memory Manager policy %q", node.MemoryManager),
			Detail:  "guaranteed_pod_memory_manager_static_policy",
		}
	}
	return nil
}

// refusedByServer returns why an API server would refuse a resize, in its words. Sources without one may ask for it.
// The cgroup of a pod is in that of its QoS class, and a limit of a running container is never removed.
func refusedByServer(wanted, allocated *v1.Pod) *Refusal {
	if qos.GetPodQOS(wanted) != qos.GetPodQOS(allocated) {
		return &Refusal{Message: "Pod QOS Class may not change as a result of resizing", Detail: "qos_class"}
	}
	had, wants := Of(allocated), Of(wanted)
	switch {
	case had.Pod == nil:
	case wants.Pod == nil:
		return &Refusal{Message: "pod-level resources cannot be removed", Detail: "limit_removed"}
	case removes(had.Pod.Limits, wants.Pod.Limits, nil):
		return &Refusal{Message: "pod-level resource limits cannot be removed", Detail: "limit_removed"}
	}
	for c := range containers(&wanted.Spec) {
		if before, ok := had.Containers[c.Name]; ok && removes(before.Limits, c.Resources.Limits, c) {
			return &Refusal{Message: "resource limits cannot be removed", Detail: "limit_removed"}
		}
	}
	return nil
}

// removes reports whether cpu or memory lose their limit in a container that is not restarted for that; c is nil for
// the pod as a whole.
func removes(had, wants v1.ResourceList, c *v1.Container) bool {
	lost := func(name v1.ResourceName) bool {
		before, after := had[name], wants[name]
		return !before.IsZero() && after.IsZero()
	}
	return lost(v1.ResourceCPU) && (c == nil || !NeedsRestart(c, Amounts{CPULimit: 1}, Amounts{})) ||
		lost(v1.ResourceMemory) && (c == nil || !NeedsRestart(c, Amounts{MemoryLimit: 1}, Amounts{}))
}

// swapping reports whether a container whose memory request changes may swap before or after. Its swap limit depends on
// the request and cannot be changed while it runs.
func swapping(wanted, allocated *v1.Pod, node Node) bool {
	if node.Swaps == nil {
		return false
	}
	before := map[string]*v1.Container{}
	for c := range containers(&allocated.Spec) {
		before[c.Name] = c
	}
	for c := range containers(&wanted.Spec) {
		has, ok := before[c.Name]
		if !ok || has.Resources.Requests.Memory().Equal(*c.Resources.Requests.Memory()) ||
			NeedsRestart(has, Amounts{MemoryRequest: 1}, Amounts{}) {
			continue
		}
		if node.Swaps(wanted, c) || node.Swaps(allocated, has) {
			return true
		}
	}
	return false
}

// requestChanges reports whether the request of any container for a resource changes. In a guaranteed pod that is also
// the limit.
func requestChanges(wanted, allocated *v1.Pod, name v1.ResourceName) bool {
	had := Of(allocated).Containers
	for c := range containers(&wanted.Spec) {
		asks, has := c.Resources.Requests[name], resource.Quantity{}
		if before, ok := had[c.Name]; ok {
			has = before.Requests[name]
		}
		if !asks.Equal(has) {
			return true
		}
	}
	return false
}
