// Package numa decides which NUMA nodes a container or a pod gets its resources from. Each owner of a resource gives
// hints: sets of NUMA nodes that could satisfy a request. A Policy merges the hints of all owners into one, and decides
// whether the pod is admitted with it. The rules are those of the kubelet's topology manager, and a module compares the
// two.
//
// The package has no clock, network or disk of its own, and imports no other package of this program.
package numa

import (
	"cmp"
	"math/bits"
)

// Mask is a set of NUMA nodes with the numbers 0 to 63. As an affinity, the empty mask is none: any node will do.
type Mask uint64

// MaxNode is the highest number of a NUMA node in a mask.
const MaxNode = 63

// MaskOf returns the mask of NUMA nodes. Numbers that no mask can have are left out.
func MaskOf(nodes ...int) Mask {
	var m Mask
	for _, node := range nodes {
		if node >= 0 && node <= MaxNode {
			m |= 1 << node
		}
	}
	return m
}

// Has reports whether a NUMA node is in the mask.
func (m Mask) Has(node int) bool { return node >= 0 && node <= MaxNode && m&(1<<node) != 0 }

// Count returns the number of NUMA nodes.
func (m Mask) Count() int { return bits.OnesCount64(uint64(m)) }

// Nodes returns the NUMA nodes in ascending order.
func (m Mask) Nodes() []int {
	nodes := make([]int, 0, m.Count())
	for rest := m; rest != 0; rest &= rest - 1 {
		nodes = append(nodes, bits.TrailingZeros64(uint64(rest)))
	}
	return nodes
}

// compare orders masks: fewer NUMA nodes first, and then those with lower numbers.
func (m Mask) compare(other Mask) int {
	return cmp.Or(cmp.Compare(m.Count(), other.Count()), cmp.Compare(m, other))
}

// Subsets calls f for each subset of NUMA nodes that is not empty, the smaller ones first, and those of one size in the
// order of the nodes.
func Subsets(nodes []int, f func(Mask)) {
	var choose func(rest []int, chosen Mask, missing int)
	choose = func(rest []int, chosen Mask, missing int) {
		if missing == 0 {
			f(chosen)
			return
		}
		for i := 0; i <= len(rest)-missing; i++ {
			choose(rest[i+1:], chosen|MaskOf(rest[i]), missing-1)
		}
	}
	for size := 1; size <= len(nodes); size++ {
		choose(nodes, 0, size)
	}
}

// Hint is a set of NUMA nodes that a request could be satisfied from.
type Hint struct {
	// Nodes are the NUMA nodes; none if any will do.
	Nodes Mask
	// Preferred is true if the request cannot be satisfied from fewer NUMA nodes of this machine.
	Preferred bool
}

// Hints are the hints of an owner by resource. Nil is a resource without a preference, and an empty list is one that
// cannot be satisfied.
type Hints map[string][]Hint

// Prefer marks the hints with the given number of NUMA nodes as preferred.
func Prefer(hints []Hint, count int) {
	for i := range hints {
		if hints[i].Nodes.Count() == count {
			hints[i].Preferred = true
		}
	}
}
