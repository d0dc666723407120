package nodeobject

import (
	"cmp"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/services/nodestatus/internal/facts"
)

// The names of the signals that are read here. Those of the images' file system are not: only the runtime knows where
// it is, and nodestatus has no access to the runtime.
const (
	signalMemory   = "memory.available"
	signalNodeFS   = "nodefs.available"
	signalNodeFSIn = "nodefs.inodesFree"
	signalPIDs     = "pid.available"
)

// conditionOf says which condition a signal sets.
var conditionOf = map[string]v1.NodeConditionType{
	signalMemory:   v1.NodeMemoryPressure,
	signalNodeFS:   v1.NodeDiskPressure,
	signalNodeFSIn: v1.NodeDiskPressure,
	signalPIDs:     v1.NodePIDPressure,
}

// Signal is how much of a resource is left, beside how much must be.
type Signal struct {
	// Name is the kubelet's name of the signal.
	Name string
	// Available is what is left and Threshold what must be: bytes, inodes or processes.
	Available, Threshold int64
}

func capacityOf(s Settings, m facts.Machine, r facts.Readings) v1.ResourceList {
	capacity := v1.ResourceList{
		v1.ResourceCPU:    *resource.NewQuantity(int64(m.CPUs), resource.DecimalSI),
		v1.ResourceMemory: *resource.NewQuantity(m.MemoryBytes, resource.BinarySI),
		v1.ResourcePods:   *resource.NewQuantity(s.MaxPods, resource.DecimalSI),
	}
	if r.NodeFS.CapacityBytes > 0 {
		capacity[v1.ResourceEphemeralStorage] = *resource.NewQuantity(r.NodeFS.CapacityBytes, resource.BinarySI)
	}
	for _, pages := range m.HugePages {
		size := resource.NewQuantity(pages.PageBytes, resource.BinarySI)
		capacity[v1.ResourceName(v1.ResourceHugePagesPrefix+size.String())] = *resource.NewQuantity(pages.PageBytes*pages.Pages, resource.BinarySI)
	}
	return capacity
}

// allocatable is what pods may ask for: the capacity less what is reserved, less what must be left before pods are
// evicted, and for memory less what is set aside as huge pages. It is never below 0.
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
	for signal, name := range map[string]v1.ResourceName{signalMemory: v1.ResourceMemory, signalNodeFS: v1.ResourceEphemeralStorage} {
		threshold, ok := s.Thresholds[signal]
		all := capacity[name]
		if ok {
			take(name, *resource.NewQuantity(threshold.Of(all.Value()), resource.BinarySI))
		}
	}
	for name, amount := range capacity {
		if strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix) {
			take(v1.ResourceMemory, amount)
		}
	}
	return free
}

// reading is how much of a resource is left, and how much there is in all.
type reading struct{ available, capacity int64 }

// read returns the reading of a signal; not ok when there is none. A capacity of 0 means that it could not be read.
func read(signal string, m facts.Machine, r facts.Readings) (reading, bool) {
	var got reading
	switch signal {
	case signalMemory:
		got = reading{available: r.MemoryAvailableBytes, capacity: m.MemoryBytes}
		return got, r.MemoryAvailableBytes > 0
	case signalNodeFS:
		got = reading{available: r.NodeFS.AvailableBytes, capacity: r.NodeFS.CapacityBytes}
	case signalNodeFSIn:
		got = reading{available: r.NodeFS.InodesFree, capacity: r.NodeFS.Inodes}
	case signalPIDs:
		got = reading{available: r.MaxPIDs - r.RunningPIDs, capacity: r.MaxPIDs}
	default:
	}
	return got, got.capacity > 0
}

// compare returns what is left beside each threshold, and the thresholds that could not be compared with anything.
func compare(thresholds map[string]nodeconfig.Threshold, m facts.Machine, r facts.Readings) (signals []Signal, unread []string) {
	for name, threshold := range thresholds {
		if _, known := conditionOf[name]; !known {
			continue
		}
		got, ok := read(name, m, r)
		if !ok {
			// A file system that does not count inodes cannot run out of them.
			if name != signalNodeFSIn || r.NodeFS.CapacityBytes == 0 {
				unread = append(unread, name)
			}
			continue
		}
		signals = append(signals, Signal{Name: name, Available: got.available, Threshold: threshold.Of(got.capacity)})
	}
	slices.SortFunc(signals, func(a, b Signal) int { return cmp.Compare(a.Name, b.Name) })
	slices.Sort(unread)
	return signals, unread
}
