package resize

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// Plan is what is to be changed of a pod while it runs. Both lists begin with what is lowered, so that what is raised after it finds
// the room.
type Plan struct {
	// Memory and CPU are the containers of which that is changed.
	Memory, CPU []Update
	// Pod is true when the pod's cgroup is to be changed, also if no container of it is.
	Pod bool
}

// Update is a container that is changed.
type Update struct {
	// Container is its spec, with what is allocated to it.
	Container *v1.Container
	// ID is the runtime's.
	ID string
	// Wants and Has are what it is to have, and what it has.
	Wants, Has Amounts
}

// Nothing tells whether there is nothing to be changed.
func (p Plan) Nothing() bool { return len(p.Memory) == 0 && len(p.CPU) == 0 && !p.Pod }

// Add adds a running container, unless it has what it wants.
func (p *Plan) Add(u Update) {
	p.Memory = add(p.Memory, u, u.Has.MemoryLimit, u.Wants.MemoryLimit, u.Has.MemoryRequest, u.Wants.MemoryRequest)
	p.CPU = add(p.CPU, u, u.Has.CPULimit, u.Wants.CPULimit, u.Has.CPURequest, u.Wants.CPURequest)
}

// add puts a container into its place in a list. Whether it is raised or lowered is that of its limit, unless that stays.
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

// NeedsRestart tells whether a container has to be made again to have what it wants: its resize policy says so for a resource that
// changes. Without a policy a container runs on.
func NeedsRestart(c *v1.Container, wants, has Amounts) bool {
	restarts := func(name v1.ResourceName) bool {
		return slices.ContainsFunc(c.ResizePolicy, func(p v1.ContainerResizePolicy) bool {
			return p.ResourceName == name && p.RestartPolicy == v1.RestartContainer
		})
	}
	cpu, memory := has != has.WithCPU(wants), has != has.WithMemory(wants)
	return cpu && restarts(v1.ResourceCPU) || memory && restarts(v1.ResourceMemory)
}
