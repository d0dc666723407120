package eviction

import (
	"cmp"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/quartet-node/quartet/services/syncloop/internal/node/stats"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/admission"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/diskusage"
)

// The names of the signals, as in the kubelet and nodestatus.
const (
	signalMemory      = "memory.available"
	signalAllocatable = "allocatableMemory.available"
	signalNodeFS      = "nodefs.available"
	signalNodeInodes  = "nodefs.inodesFree"
	signalImageFS     = "imagefs.available"
	signalImageInodes = "imagefs.inodesFree"
	signalPIDs        = "pid.available"

	signalContainerFS     = "containerfs.available"
	signalContainerInodes = "containerfs.inodesFree"
)

// The file systems in the names of signals.
const (
	diskNode       = "nodefs"
	diskImages     = "imagefs"
	diskContainers = "containerfs"
)

// The names of resources in the kubelet's messages.
const (
	resourceInodes v1.ResourceName = "inodes"
	resourcePIDs   v1.ResourceName = "pids"
)

// resourceOf returns the resource that a signal measures. It is empty for a signal that no eviction can relieve.
func resourceOf(signal string) v1.ResourceName {
	switch signal {
	case signalMemory, signalAllocatable:
		return v1.ResourceMemory
	case signalNodeFS, signalImageFS, signalContainerFS:
		return v1.ResourceEphemeralStorage
	case signalNodeInodes, signalImageInodes, signalContainerInodes:
		return resourceInodes
	case signalPIDs:
		return resourcePIDs
	default:
		return ""
	}
}

// Candidate is a pod that may be evicted.
type Candidate struct {
	Pod *v1.Pod
	// Usage is the pod's resource usage; nil if it is not known.
	Usage *stats.PodUsage
}

// Rank sorts pods into the order of their eviction, as the kubelet does. Pods of unknown usage come first, by their
// priority. Then come pods that exceed their requests, then the others. Within these groups, pods of lower priority
// come first, and then pods that exceed their requests by more. Nothing requests processes, so for PIDs the order is
// priority and then the number of processes. For disk signals only the usage of the file system in question counts.
func Rank(signal string, disks stats.Disks, pods []Candidate) {
	name := resourceOf(signal)
	slices.SortStableFunc(pods, func(a, b Candidate) int {
		if name == resourcePIDs {
			return cmp.Or(byPriority(a, b), unknownFirst(a, b), processes(b)-processes(a))
		}
		if a.Usage == nil && b.Usage == nil {
			return byPriority(a, b)
		}
		return cmp.Or(unknownFirst(a, b), exceedingFirst(a, b, signal, disks), byPriority(a, b),
			cmp.Compare(beyond(b, signal, disks), beyond(a, signal, disks)))
	})
}

func byPriority(a, b Candidate) int {
	return cmp.Compare(corev1helpers.PodPriority(a.Pod), corev1helpers.PodPriority(b.Pod))
}

func unknownFirst(a, b Candidate) int { return trueFirst(a.Usage == nil, b.Usage == nil) }

func exceedingFirst(a, b Candidate, signal string, disks stats.Disks) int {
	exceeds := func(c Candidate) bool { return used(c, signal, disks) > request(c.Pod, resourceOf(signal)) }
	return trueFirst(exceeds(a), exceeds(b))
}

func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	default:
		return 1
	}
}

func processes(c Candidate) int {
	if c.Usage == nil || c.Usage.Processes == nil {
		return 0
	}
	return int(*c.Usage.Processes) //nolint:gosec // less than there can be
}

// beyond returns the usage of a pod minus its request. Nothing requests inodes; as in the kubelet, the request for
// ephemeral storage is subtracted from them.
func beyond(c Candidate, signal string, disks stats.Disks) int64 {
	name := resourceOf(signal)
	if name == resourceInodes {
		name = v1.ResourceEphemeralStorage
	}
	return used(c, signal, disks) - request(c.Pod, name)
}

// request returns the request of a pod, in bytes.
func request(pod *v1.Pod, name v1.ResourceName) int64 {
	quantity := admission.Counted(pod, name)
	return quantity.Value()
}

// used returns the usage of the resource that a signal measures: bytes or inodes.
func used(c Candidate, signal string, disks stats.Disks) int64 {
	if c.Usage == nil {
		return 0
	}
	name := resourceOf(signal)
	if name == v1.ResourceMemory {
		if c.Usage.MemoryBytes == nil {
			return 0
		}
		return int64(*c.Usage.MemoryBytes) //nolint:gosec // less than 8 EiB
	}
	var sum diskusage.Usage
	for _, part := range partsOn(c.Usage, signal, disks) {
		if part != nil {
			sum = sum.Add(*part)
		}
	}
	if name == resourceInodes {
		return sum.Inodes
	}
	return sum.Bytes
}

// partsOn returns the parts of a pod's usage that count for a signal, as in the kubelet. With split disks, layers count
// as the node's, and no part of a pod as images.
func partsOn(usage *stats.PodUsage, signal string, disks stats.Disks) []*diskusage.Usage {
	name, _, _ := strings.Cut(signal, ".")
	switch {
	case disks == stats.SplitDisks && name == diskImages:
		return nil
	case disks == stats.ImageDisk && name == diskNode:
		return []*diskusage.Usage{usage.Logs, usage.Volumes}
	case disks == stats.ImageDisk:
		return []*diskusage.Usage{usage.Layers}
	}
	return []*diskusage.Usage{usage.Logs, usage.Volumes, usage.Layers}
}
