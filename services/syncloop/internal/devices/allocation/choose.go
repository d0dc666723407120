package allocation

import (
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/resourcename"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/numa"
)

// Need is the number of devices of a resource that a container asks for.
type Need struct {
	Container Container
	Resource  string
	Count     int
	// Affinity are the NUMA nodes whose devices come first; none if any will do.
	Affinity numa.Mask
}

// Needs returns what a pod asks for of the resources of device plugins, in the order of allocation: init containers
// first, and the resources of a container by name.
func (b *Book) Needs(pod *v1.Pod) []Need {
	var needs []Need
	for _, c := range containers(pod) {
		needs = append(needs, b.NeedsOf(pod, c)...)
	}
	return needs
}

// NeedsOf returns what one container of a pod asks for. Limits suffice, because an extended resource cannot be
// overcommitted. A resource that the cluster provides by a resource claim is none of device plugins.
func (b *Book) NeedsOf(pod *v1.Pod, c *v1.Container) []Need {
	var needs []Need
	for _, name := range slices.Sorted(maps.Keys(c.Resources.Limits)) {
		if !resourcename.IsExtended(string(name)) || !b.Manages(string(name)) ||
			isClaimed(pod, c.Name, string(name)) {
			continue
		}
		limit := c.Resources.Limits[name]
		needs = append(needs, Need{
			Container: Container{Pod: pod.UID, Name: c.Name}, Resource: string(name), Count: int(limit.Value()),
		})
	}
	return needs
}

// isClaimed reports whether a container has a resource by the pod's claim of extended resources.
func isClaimed(pod *v1.Pod, container, resource string) bool {
	extended := pod.Status.ExtendedResourceClaimStatus
	return extended != nil && slices.ContainsFunc(extended.RequestMappings,
		func(m v1.ContainerExtendedResourceRequest) bool {
			return m.ContainerName == container && m.ResourceName == resource
		})
}

func containers(pod *v1.Pod) []*v1.Container {
	all := make([]*v1.Container, 0, len(pod.Spec.InitContainers)+len(pod.Spec.Containers))
	for i := range pod.Spec.InitContainers {
		all = append(all, &pod.Spec.InitContainers[i])
	}
	for i := range pod.Spec.Containers {
		all = append(all, &pod.Spec.Containers[i])
	}
	return all
}

// reusable returns the devices of a resource that a container may take over: those of init containers before it that
// have ended by then, without those that a sidecar or a container has taken over already.
func (b *Book) reusable(pod *v1.Pod, need Need) map[string]bool {
	reuse := map[string]bool{}
	for i, c := range containers(pod) {
		if c.Name == need.Container.Name {
			break
		}
		ends := i < len(pod.Spec.InitContainers) && !podset.IsSidecar(c)
		for _, d := range b.pods[pod.UID][c.Name][need.Resource].Devices {
			if ends {
				reuse[d.ID] = true
			} else {
				delete(reuse, d.ID)
			}
		}
	}
	return reuse
}

// inUse returns the devices of a resource that containers have.
func (b *Book) inUse(resource string) map[string]bool {
	used := map[string]bool{}
	for _, pod := range b.pods {
		for _, held := range pod {
			for _, d := range held[resource].Devices {
				used[d.ID] = true
			}
		}
	}
	return used
}

// missing returns the number of devices that a container lacks. Its errors are the kubelet's.
func (b *Book) missing(need Need) (int, error) {
	held, has := b.pods[need.Container.Pod][need.Container.Name][need.Resource]
	lacks := need.Count
	if has {
		if lacks -= len(held.Devices); lacks != 0 {
			return 0, fmt.Errorf("pod %q container %q changed request for resource %q from %d to %d", need.Container.Pod,
				need.Container.Name, need.Resource, len(held.Devices), need.Count)
		}
	}
	r := b.resources[need.Resource]
	if r == nil {
		return 0, fmt.Errorf("cannot allocate unregistered device %s", need.Resource)
	}
	if len(r.usable()) == 0 {
		return 0, fmt.Errorf("no healthy devices present; cannot allocate unhealthy devices %s", need.Resource)
	}
	if slices.ContainsFunc(held.Devices, func(d Device) bool { return !r.isUsable(d.ID) }) {
		return 0, fmt.Errorf("previously allocated devices are no longer healthy; cannot allocate unhealthy devices %s",
			need.Resource)
	}
	return lacks, nil
}

