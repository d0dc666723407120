package resize

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
)

// Recover returns the allocated resources of a pod without a record, which is a pod that was never resized: those that
// its sandbox and its newest containers were created with. Resources that are not in their annotations are as wanted.
func Recover(wanted *v1.Pod, status *lifecyclev1.PodStatus) Allocation {
	a := Of(wanted)
	sandbox := podview.Sandbox(status).GetAnnotations()
	if all, ok := podlabels.AllResourcesOf(sandbox); ok {
		a.Pod = podlabels.PodResourcesOf(sandbox)
		for name := range a.Containers {
			a.Containers[name] = all[name] // a container without resources is not in it
		}
	}
	for name := range a.Containers {
		made := podview.Latest(status, name).GetAnnotations()
		if has, ok := podlabels.ResourcesOf(made); ok {
			a.Containers[name] = has
		}
	}
	return a
}

// Rebuild is like Recover for a pod whose record was lost. The pod may have been resized since its containers were
// created, so that the resources in the runtime count, too. A container with the resources of its creation was not
// resized. The runtime does not know the memory request of a resized container: it is taken from wanted if the rest of
// that agrees with the runtime.
func Rebuild(wanted *v1.Pod, status *lifecyclev1.PodStatus) Record {
	r := Record{Allocated: Recover(wanted, status)}
	want := Of(wanted)
	for _, name := range sortedNames(r.Allocated.Containers) {
		latest := podview.Latest(status, name)
		if !podview.Running(latest) || latest.GetResources() == nil {
			continue
		}
		podLevel, made := podlabels.PodResourcesOf(latest.GetAnnotations()), r.Allocated.Containers[name]
		if fits(AmountsOf(podLevel, made), latest.GetResources()) {
			continue
		}
		has := AmountsOf(want.Pod, want.Containers[name])
		if fits(has, latest.GetResources()) {
			r.Allocated.Containers[name] = want.Containers[name]
		} else {
			r.Allocated.Containers[name] = seen(made, latest.GetResources())
			has = AmountsOf(podLevel, r.Allocated.Containers[name])
		}
		r.Actuated.Note(status, latest.GetId(), has)
	}
	return r
}

// fits reports whether a container with these amounts looks like this in the runtime. Without a period the node sets no
// quotas.
func fits(a Amounts, has *lifecyclev1.LinuxResources) bool {
	request := a.CPURequest
	if request == 0 {
		request = a.CPULimit
	}
	quota := resources.MilliOfQuota(has.GetCpuQuota(), has.GetCpuPeriod())
	return resources.Shares(request) == sharesOf(has) && a.MemoryLimit == max(has.GetMemoryLimitInBytes(), 0) &&
		(has.GetCpuPeriod() == 0 || a.CPULimit == quota || (a.CPULimit < leastQuota && quota == leastQuota))
}

// sharesOf returns the cpu shares of a container; the minimum if there are none.
func sharesOf(has *lifecyclev1.LinuxResources) uint64 {
	return uint64(max(has.GetCpuShares(), resources.MinShares))
}

// leastQuota is the cpu limit, in thousandths, of the smallest quota that the kernel has.
const leastQuota = 10

// seen returns requests and limits with the amounts of the runtime. Limits that the runtime does not have stay, because
// a limit of a running container is never removed.
func seen(made v1.ResourceRequirements, has *lifecyclev1.LinuxResources) v1.ResourceRequirements {
	out := *made.DeepCopy()
	put := func(list *v1.ResourceList, name v1.ResourceName, quantity *resource.Quantity) {
		if quantity.IsZero() {
			return
		}
		if *list == nil {
			*list = v1.ResourceList{}
		}
		(*list)[name] = *quantity
	}
	if milli := resources.MilliOfShares(sharesOf(has)); milli > resources.MinShares ||
		out.Requests.Cpu().MilliValue() > resources.MinShares {
		put(&out.Requests, v1.ResourceCPU, resource.NewMilliQuantity(milli, resource.DecimalSI))
	}
	put(&out.Limits, v1.ResourceCPU,
		resource.NewMilliQuantity(resources.MilliOfQuota(has.GetCpuQuota(), has.GetCpuPeriod()), resource.DecimalSI))
	put(&out.Limits, v1.ResourceMemory, resource.NewQuantity(max(has.GetMemoryLimitInBytes(), 0), resource.BinarySI))
	return out
}
