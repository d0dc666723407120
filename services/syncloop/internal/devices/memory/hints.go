package memory

import (
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/devices/numa"
)

// Hints returns the NUMA nodes that a container could have its memory from; nil if it wants none.
func (b *Book) Hints(pod *v1.Pod, c *v1.Container) numa.Hints {
	wanted, err := Wanted(pod, c)
	if err != nil || len(wanted) == 0 || b.ended(pod, c.Name) {
		return nil
	}
	if blocks, has := b.held[pod.UID][c.Name]; has {
		return same(blocks, wanted)
	}
	return forEach(wanted, b.hints(pod, wanted))
}

// PodHints returns the NUMA nodes that a pod could have all its memory from; nil if it wants none.
func (b *Book) PodHints(pod *v1.Pod) numa.Hints {
	wanted, err := WantedByPod(pod)
	if err != nil || len(wanted) == 0 {
		return nil
	}
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if blocks, has := b.held[pod.UID][list[i].Name]; has {
				return same(blocks, wanted)
			}
		}
	}
	return forEach(wanted, b.hints(pod, wanted))
}

// same returns the hints for memory that was allocated already; nil if it is not what is wanted.
func same(blocks []Block, wanted Amounts) numa.Hints {
	if len(blocks) != len(wanted) {
		return nil
	}
	hints := numa.Hints{}
	for _, block := range blocks {
		if size, has := wanted[block.Type]; !has || size != block.Size {
			return nil
		}
		hints[string(block.Type)] = []numa.Hint{{Nodes: block.Nodes, Preferred: true}}
	}
	return hints
}

// forEach gives each kind of memory the same hints. As with the kubelet, no preference is left if there are none, so
// that the reason why there are none is found when the memory is allocated.
func forEach(wanted Amounts, hints []numa.Hint) numa.Hints {
	all := numa.Hints{}
	if len(hints) == 0 {
		return all
	}
	for kind := range wanted {
		all[string(kind)] = hints
	}
	return all
}

// hints returns the sets of NUMA nodes with enough memory that can be used together now. Preferred are those of as few
// nodes as the machine needs for it at all.
func (b *Book) hints(pod *v1.Pod, wanted Amounts) []numa.Hint {
	least, hints := len(b.nodes), []numa.Hint(nil)
	numa.Subsets(b.nodes.numbers(), func(mask numa.Mask) {
		for kind, size := range wanted {
			if b.allocatable(mask, kind) < size {
				return
			}
		}
		least = min(least, mask.Count())
		if !b.splits(mask) && b.free(pod, mask, wanted) {
			hints = append(hints, numa.Hint{Nodes: mask})
		}
	})
	numa.Prefer(hints, least)
	return hints
}

// allocatable returns what containers can have of nodes, also what is in use.
func (b *Book) allocatable(mask numa.Mask, kind v1.ResourceName) uint64 {
	sum := uint64(0)
	for _, id := range mask.Nodes() {
		sum += b.nodes[id].Tables[kind].Allocatable
	}
	return sum
}

// free reports whether nodes have enough free memory, with that of ended init containers of the pod.
func (b *Book) free(pod *v1.Pod, mask numa.Mask, wanted Amounts) bool {
	for kind, size := range wanted {
		if _, free := b.nodes.sums(mask, kind); free+b.reusable(pod, mask, kind) < size {
			return false
		}
	}
	return true
}