// Question is a call of GetPreferredAllocation.
type Question struct {
	// Available are the devices to choose from, and Required those that are taken in any case; both are sorted.
	Available, Required []string
	// Size is the number of devices to choose, the required ones included.
	Size int
}

// Ask returns the question to the plugin before Reserve; ok is false if there is no choice to make. An error is that of
// Reserve.
func (b *Book) Ask(pod *v1.Pod, need Need) (q Question, ok bool, err error) {
	o, err := b.options(pod, need)
	if err != nil || o.lacks == 0 {
		return Question{}, false, err
	}
	available := slices.Concat(o.among, o.taken)
	slices.Sort(available)
	required := slices.Clone(o.taken)
	slices.Sort(required)
	return Question{Available: available, Required: required, Size: need.Count}, true, nil
}

// options are the devices that a container can get.
type options struct {
	// taken are taken in any case: reused ones, and those of the affinity if all of them are needed.
	taken []string
	// among are the devices that the plugin can choose from, sorted. In the order of rest, they are taken without its
	// preference.
	among, rest []string
	// lacks is the number of devices that are needed beside taken.
	lacks int
}

// options returns the devices that a container can get; with lacks 0 there is no choice.
func (b *Book) options(pod *v1.Pod, need Need) (options, error) {
	lacks, err := b.missing(need)
	if err != nil || lacks == 0 {
		return options{}, err
	}
	var o options
	for _, id := range slices.Sorted(maps.Keys(b.reusable(pod, need))) {
		if lacks == 0 {
			break
		}
		o.taken, lacks = append(o.taken, id), lacks-1
	}
	if lacks == 0 {
		return o, nil
	}
	free := b.free(need.Resource)
	if len(free) < lacks {
		return options{}, fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d",
			need.Resource, lacks, len(free))
	}
	aligned, others := b.byAffinity(need.Resource, free, need.Affinity)
	o.lacks = lacks - len(aligned)
	switch {
	case o.lacks < 0:
		o.among, o.rest, o.lacks = aligned, aligned, lacks
	default:
		o.taken, o.rest = append(o.taken, aligned...), others
		o.among = slices.Sorted(slices.Values(others))
	}
	return o, nil
}

// Reserve chooses the devices of a container and records them without a response of the plugin: no other container gets
// them. It prefers devices of init containers that have ended, then those of the affinity, those that the plugin
// prefers, and the first ones by ID. It returns no devices if the container has all that it needs. It changes nothing
// after an error.
func (b *Book) Reserve(pod *v1.Pod, need Need, preferred []string) ([]string, error) {
	o, err := b.options(pod, need)
	if err != nil {
		return nil, err
	}
	chosen := make(map[string]bool, need.Count)
	for _, id := range o.taken {
		chosen[id] = true
	}
	canTake := func(id string) bool {
		_, found := slices.BinarySearch(o.among, id)
		return found
	}
	for _, list := range [][]string{preferred, o.rest} {
		for _, id := range list {
			if o.lacks > 0 && !chosen[id] && canTake(id) {
				chosen[id] = true
				o.lacks--
			}
		}
	}
	if len(chosen) == 0 {
		return nil, nil
	}
	ids := slices.Sorted(maps.Keys(chosen))
	grant := Grant{}
	for _, id := range ids {
		grant.Devices = append(grant.Devices, Device{
			ID: id, NUMANodes: slices.Clone(b.resources[need.Resource].devices[id].NUMANodes),
		})
	}
	b.Put(need.Container, need.Resource, grant)
	return ids, nil
}

// Check returns why the devices of a pod cannot be allocated, nil if they can. It changes nothing.
func (b *Book) Check(pod *v1.Pod) error {
	var reserved []Need
	defer func() {
		for _, need := range reserved {
			b.Drop(need.Container, need.Resource)
		}
	}()
	for _, need := range b.Needs(pod) {
		ids, err := b.Reserve(pod, need, nil)
		if err != nil {
			return err
		}
		if len(ids) > 0 {
			reserved = append(reserved, need)
		}
	}
	return nil
}
