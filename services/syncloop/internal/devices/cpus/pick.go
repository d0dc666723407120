package cpus

import (
	"errors"
	"fmt"

	"k8s.io/utils/cpuset"
)

// picker picks CPUs out of the free ones, so that a container has as few parts of the machine as possible and breaks as
// few whole parts as possible.
type picker struct {
	machine *Machine
	free    places
	needs   int
	taken   cpuset.CPUSet
	// outer and inner are the NUMA nodes and the sockets, the larger ones first.
	outer, inner level
	// spread takes single CPUs of each core before the second one of any.
	spread bool
}

func newPicker(m *Machine, available cpuset.CPUSet, count int, spread bool) *picker {
	p := &picker{machine: m, free: m.cpus.keep(available), needs: count, spread: spread, outer: bySocket, inner: byNode}
	if m.sockets >= m.nodes {
		p.outer, p.inner = byNode, bySocket
	}
	return p
}

func (p *picker) done() bool { return p.needs < 1 }

func (p *picker) take(set cpuset.CPUSet) {
	p.taken = p.taken.Union(set)
	for _, id := range set.UnsortedList() {
		delete(p.free, id)
	}
	p.needs -= set.Size()
}

// sorted returns the parts of a level with free CPUs, those with the fewest first.
func (p *picker) sorted(by level) []int { return ascending(p.free.parts(by), p.free.sizes(by)) }

// nested returns the parts of a level in the order of the parts that they are in.
func (p *picker) nested(by, outer level, order []int) []int {
	sizes := p.free.sizes(by)
	var all []int
	for _, part := range order {
		all = append(all, ascending(p.free.within(by, outer, part), sizes)...)
	}
	return all
}

func (p *picker) outerParts() []int { return p.sorted(p.outer) }
func (p *picker) innerParts() []int { return p.nested(p.inner, p.outer, p.outerParts()) }
func (p *picker) cores() []int      { return p.nested(byCore, p.inner, p.innerParts()) }

// nodes returns the NUMA nodes, and sockets the sockets, in their order.
func (p *picker) nodes() []int {
	if p.machine.sockets >= p.machine.nodes {
		return p.outerParts()
	}
	return p.innerParts()
}

func (p *picker) sockets() []int {
	if p.machine.sockets >= p.machine.nodes {
		return p.innerParts()
	}
	return p.outerParts()
}

func (p *picker) caches() []int { return p.nested(byCache, byNode, p.nodes()) }

// single returns the free CPUs in the order in which single ones are taken.
func (p *picker) single() []int {
	var all []int
	if p.spread {
		for _, socket := range p.sockets() {
			all = append(all, p.free.of(bySocket, socket).List()...)
		}
		return all
	}
	for _, core := range p.cores() {
		all = append(all, p.free.of(byCore, core).List()...)
	}
	return all
}

// takeWhole takes the parts of a level that are free as a whole, in the given order, as long as all of a part is
// needed.
//
// The kubelet compares the free CPUs of a socket or a core with the average number of CPUs of all. On a machine with
// sockets or cores of different sizes, it takes CPUs that are in use for free ones.
func (p *picker) takeWhole(by level, order []int) {
	free, all := p.free.sizes(by), p.machine.cpus.sizes(by)
	for _, part := range order {
		if free[part] == all[part] && p.needs >= all[part] {
			p.take(p.machine.cpus.of(by, part))
		}
	}
}

func (p *picker) takeNodes()   { p.takeWhole(byNode, p.nodes()) }
func (p *picker) takeSockets() { p.takeWhole(bySocket, p.sockets()) }
func (p *picker) takeCores()   { p.takeWhole(byCore, p.cores()) }

// takeCaches takes whole caches, and then the rest from one cache if it fits.
func (p *picker) takeCaches() {
	for _, cache := range p.caches() {
		if p.needs >= p.machine.perCache {
			p.takeWhole(byCache, p.caches())
		}
		if p.done() {
			return
		}
		p.takeFromCache(cache)
		if p.done() {
			return
		}
	}
}

// takeFromCache takes all that is needed from one cache, or nothing. It takes whole cores, and the lowest ones.
func (p *picker) takeFromCache(cache int) {
	perCore := p.machine.perCore
	cores := p.free.within(byCore, byCache, cache)
	if count := (p.needs + perCore - 1) / perCore; len(cores) > count {
		cores = cores[:count]
	}
	set := p.free.of(byCore, cores...)
	if ids := set.List(); p.needs%2 != 0 && perCore > 1 && len(ids) > p.needs {
		set = cpuset.New(ids[:len(ids)-1]...) // an odd number needs one CPU of the last core
	}
	if set.Size() == p.needs {
		p.take(set)
	}
}

func (p *picker) takeSingle() {
	for _, id := range p.single() {
		p.take(cpuset.New(id))
		if p.done() {
			return
		}
	}
}

// pack picks CPUs for one container: whole NUMA nodes and sockets, whole caches if wanted, whole cores unless spread is
// true, and then single CPUs. Its errors are the kubelet's.
func pack(m *Machine, available cpuset.CPUSet, count int, spread, byCaches bool) (cpuset.CPUSet, error) {
	p := newPicker(m, available, count, spread)
	if p.done() {
		return cpuset.New(), nil
	}
	if p.needs > len(p.free) {
		return cpuset.New(), tooFew(count, available)
	}
	steps := []func(){p.takeSockets, p.takeNodes}
	if m.sockets >= m.nodes {
		steps = []func(){p.takeNodes, p.takeSockets}
	}
	if byCaches {
		steps = append(steps, p.takeCaches)
	}
	if !spread {
		steps = append(steps, p.takeCores)
	}
	for _, step := range append(steps, p.takeSingle) {
		if step(); p.done() {
			return p.taken, nil
		}
	}
	return cpuset.New(), errors.New("failed to allocate cpus")
}

func tooFew(count int, available cpuset.CPUSet) error {
	return fmt.Errorf("not enough cpus available to satisfy request: requested=%d, available=%d", count, available.Size())
}
