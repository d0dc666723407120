// Package allocation decides which devices each container of a pod has. It has no clock, network or disk: its inputs
// are the devices that plugins report and the requests of pods, and its output is the devices of a container, or the
// reason why there are none. The rules and the texts are those of the kubelet's device manager, and a module compares
// the two.
package allocation

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Device is a device as its plugin describes it.
type Device struct {
	// ID is unique among the devices of the resource.
	ID string
	// Healthy is true if the device can be given to a container.
	Healthy bool
	// NUMANodes are the NUMA nodes that the device is attached to; none if the plugin does not name any.
	NUMANodes []int64
}

// Container names a container of a pod.
type Container struct {
	Pod  types.UID
	Name string
}

// Grant has the devices of one resource that a container has.
type Grant struct {
	// Devices are sorted by ID. Their health is unknown.
	Devices []Device
	// Response is what the plugin gives to the container; nil until the plugin has answered.
	Response *pluginapi.ContainerAllocateResponse
	// Rebuilt is true for devices that a container in the runtime was found to have. The plugin is asked for its response
	// when the container is created again.
	Rebuilt bool
}

// Settled reports whether the container has the devices, and not only a reservation.
func (g Grant) Settled() bool { return g.Response != nil || g.Rebuilt }

// IDs returns the IDs of the devices, sorted.
func (g Grant) IDs() []string {
	ids := make([]string, 0, len(g.Devices))
	for _, d := range g.Devices {
		ids = append(ids, d.ID)
	}
	return ids
}

// Amounts are the number of devices of a resource on the node, and of those that pods can have.
type Amounts struct{ Capacity, Allocatable int64 }

// resource is what is known of a resource.
type resource struct {
	// devices are the last reported devices by ID, and healthy the sorted IDs of the healthy ones.
	devices map[string]Device
	healthy []string
	// gone is true while no plugin serves the resource. Then no device is healthy.
	gone bool
}

func (r *resource) usable() []string {
	if r.gone {
		return nil
	}
	return r.healthy
}

func (r *resource) isUsable(id string) bool { return !r.gone && r.devices[id].Healthy }

// grants are the devices of a pod by container and resource.
type grants map[string]map[string]Grant

// Book has the devices of the node and their allocation to containers. It is not safe for concurrent use. Create it
// with New.
type Book struct {
	resources map[string]*resource
	pods      map[types.UID]grants
}

// New returns an empty book.
func New() *Book {
	return &Book{resources: map[string]*resource{}, pods: map[types.UID]grants{}}
}

// Expect adds a resource whose plugin is not registered again yet after a restart. Its capacity is 0 until then.
func (b *Book) Expect(name string) {
	if b.resources[name] == nil {
		b.resources[name] = &resource{gone: true}
	}
}

// Update records all devices of a resource, as its plugin reports them. It returns the pods that have a device whose
// health has changed, or that has come back, sorted.
func (b *Book) Update(name string, devices []Device) (changed []types.UID) {
	next := &resource{devices: make(map[string]Device, len(devices))}
	for _, d := range devices {
		next.devices[d.ID] = d
	}
	for id, d := range next.devices {
		if d.Healthy {
			next.healthy = append(next.healthy, id)
		}
	}
	slices.Sort(next.healthy)
	var before map[string]Device
	if known := b.resources[name]; known != nil {
		before = known.devices
	}
	b.resources[name] = next
	for uid, pod := range b.pods {
		differs := func(d Device) bool {
			now, exists := next.devices[d.ID]
			last, existed := before[d.ID]
			return exists && (!existed || last.Healthy != now.Healthy)
		}
		for _, held := range pod {
			if slices.ContainsFunc(held[name].Devices, differs) {
				changed = append(changed, uid)
				break
			}
		}
	}
	slices.Sort(changed)
	return changed
}

// Lose records that no plugin serves a resource any more. Its capacity stays, and nothing of it is allocatable. As with
// the kubelet, the resource of a plugin that has never reported a device has a capacity of 0 from then on.
func (b *Book) Lose(name string) {
	r := b.resources[name]
	if r == nil {
		r = &resource{devices: map[string]Device{}}
		b.resources[name] = r
	}
	r.gone = true
}

// Remove forgets the devices of a resource. Containers keep those that they have.
func (b *Book) Remove(name string) { delete(b.resources, name) }

// Manages reports whether a resource is one of device plugins: registered, or held by a container.
func (b *Book) Manages(name string) bool {
	if b.resources[name] != nil {
		return true
	}
	for _, pod := range b.pods {
		for _, held := range pod {
			if _, ok := held[name]; ok {
				return true
			}
		}
	}
	return false
}

