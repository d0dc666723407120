package resize

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/kubectl/pkg/util/qos"
)

// policyStatic is the policy of a CPU or memory manager that gives pods processors or memory of their own.
const policyStatic = "static"

// Node is what of a node decides whether it can resize a pod at all.
type Node struct {
	// CPUManager and MemoryManager are cpuManagerPolicy and memoryManagerPolicy of the KubeletConfiguration.
	CPUManager, MemoryManager string
	// PodLevel is true when the resources of a pod as a whole can be changed.
	PodLevel bool
	// Swaps tells whether a container of a pod may swap; nil is a node that does not swap.
	Swaps func(pod *v1.Pod, c *v1.Container) bool
}

// Refusal is why a resize is never done on this node. The words are the kubelet's.
type Refusal struct {
	// Message is a sentence, Detail the word for it that is counted.
	Message, Detail string
}

// Infeasible returns why a pod cannot be resized to what is wanted, whatever room there is; nil when it can.
func Infeasible(wanted, allocated *v1.Pod, node Node) *Refusal {
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

// swapping tells whether a container whose requested memory changes swaps, or would. How much it may swap depends on its request, and
// that is not changed while it runs.
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
		if !ok || has.Resources.Requests.Memory().Equal(*c.Resources.Requests.Memory()) || NeedsRestart(has, Amounts{MemoryRequest: 1}, Amounts{}) {
			continue
		}
		if node.Swaps(wanted, c) || node.Swaps(allocated, has) {
			return true
		}
	}
	return false
}

// requestChanges tells whether any container is to request another amount of a resource. Of a guaranteed pod that is its limit, too.
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
