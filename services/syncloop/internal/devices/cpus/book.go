package cpus

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"
)

// Config configures a Book.
type Config struct {
	Machine *Machine
	Options Options
	// Topology is the policy of the topology manager.
	Topology string
	// ReservedMilli is the reserved CPU time of kubeReserved and systemReserved in thousandths of CPUs, and Reserved are
	// the CPUs of reservedSystemCPUs. Without them, the book chooses as many.
	ReservedMilli int64
	Reserved      cpuset.CPUSet
}

// Assignments are the CPUs of containers by pod and name.
type Assignments map[types.UID]map[string]cpuset.CPUSet

// Book has the CPUs of the node and their assignment to containers. It is not safe for concurrent use. Create it with
// New.
type Book struct {
	machine *Machine
	options Options
	// reserved are the CPUs that no container gets for itself, and siblings are all CPUs of their cores.
	reserved, siblings cpuset.CPUSet
	// shared are the CPUs of the containers without CPUs of their own.
	shared cpuset.CPUSet
	held   Assignments
}

// New returns a book without assignments. Its errors are the kubelet's.
func New(cfg Config) (*Book, error) {
	if cfg.ReservedMilli <= 0 {
		return nil, errors.New("[cpumanager] unable to determine reserved CPU resources for static policy: set cpu in " +
			"systemReserved or kubeReserved, or set reservedSystemCPUs")
	}
	if err := cfg.Options.check(cfg.Machine, cfg.Topology); err != nil {
		return nil, fmt.Errorf("new static policy error: %w", err)
	}
	b := &Book{machine: cfg.Machine, options: cfg.Options, reserved: cfg.Reserved, held: Assignments{}}
	const milliPerCPU = 1000
	count := int((cfg.ReservedMilli + milliPerCPU - 1) / milliPerCPU)
	if b.reserved.IsEmpty() {
		b.reserved, _ = b.pick(b.machine.All(), count) // the size says whether it worked
	}
	if b.reserved.Size() != count {
		return nil, fmt.Errorf("new static policy error: [cpumanager] unable to reserve the required amount of CPUs "+
			"(size of %s did not equal %d)", b.reserved, count)
	}
	for _, id := range b.reserved.UnsortedList() {
		c, ok := b.machine.cpus[id]
		if !ok {
			return nil, fmt.Errorf("new static policy error: [cpumanager] unable to build the reserved physical CPUs "+
				"from the reserved set: unknown CPU ID: %d", id)
		}
		b.siblings = b.siblings.Union(b.machine.cpus.of(byCore, c.Core))
	}
	b.shared = b.usable()
	return b, nil
}

// Clone returns a copy that changes on its own.
func (b *Book) Clone() *Book {
	clone := *b
	clone.held = b.Assignments()
	return &clone
}

// usable returns the CPUs that containers can use at all.
func (b *Book) usable() cpuset.CPUSet {
	if b.options.StrictReserve {
		return b.machine.All().Difference(b.reserved)
	}
	return b.machine.All()
}

// pick picks CPUs by the options.
func (b *Book) pick(available cpuset.CPUSet, count int) (cpuset.CPUSet, error) {
	if !b.options.Distribute {
		return pack(b.machine, available, count, b.options.Spread, b.options.Caches)
	}
	group := 1
	if b.options.WholeCores {
		group = b.machine.perCore
	}
	return distribute(b.machine, available, count, group, b.options.Spread, b.options.BySockets)
}

