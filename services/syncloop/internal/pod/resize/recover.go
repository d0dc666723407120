package resize

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
)

// Recover says what a pod was promised of which nothing is on record: what its sandbox and its newest containers were made with. What
// they do not say is as it is wanted. A pod that was never resized has nothing on record.
func Recover(wanted *v1.Pod, status *lifecyclev1.PodStatus) Allocation {
	a := Of(wanted)
	sandbox := podview.Sandbox(status).GetAnnotations()
	if all, ok := podlabels.AllResourcesOf(sandbox); ok {
		a.Pod = podlabels.PodResourcesOf(sandbox)
		for name := range a.Containers {
			a.Containers[name] = all[name] // one without is not among them
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

// Rebuild is like Recover for a pod whose record was lost: it may have been resized since its containers were made, so what the
// runtime says that they have counts, too. A container that has what it was made with was not resized. Of one that has something else
// the runtime does not know the request of memory: it is taken from what is wanted, if all the rest of that fits what the runtime says.
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

// fits tells whether the runtime would say what it says of a container with these amounts. Without a period nothing is limited by
// quotas on this node.
func fits(a Amounts, has *lifecyclev1.LinuxResources) bool {
	request := a.CPURequest
	if request == 0 {
		request = a.CPULimit
	}
	quota := resources.MilliOfQuota(has.GetCpuQuota(), has.GetCpuPeriod())
	return resources.Shares(request) == sharesOf(has) && a.MemoryLimit == max(has.GetMemoryLimitInBytes(), 0) &&
		(has.GetCpuPeriod() == 0 || a.CPULimit == quota || (a.CPULimit < leastQuota && quota == leastQuota))
}

// sharesOf are the shares of a container, the least for one that has none.
func sharesOf(has *lifecyclev1.LinuxResources) uint64 {
	return uint64(max(has.GetCpuShares(), resources.MinShares))
}

// leastQuota is the limit of cpu, in thousandths, that the least quota of the kernel stands for.
const leastQuota = 10

// seen are requests and limits with what the runtime says of them. What it does not limit stays: a limit is never taken away from a
// container that runs.
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
	if milli := resources.MilliOfShares(sharesOf(has)); milli > resources.MinShares || out.Requests.Cpu().MilliValue() > resources.MinShares {
		put(&out.Requests, v1.ResourceCPU, resource.NewMilliQuantity(milli, resource.DecimalSI))
	}
	put(&out.Limits, v1.ResourceCPU, resource.NewMilliQuantity(resources.MilliOfQuota(has.GetCpuQuota(), has.GetCpuPeriod()), resource.DecimalSI))
	put(&out.Limits, v1.ResourceMemory, resource.NewQuantity(max(has.GetMemoryLimitInBytes(), 0), resource.BinarySI))
	return out
}
