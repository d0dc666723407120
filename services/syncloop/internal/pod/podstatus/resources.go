package podstatus

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
)

// leastQuota is the cpu limit, in thousandths, of the kernel's smallest quota. Smaller limits have that quota.
const leastQuota = 10

// containerResources returns the resources of a container: those that the runtime reports while it runs, and otherwise
// the allocated ones. Resources other than cpu and memory are always the allocated ones. old is the status before, or
// nil.
func (g *generation) containerResources(
	c *v1.Container, made *lifecyclev1.Container, old *v1.ContainerStatus,
) *v1.ResourceRequirements {
	out := c.Resources.DeepCopy()
	if !podview.Running(made) {
		return out
	}
	before := &v1.ResourceRequirements{}
	if old != nil && old.State.Running != nil && old.ContainerID == g.id(made) && old.Resources != nil {
		before = old.Resources
	}
	has := seenOf(made.GetResources())
	if out.Limits != nil {
		put(out.Limits, v1.ResourceCPU, has.cpuLimit, before.Limits, leastQuota)
		put(out.Limits, v1.ResourceMemory, has.memoryLimit, before.Limits, 0)
	}
	if out.Requests != nil {
		if runs, known := g.in.Resize.Actuated.Of(made); known { // because the runtime does not know the memory request
			has.memoryRequest = bytesOf(runs.MemoryRequest)
		}
		put(out.Requests, v1.ResourceCPU, has.cpuRequest, before.Requests, resources.MinShares)
		put(out.Requests, v1.ResourceMemory, has.memoryRequest, before.Requests, 0)
	}
	return out
}

// seen has the observed amounts; nil for unknown ones.
type seen struct{ cpuRequest, cpuLimit, memoryRequest, memoryLimit *resource.Quantity }

func seenOf(r *lifecyclev1.LinuxResources) seen {
	return seen{
		cpuRequest:  milli(resources.MilliOfShares(uint64(max(r.GetCpuShares(), 0)))),
		cpuLimit:    milli(resources.MilliOfQuota(r.GetCpuQuota(), r.GetCpuPeriod())),
		memoryLimit: bytesOf(r.GetMemoryLimitInBytes()),
	}
}

func milli(n int64) *resource.Quantity {
	if n <= 0 {
		return nil
	}
	return resource.NewMilliQuantity(n, resource.DecimalSI)
}

func bytesOf(n int64) *resource.Quantity {
	if n <= 0 {
		return nil
	}
	return resource.NewQuantity(n, resource.BinarySI)
}

// put puts the observed amount of a resource into a list, or else the amount of the status before. The kernel does not
// distinguish amounts up to minimum, so that the allocated amount stays.
func put(list v1.ResourceList, name v1.ResourceName, seen *resource.Quantity, before v1.ResourceList, minimum int64) {
	allocated := list[name]
	switch previous, ok := before[name]; {
	case seen != nil && seen.Cmp(allocated) == 0: // keep the notation of the spec
	case seen != nil:
		if minimum == 0 || seen.MilliValue() > minimum || allocated.MilliValue() > minimum {
			list[name] = *seen
		}
	case ok:
		list[name] = previous.DeepCopy()
	}
}

// podResources returns the resources of the pod as a whole: those of its cgroup while it runs, and otherwise the
// allocated ones. On a node without pod cgroups, a new allocation counts when the resize is done.
func (g *generation) podResources(phase v1.PodPhase) (has *v1.ResourceRequirements, allocated v1.ResourceList) {
	options := resourcehelper.PodResourcesOptions{}
	allocated = resourcehelper.PodRequests(g.pod, options)
	if before := &g.in.Previous; phase == v1.PodRunning && g.in.Cgroup == nil &&
		g.in.Resize.Conditions.InProgress != nil && before.Resources != nil {
		return before.Resources.DeepCopy(), allocated
	}
	if has = g.pod.Spec.Resources.DeepCopy(); has == nil {
		has = &v1.ResourceRequirements{}
	}
	if phase != v1.PodRunning || g.in.Cgroup == nil {
		has.Requests, has.Limits = allocated.DeepCopy(), resourcehelper.PodLimits(g.pod, options)
		return has, allocated
	}
	if has.Requests == nil {
		has.Requests = v1.ResourceList{}
	}
	if has.Limits == nil {
		has.Limits = v1.ResourceList{}
	}
	r := g.in.Cgroup
	cgroup := seenOf(&lifecyclev1.LinuxResources{
		CpuShares: int64(r.CPUShares), CpuQuota: r.CPUQuota, CpuPeriod: int64(r.CPUPeriod), MemoryLimitInBytes: r.Memory, //nolint:gosec // they are small
	})
	// The weight of cgroup v2 is coarser than a request.
	if request := has.Requests.Cpu(); !request.IsZero() &&
		resources.SharesOf(resources.Weight(resources.Shares(request.MilliValue()))) == r.CPUShares {
		cgroup.cpuRequest = request
	}
	put(has.Requests, v1.ResourceCPU, cgroup.cpuRequest, nil, resources.MinShares)
	if _, ok := has.Requests[v1.ResourceMemory]; !ok {
		if memory, found := allocated[v1.ResourceMemory]; found {
			has.Requests[v1.ResourceMemory] = memory.DeepCopy()
		}
	}
	put(has.Limits, v1.ResourceCPU, cgroup.cpuLimit, nil, leastQuota)
	put(has.Limits, v1.ResourceMemory, cgroup.memoryLimit, nil, 0)
	return has, allocated
}
