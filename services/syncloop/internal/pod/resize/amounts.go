package resize

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
)

// Amounts are requests and limits of cpu, in thousandths of a processor, and of memory, in bytes; 0 for none.
type Amounts struct {
	CPURequest    int64 `json:"cpuRequest,omitempty"`
	CPULimit      int64 `json:"cpuLimit,omitempty"`
	MemoryRequest int64 `json:"memoryRequest,omitempty"`
	MemoryLimit   int64 `json:"memoryLimit,omitempty"`
}

// AmountsOf returns the amounts of a container. A container without a limit has the pod-level limit, if there is one;
// pod may be nil.
func AmountsOf(pod *v1.ResourceRequirements, c v1.ResourceRequirements) Amounts {
	limit := func(name v1.ResourceName) resource.Quantity {
		if quantity, ok := c.Limits[name]; ok || pod == nil {
			return quantity
		}
		return pod.Limits[name]
	}
	cpu, memory := limit(v1.ResourceCPU), limit(v1.ResourceMemory)
	return Amounts{
		CPURequest: c.Requests.Cpu().MilliValue(), CPULimit: cpu.MilliValue(),
		MemoryRequest: c.Requests.Memory().Value(), MemoryLimit: memory.Value(),
	}
}

// OfPod returns the amounts of pod-level resources; zero for a pod without.
func OfPod(pod *v1.ResourceRequirements) Amounts {
	if pod == nil {
		return Amounts{}
	}
	return AmountsOf(nil, *pod)
}

// Requirements returns the amounts as requests and limits. Zero amounts are included, as in a kubelet: a limit of 0 is
// none.
func (a Amounts) Requirements() v1.ResourceRequirements {
	list := func(cpu, memory int64) v1.ResourceList {
		return v1.ResourceList{
			v1.ResourceCPU:    *resource.NewMilliQuantity(cpu, resource.DecimalSI),
			v1.ResourceMemory: *resource.NewQuantity(memory, resource.BinarySI),
		}
	}
	return v1.ResourceRequirements{Requests: list(a.CPURequest, a.MemoryRequest), Limits: list(a.CPULimit, a.MemoryLimit)}
}

// WithMemory returns the amounts with the memory of another one.
func (a Amounts) WithMemory(of Amounts) Amounts {
	a.MemoryRequest, a.MemoryLimit = of.MemoryRequest, of.MemoryLimit
	return a
}

// WithCPU returns the amounts with the cpu of another one.
func (a Amounts) WithCPU(of Amounts) Amounts {
	a.CPURequest, a.CPULimit = of.CPURequest, of.CPULimit
	return a
}

// Actuated has the changes of a running pod. What is not in it is as it was created.
type Actuated struct {
	// Unfinished is true from a new allocation until the pod's cgroup and all running containers have it.
	Unfinished bool `json:"unfinished,omitempty"`
	// Pod has the pod-level amounts; nil if they were not changed.
	Pod *Amounts `json:"pod,omitempty"`
	// Containers has the amounts of containers by their ID in the runtime.
	Containers map[string]Amounts `json:"containers,omitempty"`
}

// Of returns the amounts that a container runs with. ok is false if they are not known, because the creator of the
// container has not recorded them.
func (a Actuated) Of(c *lifecyclev1.Container) (Amounts, bool) {
	if has, ok := a.Containers[c.GetId()]; ok {
		return has, true
	}
	made, ok := podlabels.ResourcesOf(c.GetAnnotations())
	return AmountsOf(podlabels.PodResourcesOf(c.GetAnnotations()), made), ok
}

// OfPod returns the pod-level amounts that a pod runs with. Unknown ones count as those that are allocated.
func (a Actuated) OfPod(allocated *v1.Pod, status *lifecyclev1.PodStatus) Amounts {
	if a.Pod != nil {
		return *a.Pod
	}
	annotations := podview.Sandbox(status).GetAnnotations()
	if made := podlabels.PodResourcesOf(annotations); made != nil {
		return OfPod(made)
	}
	if _, said := podlabels.AllResourcesOf(annotations); said {
		return Amounts{}
	}
	return OfPod(allocated.Spec.Resources)
}

// Note records the amounts of a container, and drops the containers that the runtime does not have any more.
func (a *Actuated) Note(status *lifecyclev1.PodStatus, id string, has Amounts) {
	for _, known := range sortedNames(a.Containers) {
		if !slices.ContainsFunc(status.GetContainers(), func(c *lifecyclev1.Container) bool { return c.GetId() == known }) {
			delete(a.Containers, known)
		}
	}
	if a.Containers == nil {
		a.Containers = map[string]Amounts{}
	}
	a.Containers[id] = has
}

// InProgress reports whether a pod, which is given with its allocated resources, runs with others. A container that
// does not run gets the allocated resources when it starts.
func InProgress(pod *v1.Pod, status *lifecyclev1.PodStatus, actuated Actuated) bool {
	for c := range containers(&pod.Spec) {
		latest := podview.Latest(status, c.Name)
		if !podview.Running(latest) {
			continue
		}
		if has, ok := actuated.Of(latest); ok && has != AmountsOf(pod.Spec.Resources, c.Resources) {
			return true
		}
	}
	if podview.Sandbox(status) == nil {
		return false
	}
	return actuated.Unfinished || actuated.OfPod(pod, status) != OfPod(pod.Spec.Resources)
}
