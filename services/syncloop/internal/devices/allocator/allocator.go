// Package allocator is the one owner of what containers have for themselves: it admits a pod with its devices, its
// CPUs and its memory of NUMA nodes, keeps the result, and gives it to containers that are created.
//
// Packages cpus, memory and numa decide; packages cpustate and memorystate keep the CPUs and the memory in the
// kubelet's files, and package deviceplugins the devices. An allocation is on disk before a container of the pod is
// created, and is freed when nothing of the pod runs, so that this process can be killed between any two steps. A
// Reconciler moves running containers to the CPUs that are left for them, and to the NUMA nodes of their memory.
package allocator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/cpuset"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/allocation"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/cpus"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/cpustate"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/holders"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/memory"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/numa"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/containerspec"
)

// keyCPUs is the log key of a set of CPUs.
const keyCPUs = "cpus"

// Devices owns the devices of the node; *deviceplugins.Manager implements it.
type Devices interface {
	// Recover learns what containers hold from all pods in the runtime, before any pod is admitted. GoesOn reports whether
	// the containers of a pod may be started again.
	Recover(observed []*lifecyclev1.PodStatus, goesOn func(types.UID) bool)
	// Check returns why the devices of a pod cannot be allocated; wait is true while that is not known.
	Check(pod *v1.Pod) (wait bool, err error)
	// Owns reports whether a resource is one of device plugins, and Needs whether a pod asks for any of them.
	Owns(name v1.ResourceName) bool
	Needs(pod *v1.Pod) bool
	// Hints returns the NUMA nodes that a container could get its devices from, and PodHints those for a whole pod.
	Hints(pod *v1.Pod, c *v1.Container) numa.Hints
	PodHints(pod *v1.Pod) numa.Hints
	// Allocate allocates the devices of a container, those of the affinity first, and returns when plugins have answered.
	Allocate(ctx context.Context, pod *v1.Pod, c *v1.Container, affinity numa.Mask) error
	// Ready returns why no sandbox can be created for a pod.
	Ready(pod *v1.Pod) error
	// Give returns what a container that is about to be created gets for its devices.
	Give(ctx context.Context, pod *v1.Pod, c *v1.Container) (*containerspec.Given, error)
	// Pods returns the pods that have devices, and Release takes them from a pod.
	Pods() []types.UID
	Release(uid types.UID)
	// Held returns the devices of a container by resource, and Usable the healthy devices of each resource.
	Held(pod types.UID, container string) map[string][]allocation.Device
	Usable() map[string][]allocation.Device
}

// Config configures an Allocator.
type Config struct {
	// Root is the kubelet's root directory.
	Root string
	// Devices are the devices of the node.
	Devices Devices
	// CPUs are the CPUs of the node; nil with the policy none of the CPU manager.
	CPUs *cpus.Book
	// Memory is the memory of the NUMA nodes; nil with the policy None of the memory manager.
	Memory *memory.Book
	// Policy and Scope are those of the topology manager.
	Policy *numa.Policy
	Scope  string
	// Clock is the clock.
	Clock clock.PassiveClock
	// Metrics counts allocations; nil counts nothing.
	Metrics *Metrics
	// Logger logs problems; slog.Default if nil.
	Logger *slog.Logger
}

// Allocator owns what containers have for themselves. Create it with New. Its methods are safe for concurrent use.
type Allocator struct {
	cfg     Config
	aligner numa.Aligner

	mu   sync.Mutex
	cpus *cpus.Book // nil with the policy none
	// memory is nil with the policy None.
	memory *memory.Book
	// calls end the allocations under way of a pod that is released.
	calls map[types.UID]context.CancelFunc
	// rebuild is true without a usable state of CPUs, and rebuildMemory without one of memory, until Recover was called.
	rebuild, rebuildMemory bool

	// turn is taken by a pod with devices while its resources are aligned, because the devices are reserved only after
	// the plugins have named their preferences. Its capacity is one: one pod at a time.
	turn chan struct{}
	// uncounted are the metrics of a trial.
	uncounted *Metrics

	// saving serializes writes of the states of CPUs and memory.
	saving sync.Mutex
}