// Awaits reports whether a resource was registered before a restart, and its plugin has not reported devices since.
func (b *Book) Awaits(name string) bool {
	r := b.resources[name]
	return r != nil && r.gone && r.devices == nil
}

// Amounts returns the amounts of each resource.
func (b *Book) Amounts() map[string]Amounts {
	all := make(map[string]Amounts, len(b.resources))
	for name, r := range b.resources {
		all[name] = Amounts{Capacity: int64(len(r.devices)), Allocatable: int64(len(r.usable()))}
	}
	return all
}

// Usable returns the healthy devices of each resource, sorted by ID.
func (b *Book) Usable() map[string][]Device {
	all := map[string][]Device{}
	for name, r := range b.resources {
		for _, id := range r.usable() {
			all[name] = append(all[name], r.devices[id])
		}
	}
	return all
}

// Held returns the devices of a container by resource.
func (b *Book) Held(c Container) map[string]Grant { return maps.Clone(b.pods[c.Pod][c.Name]) }

// Health returns the devices of a container by resource, with their last reported health. As in the kubelet, one that
// is not reported counts as healthy.
func (b *Book) Health(c Container) map[string][]Device {
	all := map[string][]Device{}
	for name, grant := range b.pods[c.Pod][c.Name] {
		if !grant.Settled() {
			continue
		}
		devices := slices.Clone(grant.Devices)
		for i, d := range devices {
			known, ok := Device{}, false
			if r := b.resources[name]; r != nil {
				known, ok = r.devices[d.ID]
			}
			devices[i].Healthy = !ok || known.Healthy
		}
		all[name] = devices
	}
	return all
}

// Pods returns the pods that have devices, sorted.
func (b *Book) Pods() []types.UID { return slices.Sorted(maps.Keys(b.pods)) }

// Has reports whether a pod has devices.
func (b *Book) Has(pod types.UID) bool { return len(b.pods[pod]) > 0 }

// Present returns why a device of a pod is not there: its resource is not registered, or the device is not healthy.
func (b *Book) Present(pod types.UID) error {
	held := b.pods[pod]
	for _, container := range slices.Sorted(maps.Keys(held)) {
		for _, name := range slices.Sorted(maps.Keys(held[container])) {
			count := len(held[container][name].Devices)
			need := Need{Container: Container{Pod: pod, Name: container}, Resource: name, Count: count}
			if _, err := b.missing(need); err != nil {
				return err
			}
		}
	}
	return nil
}

// Registered returns the names of the registered resources, sorted.
func (b *Book) Registered() []string { return slices.Sorted(maps.Keys(b.resources)) }

// Each calls f for each grant, sorted by pod, container and resource.
func (b *Book) Each(f func(c Container, resource string, g Grant)) {
	for _, uid := range b.Pods() {
		pod := b.pods[uid]
		for _, container := range slices.Sorted(maps.Keys(pod)) {
			for _, name := range slices.Sorted(maps.Keys(pod[container])) {
				f(Container{Pod: uid, Name: container}, name, pod[container][name])
			}
		}
	}
}

// Put records what a container has, such as from a checkpoint, or with the response of a plugin.
func (b *Book) Put(c Container, resource string, g Grant) {
	pod := b.pods[c.Pod]
	if pod == nil {
		pod = grants{}
		b.pods[c.Pod] = pod
	}
	if pod[c.Name] == nil {
		pod[c.Name] = map[string]Grant{}
	}
	pod[c.Name][resource] = g
}

// Adopt records the devices that a container in the runtime was created with. It returns false if another pod has one
// of them. Containers of one pod may share devices, because a container reuses those of init containers before it.
func (b *Book) Adopt(c Container, resource string, g Grant) bool {
	for uid, pod := range b.pods {
		for _, held := range pod {
			shared := func(d Device) bool {
				return slices.ContainsFunc(g.Devices, func(own Device) bool { return own.ID == d.ID })
			}
			if uid != c.Pod && slices.ContainsFunc(held[resource].Devices, shared) {
				return false
			}
		}
	}
	b.Put(c, resource, g)
	return true
}

// Drop takes the devices of one resource from a container.
func (b *Book) Drop(c Container, resource string) {
	pod := b.pods[c.Pod]
	delete(pod[c.Name], resource)
	if len(pod[c.Name]) == 0 {
		delete(pod, c.Name)
	}
	if len(pod) == 0 {
		delete(b.pods, c.Pod)
	}
}

// Release takes all devices from a pod. It returns false if the pod has none.
func (b *Book) Release(pod types.UID) bool {
	_, had := b.pods[pod]
	delete(b.pods, pod)
	return had
}
