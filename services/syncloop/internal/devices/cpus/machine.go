// Package cpus decides which CPUs containers have for themselves. A container of a guaranteed pod that requests whole
// CPUs gets them alone; all others share the rest. The rules and the texts are those of the kubelet's CPU manager with
// the static policy, and a module compares the two.
//
// In: the CPUs of the machine, the options of the policy and pods. Out: the CPUs of a container, the hints for package
// numa, or the reason why there are none. The package has no clock, network or disk. Imports: numa.
package cpus

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/google/cadvisor/lib/model"
	"k8s.io/utils/cpuset"
)

// CPU is the place of a logical CPU in the machine.
type CPU struct {
	// Node is the NUMA node, Socket the socket, and Cache the last-level cache that the CPU shares with others.
	Node, Socket, Cache int
	// Core is the lowest number of a CPU on the same core.
	Core int
}

// level is a part of the machine that groups CPUs, such as sockets; it returns the number of a CPU's part.
type level func(CPU) int

func byNode(c CPU) int   { return c.Node }
func bySocket(c CPU) int { return c.Socket }
func byCache(c CPU) int  { return c.Cache }
func byCore(c CPU) int   { return c.Core }

// places are CPUs by number.
type places map[int]CPU

// set returns the numbers of the CPUs.
func (p places) set() cpuset.CPUSet {
	ids := make([]int, 0, len(p))
	for id := range p {
		ids = append(ids, id)
	}
	return cpuset.New(ids...)
}

// keep returns the CPUs of a set.
func (p places) keep(set cpuset.CPUSet) places {
	kept := make(places, set.Size())
	for id, c := range p {
		if set.Contains(id) {
			kept[id] = c
		}
	}
	return kept
}

// of returns the CPUs of parts of a level.
func (p places) of(by level, parts ...int) cpuset.CPUSet {
	var ids []int
	for id, c := range p {
		if slices.Contains(parts, by(c)) {
			ids = append(ids, id)
		}
	}
	return cpuset.New(ids...)
}

// sizes returns the number of CPUs of each part of a level.
func (p places) sizes(by level) map[int]int {
	sizes := map[int]int{}
	for _, c := range p {
		sizes[by(c)]++
	}
	return sizes
}

// parts returns the parts of a level in ascending order.
func (p places) parts(by level) []int {
	all := make([]int, 0, len(p))
	for _, c := range p {
		all = append(all, by(c))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// within returns the parts of a level that have a CPU in a part of another level, in ascending order.
func (p places) within(by, outer level, part int) []int {
	var all []int
	for _, c := range p {
		if outer(c) == part {
			all = append(all, by(c))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Machine has the CPUs of the machine.
type Machine struct {
	cpus places
	// perCore and perCache are the average numbers of CPUs, as the kubelet counts them.
	perCore, perCache int
	sockets, nodes    int
}

// Discover returns the CPUs of a machine as cAdvisor describes it. Its errors are the kubelet's.
func Discover(info *model.MachineInfo) (*Machine, error) {
	if info.NumCores == 0 {
		return nil, errors.New("could not detect number of cpus")
	}
	m := &Machine{cpus: places{}, sockets: info.NumSockets}
	cores := 0
	for _, node := range info.Topology {
		cores += len(node.Cores)
		for _, core := range node.Cores {
			switch {
			case len(core.Threads) == 0:
				return nil, errors.New("no cpus provided")
			case cpuset.New(core.Threads...).Size() != len(core.Threads):
				return nil, errors.New("cpus provided are not unique")
			}
			cache := core.SocketID
			if len(core.UncoreCaches) > 0 {
				cache = core.UncoreCaches[0].Id
			}
			for _, id := range core.Threads {
				m.cpus[id] = CPU{Node: node.Id, Socket: core.SocketID, Cache: cache, Core: slices.Min(core.Threads)}
			}
		}
	}
	m.nodes = len(m.cpus.parts(byNode))
	m.perCore = max(quotient(info.NumCores, cores), 1)
	m.perCache = quotient(info.NumCores, len(m.cpus.parts(byCache)))
	return m, nil
}

// quotient returns a/b, or 0 if b is 0.
func quotient(a, b int) int {
	if b == 0 {
		return 0
	}
	return a / b
}

// All returns all CPUs.
func (m *Machine) All() cpuset.CPUSet { return m.cpus.set() }

// Node returns the NUMA node of a CPU; ok is false if the machine does not have the CPU.
func (m *Machine) Node(id int) (node int, ok bool) {
	c, ok := m.cpus[id]
	return c.Node, ok
}

// NodeCounts returns the number of CPUs of a set by NUMA node.
func (m *Machine) NodeCounts(set cpuset.CPUSet) map[int]int { return m.cpus.keep(set).sizes(byNode) }

// ParseReserved parses reservedSystemCPUs for this machine. Its errors are the kubelet's.
func (m *Machine) ParseReserved(text string) (cpuset.CPUSet, error) {
	if text == "" {
		return cpuset.New(), nil
	}
	set, err := cpuset.Parse(text)
	if err != nil {
		return cpuset.New(), fmt.Errorf("unable to parse reserved-cpus list: %w", err)
	}
	if all := m.All(); !set.IsSubsetOf(all) {
		return cpuset.New(), fmt.Errorf("reserved-cpus: %s is not a subset of online-cpus: %s", text, all)
	}
	return set, nil
}

// sharesCache reports whether all CPUs of a set share a last-level cache.
func (m *Machine) sharesCache(set cpuset.CPUSet) bool {
	return len(m.cpus.keep(set).sizes(byCache)) <= 1 && set.IsSubsetOf(m.All()) || set.Size() <= 1
}

// ascending sorts parts by their number of CPUs, and then by their number.
func ascending(parts []int, sizes map[int]int) []int {
	slices.SortFunc(parts, func(a, b int) int { return cmp.Or(cmp.Compare(sizes[a], sizes[b]), cmp.Compare(a, b)) })
	return parts
}
