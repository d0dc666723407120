package cpus

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/kubectl/pkg/util/qos"
	"k8s.io/utils/cpuset"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/numa"
)

// ReasonAlignment is the reason of a pod that is refused with an AlignmentError.
const ReasonAlignment = "SMTAlignmentError"

// AlignmentError is the error of a container that cannot have whole cores, in the kubelet's words.
type AlignmentError struct {
	// Requested is the number of CPUs, PerCore the number of CPUs of a core, and Available the number of CPUs of free
	// cores, if those are too few.
	Requested, PerCore, Available int
	TooFew                        bool
}

// Error implements error.
func (e *AlignmentError) Error() string {
	if e.TooFew {
		return fmt.Sprintf("SMT Alignment Error: not enough free physical CPUs: available physical CPUs = %d, "+
			"requested CPUs = %d, CPUs per core = %d", e.Available, e.Requested, e.PerCore)
	}
	return fmt.Sprintf("SMT Alignment Error: requested %d cpus not multiple cpus per core = %d", e.Requested, e.PerCore)
}

// Reason returns the reason for the pod's status.
func (*AlignmentError) Reason() string { return ReasonAlignment }

// Wanted returns the number of CPUs that a container wants for itself: whole ones, in a guaranteed pod. As in the
// kubelet without the gate PodLevelResourceManagers, a pod with resources of its own shares all.
func Wanted(pod *v1.Pod, c *v1.Container) int {
	request := c.Resources.Requests[v1.ResourceCPU]
	if request.IsZero() || resourcehelper.IsPodLevelResourcesSet(pod) || qos.GetPodQOS(pod) != v1.PodQOSGuaranteed {
		return 0
	}
	if count := request.Value(); count*1000 == request.MilliValue() {
		return int(count)
	}
	return 0
}

// WantedByPod returns the number of CPUs that the containers of a pod want at the same time.
func WantedByPod(pod *v1.Pod) int {
	sidecars, most, running := 0, 0, 0
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		wanted := Wanted(pod, c)
		if podset.IsSidecar(c) {
			sidecars += wanted
			continue
		}
		most = max(most, sidecars+wanted)
	}
	for i := range pod.Spec.Containers {
		running += Wanted(pod, &pod.Spec.Containers[i])
	}
	return max(most, sidecars+running)
}

// reusable returns the CPUs that a container may take over: those of init containers before it that have ended by then,
// without those that a sidecar or a container has taken over already.
func (b *Book) reusable(pod *v1.Pod, container string) cpuset.CPUSet {
	var reuse cpuset.CPUSet
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.Name == container {
			return reuse
		}
		if set := b.held[pod.UID][c.Name]; podset.IsSidecar(c) {
			reuse = reuse.Difference(set)
		} else {
			reuse = reuse.Union(set)
		}
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if c.Name == container {
			break
		}
		reuse = reuse.Difference(b.held[pod.UID][c.Name])
	}
	return reuse
}

// Allocate gives a container the CPUs that it wants for itself, those of the affinity first. Taken is true if it was
// given some, and false if it wants none or has them already. Its errors are the kubelet's; it changes nothing then.
func (b *Book) Allocate(pod *v1.Pod, c *v1.Container, affinity numa.Mask) (taken bool, err error) {
	count := Wanted(pod, c)
	if _, has := b.held[pod.UID][c.Name]; has || count == 0 {
		return false, nil
	}
	if err := b.aligned(count); err != nil {
		return false, err
	}
	available := b.Free().Union(b.reusable(pod, c.Name))
	var set cpuset.CPUSet
	if affinity != 0 {
		near := available.Intersection(b.near(affinity))
		if set, err = b.pick(near, min(count, near.Size())); err != nil {
			return false, err
		}
	}
	rest, err := b.pick(available.Difference(set), count-set.Size())
	if err != nil {
		return false, err
	}
	b.put(pod.UID, c.Name, set.Union(rest))
	return true, nil
}

// SharesCache reports whether the CPUs that a container has for itself share a last-level cache.
func (b *Book) SharesCache(pod *v1.Pod, c *v1.Container) bool {
	return b.machine.sharesCache(b.held[pod.UID][c.Name])
}

// aligned returns why a number of CPUs cannot be whole cores, if they have to.
func (b *Book) aligned(count int) error {
	if !b.options.WholeCores {
		return nil
	}
	if count%b.machine.perCore != 0 {
		return &AlignmentError{Requested: count, PerCore: b.machine.perCore}
	}
	if available := b.shared.Difference(b.siblings).Size(); count > available {
		return &AlignmentError{Requested: count, PerCore: b.machine.perCore, Available: available, TooFew: true}
	}
	return nil
}

// near returns the CPUs of NUMA nodes, or of their sockets.
func (b *Book) near(affinity numa.Mask) cpuset.CPUSet {
	nodes := affinity.Nodes()
	if !b.options.BySockets {
		return b.machine.cpus.of(byNode, nodes...)
	}
	sockets := b.machine.cpus.keep(b.machine.cpus.of(byNode, nodes...)).parts(bySocket)
	return b.machine.cpus.of(bySocket, sockets...)
}
