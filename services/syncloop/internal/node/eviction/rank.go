package eviction

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/quartet-node/quartet/services/syncloop/internal/node/stats"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/admission"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/diskusage"
)

// The signals, as the kubelet and nodestatus name them.
const (
	signalMemory      = "memory.available"
	signalAllocatable = "allocatableMemory.available"
	signalNodeFS      = "nodefs.available"
	signalNodeInodes  = "nodefs.inodesFree"
	signalImageFS     = "imagefs.available"
	signalImageInodes = "imagefs.inodesFree"
	signalPIDs        = "pid.available"
)

// The resources that signals are about, as the kubelet calls them in its messages.
const (
	resourceInodes v1.ResourceName = "inodes"
	resourcePIDs   v1.ResourceName = "pids"
)

// resourceOf says which resource a signal is about; empty for a signal that pods cannot be ended for.
func resourceOf(signal string) v1.ResourceName {
	switch signal {
	case signalMemory, signalAllocatable:
		return v1.ResourceMemory
	case signalNodeFS, signalImageFS:
		return v1.ResourceEphemeralStorage
	case signalNodeInodes, signalImageInodes:
		return resourceInodes
	case signalPIDs:
		return resourcePIDs
	default:
		return ""
	}
}

// Candidate is a pod that may be ended.
type Candidate struct {
	Pod *v1.Pod
	// Usage is what it uses; nil when nothing is known of it.
	Usage *stats.PodUsage
}

// Rank puts pods in the order in which they are to be ended for a signal, the first first, as the kubelet does: those
// of which nothing is known, by their priority, then those that use more than they ask for; of these the ones of the
// least priority; of these the ones that use most beyond what they ask for. Processes are asked for by nobody, so there
// it is the priority and then how many. For disk only what is on the file system in question counts; dedicated tells
// that images and the layers of containers have one of their own.
func Rank(signal string, dedicated bool, pods []Candidate) {
	name := resourceOf(signal)
	slices.SortStableFunc(pods, func(a, b Candidate) int {
		if name == resourcePIDs {
			return cmp.Or(byPriority(a, b), unknownFirst(a, b), processes(b)-processes(a))
		}
		if a.Usage == nil && b.Usage == nil {
			return byPriority(a, b)
		}
		return cmp.Or(unknownFirst(a, b), exceedingFirst(a, b, signal, dedicated), byPriority(a, b), cmp.Compare(beyond(b, signal, dedicated), beyond(a, signal, dedicated)))
	})
}

func byPriority(a, b Candidate) int {
	return cmp.Compare(corev1helpers.PodPriority(a.Pod), corev1helpers.PodPriority(b.Pod))
}

func unknownFirst(a, b Candidate) int { return trueFirst(a.Usage == nil, b.Usage == nil) }

func exceedingFirst(a, b Candidate, signal string, dedicated bool) int {
	exceeds := func(c Candidate) bool { return used(c, signal, dedicated) > request(c.Pod, resourceOf(signal)) }
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

// beyond is how much a pod uses beyond what it asks for. Inodes are asked for by nobody; as in the kubelet, what is
// asked for of the disk counts for them.
func beyond(c Candidate, signal string, dedicated bool) int64 {
	name := resourceOf(signal)
	if name == resourceInodes {
		name = v1.ResourceEphemeralStorage
	}
	return used(c, signal, dedicated) - request(c.Pod, name)
}

// request is how much a pod asks for, in bytes.
func request(pod *v1.Pod, name v1.ResourceName) int64 {
	quantity := admission.Counted(pod, name)
	return quantity.Value()
}

// used is how much a pod uses of what a signal is about: bytes, or inodes.
func used(c Candidate, signal string, dedicated bool) int64 {
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
	layers, rest := c.Usage.Layers, []*diskusage.Usage{c.Usage.Logs, c.Usage.Volumes}
	parts := append(rest, layers)
	if dedicated {
		parts = rest
		if signal == signalImageFS || signal == signalImageInodes {
			parts = []*diskusage.Usage{layers}
		}
	}
	var sum diskusage.Usage
	for _, part := range parts {
		if part != nil {
			sum = sum.Add(*part)
		}
	}
	if name == resourceInodes {
		return sum.Inodes
	}
	return sum.Bytes
}
