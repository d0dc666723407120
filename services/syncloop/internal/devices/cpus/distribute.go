package cpus

import (
	"fmt"
	"math"
	"slices"

	"k8s.io/utils/cpuset"
)

// distributor picks the same number of CPUs of several NUMA nodes, if one has too few. It takes CPUs in groups: single
// ones, or whole cores.
type distributor struct {
	*picker

	count, group int
	bySockets    bool
}

// plan is a choice of NUMA nodes: each gives even CPUs, and the nodes of rest give one more group each, in turns.
type plan struct {
	nodes, rest []int
	// balance is the standard deviation of the numbers of CPUs that stay free: the lower, the better.
	balance float64
	// oneSocket is true if all nodes are in one socket.
	oneSocket bool
}

// distribute picks CPUs for one container, the same number of each NUMA node. If that cannot be done, it packs them.
// Its errors are the kubelet's.
//
// Two things differ from the kubelet's function, which keeps combinations of four NUMA nodes and more in memory that it
// uses again for the next one, and does not end for some requests of whole cores that do not divide evenly.
func distribute(m *Machine, available cpuset.CPUSet, count, group int, spread, bySockets bool) (cpuset.CPUSet, error) {
	if count%group != 0 {
		return pack(m, available, count, spread, false)
	}
	d := distributor{
		picker: newPicker(m, available, count, spread), count: count, group: group, bySockets: bySockets,
	}
	if d.done() {
		return cpuset.New(), nil
	}
	if d.needs > len(d.free) {
		return cpuset.New(), tooFew(count, available)
	}
	nodes := d.nodes()
	least, most := d.nodeCounts()
	for size := least; size <= most; size++ {
		if best, found := d.best(nodes, size); found {
			return d.carryOut(best)
		}
	}
	return pack(m, available, count, spread, false)
}

// nodeCounts returns the lowest and the highest number of NUMA nodes that can be needed.
func (d *distributor) nodeCounts() (least, most int) {
	groups := ceil(len(d.machine.cpus), d.group)
	perNode := ceil(groups, d.machine.nodes)
	needed := ceil(d.needs, d.group)
	return ceil(needed, perNode), min(needed, len(d.free.parts(byNode)))
}

func ceil(a, b int) int { return (a-1)/b + 1 }

// freeIn returns the number of free CPUs of a NUMA node.
func (d *distributor) freeIn(node int) int { return d.free.of(byNode, node).Size() }

// best returns the best plan with a number of NUMA nodes.
func (d *distributor) best(nodes []int, size int) (plan, bool) {
	best, found := plan{balance: math.MaxFloat64}, false
	combinations(nodes, size, func(combination []int) bool {
		if best.balance == 0 && (!d.bySockets || best.oneSocket) {
			return false
		}
		candidate, ok := d.plan(nodes, combination)
		if !ok {
			return true
		}
		better := candidate.balance < best.balance
		if d.bySockets && candidate.oneSocket != best.oneSocket {
			better = candidate.oneSocket
		}
		if better {
			best, found = candidate, true
		}
		return true
	})
	return best, found
}

// even returns the number of CPUs that each node of a combination gives.
func (d *distributor) even(combination []int, bounded bool) int {
	even := d.count / len(combination) / d.group * d.group
	if bounded {
		for _, node := range combination {
			even = min(even, d.freeIn(node)/d.group*d.group)
		}
	}
	return even
}