// New returns an allocator with the CPUs and the memory of an earlier process. A damaged state is set aside and logged.
// A state that does not fit the policy or the machine is an error that says what to do, as in the kubelet.
func New(cfg Config) (*Allocator, error) {
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	cfg.Metrics = cmp.Or(cfg.Metrics, NewMetrics(nil))
	a := &Allocator{
		cfg: cfg, cpus: cfg.CPUs, memory: cfg.Memory, calls: map[types.UID]context.CancelFunc{},
		turn: make(chan struct{}, 1), uncounted: NewMetrics(nil),
	}
	a.aligner = numa.Aligner{
		Policy: cfg.Policy, Scope: cfg.Scope, Lock: &a.mu,
		Owners:  []numa.Owner{cpuOwner{a}, memoryOwner{a}, deviceOwner{a}},
		Aligned: func(ok bool) { cfg.Metrics.aligned(cfg.Scope, boundaryNode, ok) },
	}
	if err := a.load(); err != nil {
		return nil, err
	}
	if err := a.loadMemory(); err != nil {
		return nil, err
	}
	cfg.Metrics.expect(a.cpus != nil, cfg.Policy.Aligns())
	a.measure()
	return a, nil
}

// policy returns the policy of the CPU manager.
func (a *Allocator) policy() string {
	if a.cpus == nil {
		return cpus.PolicyNone
	}
	return cpus.PolicyStatic
}

// load reads the state of CPUs. Without one, and with the policy static, the CPUs are read from what runs later.
func (a *Allocator) load() error {
	path := filepath.Join(a.cfg.Root, cpustate.File)
	state, err := cpustate.Read(a.cfg.Root)
	damaged := (*statedir.DamagedError)(nil)
	switch {
	case errors.As(err, &damaged):
		a.cfg.Logger.Error("the CPUs of running containers are read from the runtime, because their state is damaged",
			telemetry.KeyFile, damaged.Path, "set_aside", damaged.Aside, telemetry.KeyError, err)
	case err != nil:
		return err
	case state != nil && state.Policy != a.policy():
		return fmt.Errorf("could not restore state from checkpoint: configured policy %q differs from state checkpoint "+
			"policy %q, please drain this node and delete the CPU manager checkpoint file %q before restarting", a.policy(),
			state.Policy, path)
	}
	switch {
	case a.cpus == nil && state == nil:
		a.saveOrWarn() // no container has CPUs of its own: the file is for a kubelet
		return nil
	case a.cpus == nil:
		return nil
	case state == nil:
		a.rebuild = true // written by Recover, so that a kill before that loses nothing
		return nil
	}
	if err := a.cpus.Restore(state.Shared, state.Held); err != nil {
		return fmt.Errorf("invalid state, please drain node and remove policy state file %q: %w", path, err)
	}
	return nil
}

// save writes the state of CPUs.
func (a *Allocator) save() error {
	a.saving.Lock() // the writes must be in the order of the states
	defer a.saving.Unlock()
	state := cpustate.State{Policy: a.policy()}
	if a.cpus != nil {
		a.mu.Lock()
		state.Shared, state.Held = a.cpus.Shared(), a.cpus.Assignments()
		a.mu.Unlock()
	}
	return cpustate.Write(a.cfg.Root, state)
}

// saveOrWarn writes the state after a change that the next write repeats.
func (a *Allocator) saveOrWarn() {
	if err := a.save(); err != nil {
		a.cfg.Logger.Warn("cannot write the state of CPUs: check the disk of the root directory",
			telemetry.KeyFile, filepath.Join(a.cfg.Root, cpustate.File), telemetry.KeyError, err)
	}
}

// Recover rebuilds the assignments from the containers in the runtime, if there is no usable state of them. GoesOn
// reports whether the containers of a pod may be started again. It does not block, except for the write of the state.
func (a *Allocator) Recover(observed []*lifecyclev1.PodStatus, goesOn func(types.UID) bool) {
	a.cfg.Devices.Recover(observed, goesOn)
	found := holders.Of(observed, goesOn)
	a.recoverMemory(found)
	a.recoverCPUs(found)
}

