// Package resize decides how the CPU and memory of running pods change. It does no I/O. There are three versions of a
// pod's resources, which are equal in a pod that was never resized:
//
//	wanted     the resources in the source of the pod, for example changed by the subresource resize
//	allocated  the resources that the node has promised: admission counts them, containers start with them, the cgroup
//	           has them
//	actuated   the resources that the containers run with
//
// A resize passes through these states in order:
//
//	wanted ≠ allocated     pending: Infeasible if this node can never do it, or deferred until the node has room;
//	                       Order sorts the waiting pods
//	allocated ≠ actuated   in progress: Plan returns the containers to change, in order, and NeedsRestart those to
//	                       restart
//
// Conditions are those of the pod's status. Recover computes the allocated resources of a pod without a record. Package
// resizes keeps the records, the sync loop allocates, and package executor actuates.
package resize

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

// Record is what is kept of a pod from its first resize on.
type Record struct {
	// Allocated are the resources that the node has promised to the pod.
	Allocated Allocation `json:"allocated"`
	// Actuated is what was changed of its containers since their creation.
	Actuated Actuated `json:"actuated"`
	// Conditions are those of its status.
	Conditions Conditions `json:"conditions"`
}

// Clone returns a deep copy.
func (r Record) Clone() Record {
	r.Allocated.Containers, r.Actuated.Containers = maps.Clone(r.Allocated.Containers), maps.Clone(r.Actuated.Containers)
	return r
}

// Allocation has the requests and limits of a pod and of its containers.
type Allocation struct {
	// Pod has the pod-level resources; nil for a pod without.
	Pod *v1.ResourceRequirements `json:"pod,omitempty"`
	// Containers has those of its containers, init containers included, by name.
	Containers map[string]v1.ResourceRequirements `json:"containers,omitempty"`
}

// Of returns the requests and limits in the spec of a pod.
func Of(pod *v1.Pod) Allocation {
	a := Allocation{Containers: map[string]v1.ResourceRequirements{}}
	if r := pod.Spec.Resources; r != nil {
		a.Pod = &v1.ResourceRequirements{Requests: r.Requests, Limits: r.Limits}
	}
	for c := range containers(&pod.Spec) {
		a.Containers[c.Name] = v1.ResourceRequirements{Requests: c.Resources.Requests, Limits: c.Resources.Limits}
	}
	return a
}

// On returns the pod with these requests and limits; it returns pod itself if it has them already.
func (a Allocation) On(pod *v1.Pod) *v1.Pod {
	out := pod
	change := func() *v1.Pod {
		if out == pod {
			out = pod.DeepCopy()
		}
		return out
	}
	if !same(a.Pod, pod.Spec.Resources) {
		r := change().Spec.Resources
		switch {
		case a.Pod == nil:
			out.Spec.Resources = nil
		case r == nil:
			out.Spec.Resources = a.Pod.DeepCopy()
		default:
			r.Requests, r.Limits = a.Pod.Requests.DeepCopy(), a.Pod.Limits.DeepCopy()
		}
	}
	for _, list := range []func(*v1.PodSpec) []v1.Container{
		func(s *v1.PodSpec) []v1.Container { return s.InitContainers },
		func(s *v1.PodSpec) []v1.Container { return s.Containers },
	} {
		for i, c := range list(&pod.Spec) {
			has, ok := a.Containers[c.Name]
			if !ok || same(&has, &c.Resources) {
				continue
			}
			to := &list(&change().Spec)[i].Resources
			to.Requests, to.Limits = has.Requests.DeepCopy(), has.Limits.DeepCopy()
		}
	}
	return out
}

// Equal reports whether two allocations are the same.
func (a Allocation) Equal(b Allocation) bool {
	return same(a.Pod, b.Pod) &&
		maps.EqualFunc(a.Containers, b.Containers, func(x, y v1.ResourceRequirements) bool { return same(&x, &y) })
}

// same compares requests and limits. None at all are the same as empty ones.
func same(a, b *v1.ResourceRequirements) bool {
	var none v1.ResourceRequirements
	if a == nil {
		a = &none
	}
	if b == nil {
		b = &none
	}
	return equality.Semantic.DeepEqual(a.Requests, b.Requests) && equality.Semantic.DeepEqual(a.Limits, b.Limits)
}

// containers iterates over the containers of a pod that can be resized: all but the ephemeral ones, which have no
// resources.
func containers(spec *v1.PodSpec) func(yield func(*v1.Container) bool) {
	return func(yield func(*v1.Container) bool) {
		for _, list := range [][]v1.Container{spec.InitContainers, spec.Containers} {
			for i := range list {
				if !yield(&list[i]) {
					return
				}
			}
		}
	}
}

// Request is a requested change of one resource of one container.
type Request struct {
	// Resource is "cpu" or "memory", Requirement "requests" or "limits", Operation "add", "remove", "increase" or
	// "decrease".
	Resource, Requirement, Operation string
}

// Requests returns the changes between two versions of a pod, in the kubelet's words.
func Requests(before, after *v1.Pod) []Request {
	var all []Request
	had := Of(before).Containers
	for c := range containers(&after.Spec) {
		old, ok := had[c.Name]
		if !ok {
			continue
		}
		add := func(resource, requirement string, from, to *resource.Quantity) {
			if operation := operationOf(from, to); operation != "" {
				all = append(all, Request{Resource: resource, Requirement: requirement, Operation: operation})
			}
		}
		add("memory", "requests", old.Requests.Memory(), c.Resources.Requests.Memory())
		add("memory", "limits", old.Limits.Memory(), c.Resources.Limits.Memory())
		add("cpu", "requests", old.Requests.Cpu(), c.Resources.Requests.Cpu())
		add("cpu", "limits", old.Limits.Cpu(), c.Resources.Limits.Cpu())
	}
	return all
}

func operationOf(from, to *resource.Quantity) string {
	switch {
	case to.IsZero() && !from.IsZero():
		return "remove"
	case from.IsZero() && !to.IsZero():
		return "add"
	case to.Cmp(*from) < 0:
		return "decrease"
	case to.Cmp(*from) > 0:
		return "increase"
	}
	return ""
}

// Shrinks reports whether the pod to requests less cpu or memory than the pod from.
func Shrinks(from, to *v1.Pod) bool {
	before, after := requested(from), requested(to)
	return after.Cpu().Cmp(*before.Cpu()) < 0 || after.Memory().Cmp(*before.Memory()) < 0
}

// grows reports whether the pod to requests more cpu or memory than the pod from.
func grows(from, to *v1.Pod) bool { return Shrinks(to, from) }

func requested(pod *v1.Pod) v1.ResourceList {
	return resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
}

// sortedNames returns the sorted keys of a map.
func sortedNames[T any](m map[string]T) []string { return slices.Sorted(maps.Keys(m)) }
