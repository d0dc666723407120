// Package claimbook knows the resource claims of the node's pods: which pods use a claim, what its drivers have
// prepared for it, and therefore what a driver must be asked. It decides without clock, network and disk.
//
// # The life of a claim
//
//	Use by the first pod        every driver has answered        Leave of the last pod        Left
//	 │                                    │                               │                     │
//	 ├───────────── recorded ─────────────┼─────────── prepared ──────────┼──── unpreparing ────┤ gone
//
// A claim of an earlier process is recorded: whether its drivers had answered is not known, so they are asked again
// when the next pod uses it. Drivers answer such a repetition with the same devices. A claim that could not be
// unprepared stays unpreparing until it is; no other pod may use it in the meantime.
package claimbook

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
)

// AnyDriver is the key of the number of all claims in use, as in the kubelet's metric.
const AnyDriver = "<any>"

// Device is a device of a claim, as its driver described it when it prepared the claim.
type Device struct {
	Pool, Name string
	// ShareID is the ID of the share of a device that several claims use; nil for a whole device.
	ShareID *types.UID
	// Requests are the requests of the claim that the device is for; none means all.
	Requests []string
	// CDI are the IDs by which the runtime gives the device to a container.
	CDI []string
}

// For reports whether a device is for a request of its claim; an empty request means all of them.
func (d *Device) For(request string) bool {
	return request == "" || len(d.Requests) == 0 || slices.Contains(d.Requests, request)
}

// Driver is what a claim has of a driver.
type Driver struct {
	Devices []Device
	// Skips are the calls that the driver does not need for the claim.
	Skips []resourceapi.SkipNodeOperation
}

// Needs reports whether a driver must be called for an operation.
func (d Driver) Needs(operation resourceapi.SkipNodeOperation) bool {
	return !slices.Contains(d.Skips, operation) && !slices.Contains(d.Skips, resourceapi.SkipNodeOperationAll)
}

// Claim is a claim with the drivers of its devices.
type Claim struct {
	Name    types.NamespacedName
	UID     types.UID
	Drivers map[string]Driver
}

// DriverNames returns the names of the drivers, sorted.
func (c *Claim) DriverNames() []string { return slices.Sorted(maps.Keys(c.Drivers)) }

// Entry is a claim with the pods that use it.
type Entry struct {
	Claim
	// Pods are the users, sorted.
	Pods []types.UID
}

// entry is the state of a claim. At most one of prepared and unpreparing is true.
type entry struct {
	claim                 Claim
	pods                  map[types.UID]bool
	prepared, unpreparing bool
}

// Book has the claims. Create it with New. It is not safe for concurrent use.
type Book struct {
	claims map[types.NamespacedName]*entry
}

// New returns an empty book.
func New() *Book { return &Book{claims: map[types.NamespacedName]*entry{}} }

// Load adds the claim and the users of an earlier process. A claim that the book has gets the users; of two different
// claims of one name, the first one stays.
func (b *Book) Load(loaded Entry) {
	e := b.claims[loaded.Name]
	if e == nil {
		e = &entry{claim: clone(loaded.Claim), pods: map[types.UID]bool{}}
		b.claims[loaded.Name] = e
	}
	if e.claim.UID != loaded.UID {
		return
	}
	for _, pod := range loaded.Pods {
		e.pods[pod] = true
	}
}

// Use makes a pod a user of claims, and returns those whose drivers must prepare them. After an error, in the kubelet's
// words, nothing has changed.
func (b *Book) Use(pod types.UID, claims []Claim) (prepare []Claim, err error) {
	for _, c := range claims {
		switch e := b.claims[c.Name]; {
		case e == nil:
		case e.claim.UID != c.UID:
			return nil, fmt.Errorf("old ResourceClaim with same name %s and different UID %s still exists (previous pod force-deleted?!)",
				c.Name.Name, e.claim.UID)
		case e.unpreparing:
			return nil, fmt.Errorf("ResourceClaim %s is being unprepared", c.Name.Name)
		}
	}
	for _, c := range claims {
		e := b.claims[c.Name]
		if e == nil {
			e = &entry{claim: clone(c), pods: map[types.UID]bool{}}
			b.claims[c.Name] = e
		}
		e.pods[pod] = true
		if !e.prepared {
			prepare = append(prepare, clone(e.claim))
		}
	}
	return prepare, nil
}

