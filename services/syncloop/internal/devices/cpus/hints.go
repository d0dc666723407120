package cpus

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/cpuset"

	"github.com/quartet-node/quartet/services/syncloop/internal/devices/numa"
)

// Hints returns the NUMA nodes that a container could get its CPUs from; nil if it wants none for itself.
func (b *Book) Hints(pod *v1.Pod, c *v1.Container) numa.Hints {
	count := Wanted(pod, c)
	if count == 0 {
		return nil
	}
	hints := []numa.Hint{}
	set, has := b.held[pod.UID][c.Name]
	switch {
	case !has:
		hints = b.hints(b.Free(), b.reusable(pod, c.Name), count)
	case set.Size() == count:
		hints = b.hints(set, cpuset.New(), count)
	}
	return numa.Hints{string(v1.ResourceCPU): hints}
}

// PodHints returns the NUMA nodes that a pod could get all its CPUs from; nil if it wants none for itself.
func (b *Book) PodHints(pod *v1.Pod) numa.Hints {
	count := WantedByPod(pod)
	if count == 0 {
		return nil
	}
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if set, has := b.held[pod.UID][list[i].Name]; has && set.Size() != Wanted(pod, &list[i]) {
				return numa.Hints{string(v1.ResourceCPU): {}}
			}
		}
	}
	held := b.HeldBy(pod.UID)
	hints := b.hints(b.Free(), held, count)
	if held.Size() == count {
		hints = b.hints(held, cpuset.New(), count)
	}
	return numa.Hints{string(v1.ResourceCPU): hints}
}

// hints returns the sets of NUMA nodes with enough CPUs. A set must have all reusable CPUs.
func (b *Book) hints(available, reusable cpuset.CPUSet, count int) []numa.Hint {
	nodes := b.machine.cpus.parts(byNode)
	all := b.machine.cpus.sizes(byNode)
	free := b.machine.NodeCounts(available)
	reuse := b.machine.NodeCounts(reusable)
	var needed numa.Mask
	for node := range reuse {
		needed |= numa.MaskOf(node)
	}
	least, hints := len(nodes), []numa.Hint{}
	numa.Subsets(nodes, func(mask numa.Mask) {
		total, has := 0, reusable.Size()
		for _, node := range mask.Nodes() {
			total += all[node]
			has += free[node]
		}
		if total >= count {
			least = min(least, mask.Count())
		}
		if mask&needed == needed && has >= count {
			hints = append(hints, numa.Hint{Nodes: mask})
		}
	})
	numa.Prefer(hints, least)
	if b.options.BySockets {
		b.preferSockets(hints, least)
	}
	return hints
}

// preferSockets marks the hints that span no more sockets than needed as preferred.
func (b *Book) preferSockets(hints []numa.Hint, least int) {
	perSocket := quotient(b.machine.nodes, b.machine.sockets)
	if perSocket == 0 {
		return
	}
	for i, h := range hints {
		nodes := b.machine.cpus.keep(b.machine.cpus.of(byNode, h.Nodes.Nodes()...))
		if len(nodes.parts(bySocket)) == (least+perSocket-1)/perSocket {
			hints[i].Preferred = true
		}
	}
}