// plan returns the plan for a combination of NUMA nodes; ok is false if there is none.
func (d *distributor) plan(nodes, combination []int) (_ plan, ok bool) {
	groups := 0
	for _, node := range combination {
		groups += d.freeIn(node) / d.group
	}
	if groups*d.group < d.count {
		return plan{}, false
	}
	even := d.even(combination, d.bySockets)
	left := map[int]int{}
	for _, node := range nodes {
		left[node] = d.freeIn(node)
	}
	var open []int
	for _, node := range combination {
		if left[node] -= even; left[node] < 0 {
			return plan{}, false
		}
		if left[node] >= d.group {
			open = append(open, node)
		}
	}
	p := plan{nodes: slices.Clone(combination), balance: math.MaxFloat64}
	p.oneSocket = d.bySockets && d.inOneSocket(combination)
	rest := d.count - even*len(combination)
	if rest == 0 {
		p.balance = deviation(nodes, left)
	}
	for size := len(open); rest > 0 && size >= 1; size-- {
		combinations(open, size, func(subset []int) bool {
			if after, ok := d.takeRest(left, subset, rest); ok {
				if balance := deviation(nodes, after); balance < p.balance {
					p.balance, p.rest = balance, slices.Clone(subset)
				}
			}
			return true
		})
	}
	return p, p.balance != math.MaxFloat64
}

// takeRest returns the numbers of CPUs that are left when the nodes of a subset have given the rest in turns.
func (d *distributor) takeRest(left map[int]int, subset []int, rest int) (map[int]int, bool) {
	after := make(map[int]int, len(left))
	for node, count := range left {
		after[node] = count
	}
	for rest > 0 {
		before := rest
		for _, node := range subset {
			if rest > 0 && after[node] >= d.group {
				after[node] -= d.group
				rest -= d.group
			}
		}
		if rest == before {
			return nil, false
		}
	}
	return after, true
}

// inOneSocket reports whether all CPUs of the NUMA nodes are in one socket.
func (d *distributor) inOneSocket(nodes []int) bool {
	return len(d.machine.cpus.keep(d.machine.cpus.of(byNode, nodes...)).parts(bySocket)) <= 1
}

// carryOut takes the CPUs of a plan.
func (d *distributor) carryOut(p plan) (cpuset.CPUSet, error) {
	even := d.even(p.nodes, true)
	take := func(node, count int) error {
		set, err := pack(d.machine, d.free.of(byNode, node), count, d.spread, false)
		if err == nil {
			d.take(set)
		}
		return err
	}
	for _, node := range p.nodes {
		if err := take(node, even); err != nil {
			return cpuset.New(), err
		}
	}
	for rest := d.count - even*len(p.nodes); rest > 0; {
		before := rest
		for _, node := range p.rest {
			if rest == 0 || d.freeIn(node) < d.group {
				continue
			}
			if err := take(node, d.group); err != nil {
				return cpuset.New(), err
			}
			rest -= d.group
		}
		if rest == before {
			break
		}
	}
	if d.needs > 0 {
		return cpuset.New(), fmt.Errorf("accounting error, not enough CPUs allocated, remaining: %v", d.needs)
	}
	return d.taken, nil
}

// deviation returns the standard deviation of the numbers of CPUs of NUMA nodes, with three digits.
func deviation(nodes []int, counts map[int]int) float64 {
	round := func(x float64) float64 { return math.Round(x*1000) / 1000 }
	var sum, squares float64
	for _, node := range nodes {
		sum += float64(counts[node])
	}
	mean := round(sum / float64(len(nodes)))
	for _, node := range nodes {
		squares += (float64(counts[node]) - mean) * (float64(counts[node]) - mean)
	}
	return round(math.Sqrt(squares / float64(len(nodes))))
}

// combinations calls f for each combination of a number of elements, in order, until f returns false. The slice is used
// again for the next call.
func combinations(elements []int, size int, f func([]int) bool) {
	chosen := make([]int, 0, size)
	var choose func(start int) bool
	choose = func(start int) bool {
		if len(chosen) == size {
			return f(chosen)
		}
		for i := start; i <= len(elements)-(size-len(chosen)); i++ {
			chosen = append(chosen, elements[i])
			more := choose(i + 1)
			chosen = chosen[:len(chosen)-1]
			if !more {
				return false
			}
		}
		return true
	}
	if size >= 1 {
		choose(0)
	}
}
