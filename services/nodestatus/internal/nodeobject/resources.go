package nodeobject

import (
	"maps"
	"math"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/quartet-node/quartet/services/nodestatus/internal/eviction"
	"github.com/quartet-node/quartet/services/nodestatus/internal/facts"
)

func capacityOf(s Settings, m facts.Machine, r facts.Readings) v1.ResourceList {
	capacity := v1.ResourceList{
		v1.ResourceCPU:    *resource.NewQuantity(int64(m.CPUs), resource.DecimalSI),
		v1.ResourceMemory: *resource.NewQuantity(m.MemoryBytes, resource.BinarySI),
		v1.ResourcePods:   *resource.NewQuantity(pods(s, m), resource.DecimalSI),
	}
	if r.NodeFS.CapacityBytes > 0 {
		capacity[v1.ResourceEphemeralStorage] = *resource.NewQuantity(r.NodeFS.CapacityBytes, resource.BinarySI)
	}
	for _, pages := range m.HugePages {
		size := resource.NewQuantity(pages.PageBytes, resource.BinarySI)
		name := v1.ResourceName(v1.ResourceHugePagesPrefix + size.String())
		capacity[name] = *resource.NewQuantity(pages.PageBytes*pages.Pages, resource.BinarySI)
	}
	return capacity
}

// hugePageBytes returns the memory that is reserved for huge pages.
func hugePageBytes(m facts.Machine) int64 {
	var sum int64
	for _, pages := range m.HugePages {
		sum += pages.PageBytes * pages.Pages
	}
	return sum
}

// pods returns the capacity for pods.
func pods(s Settings, m facts.Machine) int64 {
	if s.PodsPerCore > 0 {
		return min(s.MaxPods, s.PodsPerCore*int64(m.CPUs))
	}
	return s.MaxPods
}

// allocatable returns the allocatable resources: the capacity minus the reservations, minus the hard eviction
// thresholds, and for memory minus reserved huge pages. It is never negative.
func allocatable(s Settings, capacity v1.ResourceList) v1.ResourceList {
	free := capacity.DeepCopy()
	take := func(name v1.ResourceName, amount resource.Quantity) {
		if left, ok := free[name]; ok {
			left.Sub(amount)
			if left.Sign() < 0 {
				left = *resource.NewQuantity(0, left.Format)
			}
			free[name] = left
		}
	}
	for name, amount := range s.Reserved {
		take(name, amount)
	}
	for _, threshold := range s.Thresholds {
		name, holds := map[string]v1.ResourceName{eviction.Memory: v1.ResourceMemory,
			eviction.NodeFS: v1.ResourceEphemeralStorage}[threshold.Signal]
		if all := capacity[name]; holds && threshold.Hard() {
			take(name, *resource.NewQuantity(threshold.Value.Of(all.Value()), resource.BinarySI))
		}
	}
	for name, amount := range capacity {
		if strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix) {
			take(v1.ResourceMemory, amount)
		}
	}
	return free
}

// readings returns all readings by signal: those of this process, and those of syncloop.
func readings(in Input) map[string]eviction.Reading {
	m, r := in.Machine, in.Readings
	all := map[string]eviction.Reading{}
	maps.Copy(all, in.SyncLoop.Readings)
	add := func(signal string, available, capacity int64) {
		all[signal] = eviction.Reading{Available: available, Capacity: capacity, At: in.Now}
	}
	if r.MemoryAvailableBytes > 0 {
		available := r.MemoryAvailableBytes
		if in.Settings.HugePageAware {
			available = max(available-hugePageBytes(m), 0)
		}
		// As in the kubelet, the capacity is what is available and the working set.
		add(eviction.Memory, available, available+m.MemoryBytes-r.MemoryAvailableBytes)
	}
	if r.NodeFS.CapacityBytes > 0 {
		add(eviction.NodeFS, r.NodeFS.AvailableBytes, r.NodeFS.CapacityBytes)
		if r.NodeFS.Inodes > 0 {
			add(eviction.NodeFSInodes, r.NodeFS.InodesFree, r.NodeFS.Inodes)
		} else { // a file system without a fixed number of inodes cannot run out of them
			add(eviction.NodeFSInodes, math.MaxInt64, 0)
		}
	}
	if r.MaxPIDs > 0 {
		add(eviction.PIDs, r.MaxPIDs-r.RunningPIDs, r.MaxPIDs)
	}
	return all
}

// isOwn reports whether this process reads a signal, and not syncloop, which has access to the runtime and to the
// cgroups of pods.
func isOwn(signal string) bool {
	switch signal {
	case eviction.ImageFS, eviction.ImageFSInodes, eviction.ContainerFS, eviction.ContainerFSInodes,
		eviction.AllocatableMemory:
		return false
	default:
		return true
	}
}
