package resize

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// Plan has the changes of a running pod. Both lists begin with the containers that shrink, which makes room for those
// that grow.
type Plan struct {
	// Memory and CPU are the containers whose memory and cpu changes.
	Memory, CPU []Update
	// Pod is true if the pod's cgroup changes, also without a change of a container.
	Pod bool
}

// Update is the change of a container.
type Update struct {
	// Container is its spec with the allocated resources.
	Container *v1.Container
	// ID is the runtime's.
	ID string
	// Wants are the allocated amounts, Has those that it runs with.
	Wants, Has Amounts
}

// Nothing reports whether there is nothing to change.
func (p Plan) Nothing() bool { return len(p.Memory) == 0 && len(p.CPU) == 0 && !p.Pod }

// Add adds a running container, unless it has its allocated amounts.
func (p *Plan) Add(u Update) {
	p.Memory = add(p.Memory, u, u.Has.MemoryLimit, u.Wants.MemoryLimit, u.Has.MemoryRequest, u.Wants.MemoryRequest)
	p.CPU = add(p.CPU, u, u.Has.CPULimit, u.Wants.CPULimit, u.Has.CPURequest, u.Wants.CPURequest)
}

// add puts a container into its place in a list. The limit decides whether it grows, or the request if the limit stays.
func add(list []Update, u Update, hasLimit, wantsLimit, hasRequest, wantsRequest int64) []Update {
	has, wants := hasLimit, wantsLimit
	if has == wants {
		has, wants = hasRequest, wantsRequest
	}
	switch {
	case has == wants:
		return list
	case wants < has:
		return slices.Insert(list, 0, u)
	}
	return append(list, u)
}

// NeedsRestart reports whether a container has to be recreated, because its resize policy says so for a resource that
// changes. Without a policy it need not.
func NeedsRestart(c *v1.Container, wants, has Amounts) bool {
	restarts := func(name v1.ResourceName) bool {
		return slices.ContainsFunc(c.ResizePolicy, func(p v1.ContainerResizePolicy) bool {
			return p.ResourceName == name && p.RestartPolicy == v1.RestartContainer
		})
	}
	cpu, memory := has != has.WithCPU(wants), has != has.WithMemory(wants)
	return cpu && restarts(v1.ResourceCPU) || memory && restarts(v1.ResourceMemory)
}
