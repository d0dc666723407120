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

// AmountsOf are those of a container. A limit that it does not have is that of its pod as a whole, which may be nil.
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

// OfPod are the amounts of a pod as a whole; none for a pod without.
func OfPod(pod *v1.ResourceRequirements) Amounts {
	if pod == nil {
		return Amounts{}
	}
	return AmountsOf(nil, *pod)
}

// Requirements are the amounts as requests and limits. What is 0 is there, too, as a kubelet has it: a limit of 0 is none.
func (a Amounts) Requirements() v1.ResourceRequirements {
	list := func(cpu, memory int64) v1.ResourceList {
		return v1.ResourceList{
			v1.ResourceCPU: *resource.NewMilliQuantity(cpu, resource.DecimalSI), v1.ResourceMemory: *resource.NewQuantity(memory, resource.BinarySI),
		}
	}
	return v1.ResourceRequirements{Requests: list(a.CPURequest, a.MemoryRequest), Limits: list(a.CPULimit, a.MemoryLimit)}
}

// WithMemory and WithCPU return the amounts with those of another one for one resource.
func (a Amounts) WithMemory(of Amounts) Amounts {
	a.MemoryRequest, a.MemoryLimit = of.MemoryRequest, of.MemoryLimit
	return a
}

// WithCPU is like WithMemory, of cpu.
func (a Amounts) WithCPU(of Amounts) Amounts {
	a.CPURequest, a.CPULimit = of.CPURequest, of.CPULimit
	return a
}

// Actuated is what was changed of a pod while it ran. What is not in it is as it was made.
type Actuated struct {
	// Pod is what the pod as a whole has; nil when that was not changed.
	Pod *Amounts `json:"pod,omitempty"`
	// Containers has what containers have, by their ID in the runtime.
	Containers map[string]Amounts `json:"containers,omitempty"`
}

// Of is what a container runs with; not ok when that is not known: it was made by something that does not say.
func (a Actuated) Of(c *lifecyclev1.Container) (Amounts, bool) {
	if has, ok := a.Containers[c.GetId()]; ok {
		return has, true
	}
	made, ok := podlabels.ResourcesOf(c.GetAnnotations())
	return AmountsOf(podlabels.PodResourcesOf(c.GetAnnotations()), made), ok
}

// OfPod is what a pod as a whole has. What is not known of it counts as what is allocated.
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

// Note notes what a container has, and drops the containers that the runtime does not have any more.
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

// InProgress tells whether a pod that is given with what is allocated to it runs with something else. What does not run has what is
// allocated when it is started.
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
	return podview.Sandbox(status) != nil && actuated.OfPod(pod, status) != OfPod(pod.Spec.Resources)
}