// Restore sets the shared CPUs and the assignments of an earlier process. It changes nothing after an error, which is
// the kubelet's. Other than a kubelet, it accepts that strict-cpu-reservation has left no shared CPUs, because the
// process could not start again otherwise.
func (b *Book) Restore(shared cpuset.CPUSet, held Assignments) error {
	switch {
	case shared.IsEmpty() && len(held) == 0:
		return nil // a new state
	case shared.IsEmpty() && !b.options.StrictReserve:
		return errors.New("default cpuset cannot be empty")
	}
	in := b.reserved.Intersection(shared)
	switch {
	case b.options.StrictReserve && !in.IsEmpty():
		return fmt.Errorf("some of strictly reserved cpus: %q are present in defaultCpuSet: %q", in, shared)
	case !b.options.StrictReserve && !in.Equals(b.reserved):
		return fmt.Errorf("not all reserved cpus: %q are present in defaultCpuSet: %q", b.reserved, shared)
	}
	known := shared
	for _, uid := range slices.Sorted(maps.Keys(held)) {
		for _, name := range slices.Sorted(maps.Keys(held[uid])) {
			set := held[uid][name]
			if !shared.Intersection(set).IsEmpty() {
				return fmt.Errorf("pod: %s, container: %s cpuset: %q overlaps with default cpuset %q", uid, name, set, shared)
			}
			known = known.Union(set)
		}
	}
	if !known.Equals(b.usable()) {
		return fmt.Errorf("current set of available CPUs %q doesn't match with CPUs in state %q", b.usable(), known)
	}
	b.shared, b.held = shared, Assignments{}
	for uid, containers := range held {
		b.held[uid] = maps.Clone(containers)
	}
	return nil
}

// Adopt records CPUs that a running container was found to have. It returns false if they are not free.
func (b *Book) Adopt(uid types.UID, container string, set cpuset.CPUSet) bool {
	if set.IsEmpty() || !set.IsSubsetOf(b.Free().Union(b.HeldBy(uid))) {
		return false
	}
	b.put(uid, container, set)
	return true
}

// put records the CPUs of a container, which are not in the shared ones from then on.
func (b *Book) put(uid types.UID, container string, set cpuset.CPUSet) {
	if b.held[uid] == nil {
		b.held[uid] = map[string]cpuset.CPUSet{}
	}
	b.held[uid][container] = set
	b.shared = b.shared.Difference(set)
}

// Allocatable returns the CPUs that containers can get for themselves, also those in use.
func (b *Book) Allocatable() cpuset.CPUSet { return b.machine.All().Difference(b.reserved) }

// Shared returns the CPUs of the containers without CPUs of their own.
func (b *Book) Shared() cpuset.CPUSet { return b.shared }

// Free returns the CPUs that a container could get for itself.
func (b *Book) Free() cpuset.CPUSet { return b.shared.Difference(b.reserved) }

// Machine returns the CPUs of the machine.
func (b *Book) Machine() *Machine { return b.machine }

// Options returns the options.
func (b *Book) Options() Options { return b.options }

// Of returns the CPUs that a container may use, and whether it has them for itself.
func (b *Book) Of(uid types.UID, container string) (set cpuset.CPUSet, own bool) {
	if set, own = b.held[uid][container]; own {
		return set, true
	}
	return b.shared, false
}

// HeldBy returns the CPUs that containers of a pod have for themselves.
func (b *Book) HeldBy(uid types.UID) cpuset.CPUSet {
	var all cpuset.CPUSet
	for _, set := range b.held[uid] {
		all = all.Union(set)
	}
	return all
}

// Held returns all CPUs that containers have for themselves.
func (b *Book) Held() cpuset.CPUSet {
	var all cpuset.CPUSet
	for uid := range b.held {
		all = all.Union(b.HeldBy(uid))
	}
	return all
}

// Assignments returns the CPUs of all containers that have some for themselves.
func (b *Book) Assignments() Assignments {
	all := make(Assignments, len(b.held))
	for uid, containers := range b.held {
		all[uid] = maps.Clone(containers)
	}
	return all
}

// Pods returns the pods that have CPUs for themselves, sorted.
func (b *Book) Pods() []types.UID { return slices.Sorted(maps.Keys(b.held)) }

// Release makes the CPUs of a pod shared ones, and returns them.
func (b *Book) Release(uid types.UID) cpuset.CPUSet {
	released := b.HeldBy(uid)
	delete(b.held, uid)
	b.shared = b.shared.Union(released)
	return released
}
