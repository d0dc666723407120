package allocation

import (
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/quartet-node/quartet/internal/resourcename"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/numa"
)

// mask returns the NUMA nodes of a device.
func (d Device) mask() numa.Mask {
	var m numa.Mask
	for _, node := range d.NUMANodes {
		m |= numa.MaskOf(int(node))
	}
	return m
}

// free returns the healthy devices of a resource that no container has, sorted.
func (b *Book) free(resource string) []string {
	used := b.inUse(resource)
	return slices.DeleteFunc(slices.Clone(b.resources[resource].usable()), func(id string) bool { return used[id] })
}

// byAffinity divides devices into those of the NUMA nodes of an affinity, and the others: those of other NUMA nodes
// first, and then those that name none. Without an affinity, all are others.
func (b *Book) byAffinity(resource string, ids []string, affinity numa.Mask) (aligned, others []string) {
	if affinity == 0 || !b.names(resource) {
		return nil, ids
	}
	var nowhere []string
	for _, id := range ids {
		switch nodes := b.resources[resource].devices[id].mask(); {
		case nodes == 0:
			nowhere = append(nowhere, id)
		case nodes&affinity != 0:
			aligned = append(aligned, id)
		default:
			others = append(others, id)
		}
	}
	return aligned, append(others, nowhere...)
}

// names reports whether any device of a resource names its NUMA nodes. Only such resources are aligned.
func (b *Book) names(resource string) bool {
	r := b.resources[resource]
	if r == nil {
		return false
	}
	for _, d := range r.devices {
		if len(d.NUMANodes) > 0 {
			return true
		}
	}
	return false
}

// Hints returns the NUMA nodes that a container could get its devices from, by resource; machine are the NUMA nodes of
// the machine. A resource whose devices name no NUMA nodes has no preference.
func (b *Book) Hints(pod *v1.Pod, c *v1.Container, machine []int) numa.Hints {
	hints := numa.Hints{}
	for _, need := range b.NeedsOf(pod, c) {
		reuse := slices.Collect(maps.Keys(b.reusable(pod, need)))
		hints[need.Resource] = b.hints(need, b.pods[pod.UID][c.Name][need.Resource].IDs(), reuse, machine)
	}
	return hints
}

// PodHints returns the NUMA nodes that all containers of a pod together could get their devices from.
func (b *Book) PodHints(pod *v1.Pod, machine []int) numa.Hints {
	hints := numa.Hints{}
	limits := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{ExcludeOverhead: true})
	for name, limit := range limits {
		claimed := func(c *v1.Container) bool { return isClaimed(pod, c.Name, string(name)) }
		if !resourcename.IsExtended(string(name)) || !b.Manages(string(name)) ||
			slices.ContainsFunc(containers(pod), claimed) {
			continue
		}
		held := map[string]bool{}
		for _, resources := range b.pods[pod.UID] {
			for _, id := range resources[string(name)].IDs() {
				held[id] = true
			}
		}
		need := Need{Resource: string(name), Count: int(limit.Value())}
		hints[need.Resource] = b.hints(need, slices.Collect(maps.Keys(held)), nil, machine)
	}
	return hints
}

// hints returns the hints for one resource of which devices are held already, or can be reused.
func (b *Book) hints(need Need, held, reuse []string, machine []int) []numa.Hint {
	if !b.names(need.Resource) {
		return nil
	}
	if len(held) > 0 {
		if len(held) != need.Count {
			return []numa.Hint{}
		}
		return b.nodesFor(need, held, nil, machine)
	}
	free := b.free(need.Resource)
	total := slices.Concat(free, reuse)
	slices.SortFunc(total, strings.Compare)
	if len(slices.Compact(total)) < need.Count {
		return []numa.Hint{}
	}
	return b.nodesFor(need, free, reuse, machine)
}

// nodesFor returns the sets of NUMA nodes with enough devices. Each has a node of every reusable device that names
// some.
func (b *Book) nodesFor(need Need, available, reuse []string, machine []int) []numa.Hint {
	devices := b.resources[need.Resource].devices
	var all numa.Mask
	for _, d := range devices {
		all |= d.mask()
	}
	// Only nodes with devices matter, and a machine may have many others.
	nodes := (all & numa.MaskOf(machine...)).Nodes()
	if len(nodes) == 0 {
		nodes = machine
	}
	least, hints := len(nodes), []numa.Hint{}
	numa.Subsets(nodes, func(mask numa.Mask) {
		total, has := 0, 0
		for _, d := range devices {
			if d.mask()&mask != 0 {
				total++
			}
		}
		if total >= need.Count {
			least = min(least, mask.Count())
		}
		for _, id := range reuse {
			switch of := devices[id].mask(); {
			case of == 0:
			case of&mask == 0:
				return
			default:
				has++
			}
		}
		for _, id := range available {
			if devices[id].mask()&mask != 0 {
				has++
			}
		}
		if has >= need.Count {
			hints = append(hints, numa.Hint{Nodes: mask})
		}
	})
	numa.Prefer(hints, least)
	return hints
}
