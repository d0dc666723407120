package memory

import (
	"cmp"
	"errors"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/kubectl/pkg/util/qos"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/numa"
)

// The kubelet's errors.
var (
	errSize = errors.New("[memorymanager] failed to represent quantity as int64")
	errNone = errors.New("[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is " +
		"available")
	errDefault  = errors.New("[memorymanager] failed to find the default preferred hint")
	errExtend   = errors.New("[memorymanager] failed to find NUMA nodes to extend the current topology hint")
	errExtended = errors.New("[memorymanager] failed to find the extended preferred hint")
	errViolates = errors.New("[memorymanager] preferred hint violates NUMA node allocation")
)

// Amounts are bytes by kind of memory.
type Amounts map[v1.ResourceName]uint64

// Kinds returns the kinds, sorted.
func (a Amounts) Kinds() []v1.ResourceName { return slices.Sorted(maps.Keys(a)) }

// Wanted returns the memory and huge pages that a container wants of NUMA nodes: what it requests, in a guaranteed pod.
// As in the kubelet without the gate PodLevelResourceManagers, a pod with resources of its own wants none.
func Wanted(pod *v1.Pod, c *v1.Container) (Amounts, error) {
	if resourcehelper.IsPodLevelResourcesSet(pod) || qos.GetPodQOS(pod) != v1.PodQOSGuaranteed {
		return nil, nil
	}
	wanted := Amounts{}
	for name, amount := range c.Resources.Requests {
		if !managed(name) || amount.IsZero() {
			continue
		}
		size, ok := amount.AsInt64()
		if !ok || size < 0 {
			return nil, errSize
		}
		wanted[name] = uint64(size)
	}
	return wanted, nil
}

// WantedByPod returns what the containers of a pod want at the same time.
func WantedByPod(pod *v1.Pod) (Amounts, error) {
	sidecars, most, running := Amounts{}, Amounts{}, Amounts{}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		wanted, err := Wanted(pod, c)
		if err != nil {
			return nil, err
		}
		for kind, size := range wanted {
			if podset.IsSidecar(c) {
				sidecars[kind] += size
				continue
			}
			most[kind] = max(most[kind], sidecars[kind]+size)
		}
	}
	for i := range pod.Spec.Containers {
		wanted, err := Wanted(pod, &pod.Spec.Containers[i])
		if err != nil {
			return nil, err
		}
		for kind, size := range wanted {
			running[kind] += size
		}
	}
	for kind, size := range running { // as in the kubelet, kinds that only init containers want do not count
		running[kind] = max(most[kind], sidecars[kind]+size)
	}
	return running, nil
}

// ended reports whether a container is an init container that has left its memory to the pods of the node: Started was
// called for a container after it. It has no memory of its own when it runs again, such as after the loss of a sandbox.
func (b *Book) ended(pod *v1.Pod, container string) bool {
	if _, has := b.held[pod.UID][container]; has {
		return false
	}
	at := slices.IndexFunc(pod.Spec.InitContainers, func(c v1.Container) bool { return c.Name == container })
	if at < 0 || podset.IsSidecar(&pod.Spec.InitContainers[at]) {
		return false
	}
	has := func(c v1.Container) bool { return len(b.held[pod.UID][c.Name]) > 0 }
	return slices.ContainsFunc(pod.Spec.InitContainers[at+1:], has) || slices.ContainsFunc(pod.Spec.Containers, has)
}

// reusable returns what a container may take over of init containers that have ended by then. Their blocks have what
// is left of their memory.
func (b *Book) reusable(pod *v1.Pod, mask numa.Mask, kind v1.ResourceName) uint64 {
	sum := uint64(0)
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if podset.IsSidecar(c) {
			continue
		}
		for _, block := range b.held[pod.UID][c.Name] {
			if block.Type == kind && block.Nodes == mask {
				sum += block.Size
			}
		}
	}
	return sum
}

