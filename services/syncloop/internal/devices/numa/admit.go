package numa

import (
	"context"
	"sync"

	v1 "k8s.io/api/core/v1"
)

// ReasonAffinity is the reason of a pod that is refused with an AffinityError.
const ReasonAffinity = "TopologyAffinityError"

// AffinityError is the error of a pod whose resources cannot be aligned, in the kubelet's words.
type AffinityError struct{}

// Error implements error.
func (*AffinityError) Error() string { return "Resources cannot be allocated with Topology locality" }

// Reason returns the reason for the pod's status.
func (*AffinityError) Reason() string { return ReasonAffinity }

// Owner owns resources that are aligned to NUMA nodes. All methods but Settle return at once.
type Owner interface {
	// Hints returns the NUMA nodes that a container could get its resources from, and PodHints those for all containers
	// of a pod together. Nil is no preference.
	Hints(pod *v1.Pod, c *v1.Container) Hints
	PodHints(pod *v1.Pod) Hints
	// Reserve gives a container its resources, those of the best hint first.
	Reserve(pod *v1.Pod, c *v1.Container, best Hint) error
	// Settle does what is left to do for the resources of a container, such as calls of other processes.
	Settle(ctx context.Context, pod *v1.Pod, c *v1.Container, affinity Mask) error
}

// Aligner admits pods by a policy.
type Aligner struct {
	Policy *Policy
	// Scope is ScopeContainer or ScopePod.
	Scope string
	// Owners are asked in this order.
	Owners []Owner
	// Lock is held from the hints to the end of Reserve, so that what the hints promise is still there.
	Lock sync.Locker
	// Aligned is called for each container, or for each pod with ScopePod, that the policy guarantees one NUMA node, with
	// false if there is none.
	Aligned func(ok bool)
}

// Admit gives all containers of a pod their resources. It stops at the first error: an AffinityError, or one of an
// owner. What was allocated until then stays.
func (a *Aligner) Admit(ctx context.Context, pod *v1.Pod) error {
	containers := containersOf(pod)
	if !a.Policy.Aligns() || a.Scope != ScopePod {
		for _, c := range containers {
			hints := func(o Owner) Hints { return o.Hints(pod, c) }
			if err := a.allocate(ctx, pod, []*v1.Container{c}, hints); err != nil {
				return err
			}
		}
		return nil
	}
	return a.allocate(ctx, pod, containers, func(o Owner) Hints { return o.PodHints(pod) })
}

func containersOf(pod *v1.Pod) []*v1.Container {
	var all []*v1.Container
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			all = append(all, &list[i])
		}
	}
	return all
}

// allocate gives containers their resources from the same NUMA nodes.
func (a *Aligner) allocate(
	ctx context.Context, pod *v1.Pod, containers []*v1.Container, hints func(Owner) Hints,
) error {
	affinity, err := a.reserve(pod, containers, hints)
	if err != nil {
		return err
	}
	for _, c := range containers {
		for _, owner := range a.Owners {
			if err := owner.Settle(ctx, pod, c, affinity); err != nil {
				return err
			}
		}
	}
	if a.Policy.Guarantees() {
		a.Aligned(true)
	}
	return nil
}

// reserve chooses the NUMA nodes of containers, and reserves their resources.
func (a *Aligner) reserve(pod *v1.Pod, containers []*v1.Container, ask func(Owner) Hints) (Mask, error) {
	a.Lock.Lock()
	defer a.Lock.Unlock()
	var best Hint
	if a.Policy.Aligns() {
		hints := make([]Hints, 0, len(a.Owners))
		for _, owner := range a.Owners {
			hints = append(hints, ask(owner))
		}
		var ok bool
		if best, ok = a.Policy.Merge(hints); !ok {
			if a.Policy.Guarantees() {
				a.Aligned(false)
			}
			return 0, &AffinityError{}
		}
	}
	for _, c := range containers {
		for _, owner := range a.Owners {
			if err := owner.Reserve(pod, c, best); err != nil {
				return 0, err
			}
		}
	}
	return best.Nodes, nil
}