// recoverCPUs rebuilds the assignment of CPUs, if there is no usable state of it.
func (a *Allocator) recoverCPUs(all []holders.Holder) {
	a.mu.Lock()
	if !a.rebuild {
		a.mu.Unlock()
		return
	}
	a.rebuild = false
	found := 0
	for _, h := range all {
		if a.adopt(h.Pod, h.Container) {
			found++
		}
	}
	a.mu.Unlock()
	if found > 0 {
		a.cfg.Logger.Warn("the CPUs of containers were read from the runtime, because there was no state of them",
			"containers", found)
	}
	a.measure()
	a.saveOrWarn()
}

// adopt records the CPUs that a container was created with. Called with mu held.
func (a *Allocator) adopt(uid types.UID, c *lifecyclev1.Container) bool {
	text, has := c.GetAnnotations()[podlabels.CPUs]
	if !has {
		return false
	}
	set, err := cpuset.Parse(text)
	if err == nil && !a.cpus.Adopt(uid, c.GetName(), set) {
		err = errors.New("they are reserved, or another container has them")
	}
	if err != nil {
		a.cfg.Logger.Error("a container loses its CPUs", telemetry.KeyPodUID, string(uid),
			telemetry.KeyContainer, c.GetName(), keyCPUs, text, telemetry.KeyError, err)
	}
	return err == nil
}

// Pods returns the pods that have something for themselves.
func (a *Allocator) Pods() []types.UID {
	pods := slices.Clone(a.cfg.Devices.Pods())
	a.mu.Lock()
	if a.cpus != nil {
		pods = append(pods, a.cpus.Pods()...)
	}
	if a.memory != nil {
		pods = append(pods, a.memory.Pods()...)
	}
	a.mu.Unlock()
	slices.Sort(pods)
	return slices.Compact(pods)
}

// Release takes everything from a pod of which nothing runs any more. It ends an allocation under way.
func (a *Allocator) Release(uid types.UID) {
	a.mu.Lock()
	if cancel := a.calls[uid]; cancel != nil {
		cancel()
	}
	had := a.cpus != nil && !a.cpus.Release(uid).IsEmpty()
	hadMemory := a.memory != nil && a.memory.Release(uid)
	a.mu.Unlock()
	a.cfg.Devices.Release(uid)
	if had {
		a.measure()
		a.saveOrWarn()
	}
	if hadMemory {
		a.saveMemoryOrWarn()
	}
}

// Owns reports whether a resource is one of device plugins.
func (a *Allocator) Owns(name v1.ResourceName) bool { return a.cfg.Devices.Owns(name) }

// Held returns the devices of a container by resource, with their last reported health.
func (a *Allocator) Held(pod types.UID, container string) map[string][]allocation.Device {
	return a.cfg.Devices.Held(pod, container)
}

// Usable returns the healthy devices of each resource.
func (a *Allocator) Usable() map[string][]allocation.Device { return a.cfg.Devices.Usable() }

// CPUs returns the CPUs that a container has for itself.
func (a *Allocator) CPUs(pod types.UID, container string) cpuset.CPUSet {
	if a.cpus == nil {
		return cpuset.New()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if set, own := a.cpus.Of(pod, container); own {
		return set
	}
	return cpuset.New()
}

// HasCPUs reports whether a container has CPUs for itself; with an empty name, whether any container of the pod has.
func (a *Allocator) HasCPUs(uid types.UID, container string) bool {
	if a.cpus == nil {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if container == "" {
		return !a.cpus.HeldBy(uid).IsEmpty()
	}
	_, own := a.cpus.Of(uid, container)
	return own
}

// AllocatableCPUs returns the CPUs that containers can get for themselves, also those in use.
func (a *Allocator) AllocatableCPUs() cpuset.CPUSet {
	if a.cpus == nil {
		return cpuset.New()
	}
	return a.cpus.Allocatable()
}