// Allocate gives a container the memory that it wants, from the NUMA nodes of the best hint of all resources. Taken is
// true if it was given some, and false if it wants none or has it already. It changes nothing after an error.
func (b *Book) Allocate(pod *v1.Pod, c *v1.Container, best numa.Hint) (taken bool, err error) {
	wanted, err := Wanted(pod, c)
	if err != nil || len(wanted) == 0 {
		return false, err
	}
	if _, has := b.held[pod.UID][c.Name]; has || b.ended(pod, c.Name) {
		return false, nil
	}
	mask, err := b.choose(pod, wanted, best)
	if err != nil {
		return false, err
	}
	blocks := make([]Block, 0, len(wanted))
	for _, kind := range wanted.Kinds() {
		size := wanted[kind]
		b.nodes.take(Block{Type: kind, Size: size - min(size, b.reusable(pod, mask, kind)), Nodes: mask})
		b.takeOver(pod, c.Name, Block{Type: kind, Size: size, Nodes: mask})
		blocks = append(blocks, Block{Type: kind, Size: size, Nodes: mask})
	}
	b.put(pod.UID, c.Name, blocks)
	return true, nil
}

// takeOver takes from the init containers before a container what it has of their memory, so that the blocks of a pod
// are what it has in all.
func (b *Book) takeOver(pod *v1.Pod, container string, taken Block) {
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.Name == container {
			return
		}
		if podset.IsSidecar(c) {
			continue
		}
		for j, block := range b.held[pod.UID][c.Name] {
			if block.Type != taken.Type || block.Nodes != taken.Nodes {
				continue
			}
			size := min(block.Size, taken.Size)
			b.held[pod.UID][c.Name][j].Size -= size
			taken.Size -= size
		}
	}
}

// choose returns the NUMA nodes for what a container wants: those of the best hint, more if they do not have enough,
// and without a hint the fewest.
func (b *Book) choose(pod *v1.Pod, wanted Amounts, best numa.Hint) (numa.Mask, error) {
	if best.Nodes == 0 {
		found, ok := narrowest(b.hints(pod, wanted), 0)
		switch {
		case !ok:
			return 0, errNone
		case best.Preferred && !found.Preferred:
			return 0, errDefault
		}
		best = found
	}
	if !b.satisfies(best.Nodes, wanted) || best.Nodes.Count() == 1 && b.splits(best.Nodes) {
		found, ok := narrowest(b.hints(pod, wanted), best.Nodes)
		switch {
		case !ok:
			return 0, errExtend
		case best.Preferred && !found.Preferred:
			return 0, errExtended
		}
		best = found
	}
	if b.splits(best.Nodes) {
		return 0, errViolates
	}
	return best.Nodes, nil
}

// satisfies reports whether nodes have enough free memory.
func (b *Book) satisfies(mask numa.Mask, wanted Amounts) bool {
	for kind, size := range wanted {
		if _, free := b.nodes.sums(mask, kind); free < size {
			return false
		}
	}
	return true
}

// splits reports whether a node of a mask is in use on its own or with other nodes than those of the mask.
func (b *Book) splits(mask numa.Mask) bool {
	for _, id := range mask.Nodes() {
		if node := b.nodes[id]; node.Assignments > 0 && node.Group != mask {
			return true
		}
	}
	return false
}

// narrowest returns the best of the hints that have all nodes of a mask: a preferred one, and then the narrowest one.
func narrowest(hints []numa.Hint, within numa.Mask) (best numa.Hint, ok bool) {
	for _, h := range hints {
		if h.Nodes&within != within {
			continue
		}
		switch {
		case !ok, h.Preferred && !best.Preferred:
			best = h
		case h.Preferred == best.Preferred &&
			cmp.Or(cmp.Compare(h.Nodes.Count(), best.Nodes.Count()), cmp.Compare(h.Nodes, best.Nodes)) < 0:
			best = h
		}
		ok = true
	}
	return best, ok
}

// Started is called when a container is about to be created: the init containers before it have ended, and what no
// container has taken over of their memory is free for other pods. It returns whether anything has changed.
func (b *Book) Started(pod *v1.Pod, container string) bool {
	changed := false
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.Name == container {
			break
		}
		if !podset.IsSidecar(c) {
			changed = b.drop(pod.UID, c.Name) || changed
		}
	}
	return changed
}