// Answered records what a driver has prepared for a claim, instead of what was known before.
func (b *Book) Answered(name types.NamespacedName, driver string, devices []Device) {
	if e := b.claims[name]; e != nil {
		d := e.claim.Drivers[driver]
		d.Devices = slices.Clone(devices)
		e.claim.Drivers[driver] = d
	}
}

// Prepared records that every driver of a claim has answered.
func (b *Book) Prepared(name types.NamespacedName) {
	if e := b.claims[name]; e != nil && !e.unpreparing {
		e.prepared = true
	}
}

// Leave removes a pod from the users of its claims, and returns the claims of which it is the last one: their drivers
// must unprepare them, and Left must be called then. The pod uses them until then. It may be called again.
func (b *Book) Leave(pod types.UID) (unprepare []Claim) {
	for _, name := range b.Of(pod) {
		e := b.claims[name]
		if len(e.pods) > 1 {
			delete(e.pods, pod)
			continue
		}
		e.prepared, e.unpreparing = false, true
		unprepare = append(unprepare, clone(e.claim))
	}
	return unprepare
}

// Left removes a claim that was unprepared.
func (b *Book) Left(name types.NamespacedName) {
	if e := b.claims[name]; e != nil && e.unpreparing {
		delete(b.claims, name)
	}
}

// Of returns the names of the claims of a pod, sorted.
func (b *Book) Of(pod types.UID) []types.NamespacedName {
	var names []types.NamespacedName
	for name, e := range b.claims {
		if e.pods[pod] {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, byName)
	return names
}

// Claim returns a claim.
func (b *Book) Claim(name types.NamespacedName) (Claim, bool) {
	e := b.claims[name]
	if e == nil {
		return Claim{}, false
	}
	return clone(e.claim), true
}

// Pods returns the pods that use a claim, sorted.
func (b *Book) Pods() []types.UID {
	all := map[types.UID]bool{}
	for _, e := range b.claims {
		maps.Copy(all, e.pods)
	}
	return slices.Sorted(maps.Keys(all))
}

// Users returns the pods whose claims have a device for which the function returns true, sorted.
func (b *Book) Users(driver string, with func(d *Device) bool) []types.UID {
	all := map[types.UID]bool{}
	for _, e := range b.claims {
		devices := e.claim.Drivers[driver].Devices
		for i := range devices {
			if with(&devices[i]) {
				maps.Copy(all, e.pods)
				break
			}
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// All returns every claim with its users, sorted by name.
func (b *Book) All() []Entry {
	all := make([]Entry, 0, len(b.claims))
	for _, e := range b.claims {
		all = append(all, Entry{Claim: clone(e.claim), Pods: slices.Sorted(maps.Keys(e.pods))})
	}
	slices.SortFunc(all, func(x, y Entry) int { return byName(x.Name, y.Name) })
	return all
}

// InUse returns the number of prepared claims of each driver, and of all under AnyDriver.
func (b *Book) InUse() map[string]int {
	counts := map[string]int{AnyDriver: 0}
	for _, e := range b.claims {
		if !e.prepared {
			continue
		}
		counts[AnyDriver]++
		for driver := range e.claim.Drivers {
			counts[driver]++
		}
	}
	return counts
}

func byName(x, y types.NamespacedName) int {
	return cmp.Or(strings.Compare(x.Namespace, y.Namespace), strings.Compare(x.Name, y.Name))
}

// clone returns a copy whose map of drivers is its own. Lists of devices are replaced and never changed.
func clone(c Claim) Claim {
	c.Drivers = maps.Clone(c.Drivers)
	if c.Drivers == nil {
		c.Drivers = map[string]Driver{}
	}
	return c
}
