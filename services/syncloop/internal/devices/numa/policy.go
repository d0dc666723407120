package numa

import (
	"cmp"
	"errors"
	"fmt"
)

// Node is a NUMA node of the machine.
type Node struct {
	ID int
	// Distances are the distances to the NUMA nodes 0, 1 and so on; nil if they are unknown.
	Distances []uint64
}

// Policy merges hints. Create it with New.
type Policy struct {
	name      string
	all       Mask
	closest   bool
	distances map[int][]uint64
}

// New returns a policy for a machine. Its errors are the kubelet's.
func New(name string, options Options, nodes []Node) (*Policy, error) {
	p := &Policy{name: name, closest: options.Closest, distances: map[int][]uint64{}}
	if name == PolicyNone {
		return p, nil
	}
	for _, node := range nodes {
		if options.Closest && node.Distances == nil {
			return nil, errors.New("cannot discover NUMA topology: error getting NUMA distances from cadvisor")
		}
		p.all |= MaskOf(node.ID)
		p.distances[node.ID] = node.Distances
	}
	if len(nodes) > options.Maximum {
		return nil, fmt.Errorf("unsupported on machines with more than %v NUMA Nodes", options.Maximum)
	}
	switch name {
	case PolicyBestEffort, PolicyRestricted, PolicySingleNode:
		return p, nil
	}
	return nil, fmt.Errorf("unknown policy: %q", name)
}

// Name returns the name of the policy.
func (p *Policy) Name() string { return p.name }

// Aligns reports whether the policy aligns anything.
func (p *Policy) Aligns() bool { return p.name != PolicyNone }

// Guarantees reports whether what the policy admits has its resources from one NUMA node.
func (p *Policy) Guarantees() bool { return p.name == PolicySingleNode }

// merged is the result of one combination of hints: their common NUMA nodes, and whether all hints are preferred and
// name the same nodes. While they do, common has these nodes; 0 if no hint has named any.
type merged struct {
	nodes, common Mask
	preferred     bool
}

// with adds a hint.
func (m merged) with(h Hint) merged {
	m.preferred = m.preferred && h.Preferred
	if h.Nodes != 0 {
		if m.common != 0 && m.common != h.Nodes {
			m.preferred = false
		}
		m.nodes &= h.Nodes
		m.common = h.Nodes
	}
	if !m.preferred {
		m.common = 0 // it decides nothing any more
	}
	return m
}

// Merge returns the best hint for all owners, and whether the pod is admitted with it. The empty affinity is none.
//
// The kubelet compares each combination of the hints of all resources. Here combinations with the same result so far
// are one, because the best result does not depend on the order: their number is bounded by the sets of NUMA nodes, and
// not by a product over the resources.
func (p *Policy) Merge(owners []Hints) (Hint, bool) {
	if !p.Aligns() {
		return Hint{}, true
	}
	resources := p.lists(owners)
	results := map[merged]bool{{nodes: p.all, preferred: true}: true}
	widest := 0
	for _, hints := range resources {
		next := make(map[merged]bool, len(results))
		for result := range results {
			for _, h := range hints {
				next[result.with(h)] = true
			}
		}
		results = next
		widest = max(widest, narrowest(hints))
	}
	best, found := Hint{Nodes: p.all}, false
	for result := range results {
		candidate := Hint{Nodes: result.nodes, Preferred: result.preferred}
		if candidate.Nodes != 0 && (!found || p.compare(candidate, best, widest) < 0) {
			best, found = candidate, true
		}
	}
	if p.name == PolicySingleNode && best.Nodes == p.all {
		best.Nodes = 0
	}
	return best, p.name == PolicyBestEffort || best.Preferred
}

// lists returns the hints of each resource. One without a preference has a hint for any NUMA node, and one that cannot
// be satisfied has such a hint that is not preferred.
func (p *Policy) lists(owners []Hints) [][]Hint {
	var lists [][]Hint
	for _, owner := range owners {
		if len(owner) == 0 {
			lists = append(lists, []Hint{{Preferred: true}})
		}
		for _, hints := range owner {
			switch {
			case hints == nil:
				hints = []Hint{{Preferred: true}}
			case len(hints) == 0:
				hints = []Hint{{}}
			}
			if p.name == PolicySingleNode {
				hints = onlySingle(hints)
			}
			lists = append(lists, hints)
		}
	}
	return lists
}

// onlySingle returns the preferred hints with at most one NUMA node.
func onlySingle(hints []Hint) []Hint {
	var single []Hint
	for _, h := range hints {
		if h.Preferred && h.Nodes.Count() <= 1 {
			single = append(single, h)
		}
	}
	return single
}

// narrowest returns the lowest number of NUMA nodes of a hint that names any; 0 if none does.
func narrowest(hints []Hint) int {
	lowest := 0
	for _, h := range hints {
		if count := h.Nodes.Count(); count > 0 && (lowest == 0 || count < lowest) {
			lowest = count
		}
	}
	return lowest
}

// compare orders hints, the best one first: a preferred one, and then the narrower one. Without a preferred one, wanted
// is the number of NUMA nodes of the resource that needs the most. A hint of that number is best, then one with fewer
// nodes, the more the better, and then one with more nodes.
func (p *Policy) compare(a, b Hint, wanted int) int {
	if a.Preferred != b.Preferred {
		if a.Preferred {
			return -1
		}
		return 1
	}
	if !a.Preferred {
		countA, countB := a.Nodes.Count(), b.Nodes.Count()
		switch {
		case countA > wanted && countB > wanted:
		case countA > wanted || countB > wanted:
			return cmp.Compare(countA, countB)
		case countA != countB:
			return cmp.Compare(countB, countA)
		}
	}
	return p.compareMasks(a.Nodes, b.Nodes)
}

// compareMasks orders masks, the best one first.
func (p *Policy) compareMasks(a, b Mask) int {
	if p.closest && p.name != PolicySingleNode && a.Count() == b.Count() {
		return cmp.Or(cmp.Compare(p.distance(a), p.distance(b)), cmp.Compare(a, b))
	}
	return a.compare(b)
}

// distance returns the average distance between the NUMA nodes of a mask.
func (p *Policy) distance(m Mask) float64 {
	nodes := m.Nodes()
	var sum, count float64
	for _, from := range nodes {
		for _, to := range nodes {
			if distances := p.distances[from]; to < len(distances) {
				sum += float64(distances[to])
			}
			count++
		}
	}
	return sum / count
}
