package allocator

import (
	"context"
	"errors"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/devices/cpus"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/numa"
)

// cpuOwner gives containers CPUs of their own.
type cpuOwner struct{ *Allocator }

// Hints implements numa.Owner.
func (o cpuOwner) Hints(pod *v1.Pod, c *v1.Container) numa.Hints {
	if o.cpus == nil {
		return nil
	}
	return o.cpus.Hints(pod, c)
}

// PodHints implements numa.Owner.
func (o cpuOwner) PodHints(pod *v1.Pod) numa.Hints {
	if o.cpus == nil {
		return nil
	}
	return o.cpus.PodHints(pod)
}

// Reserve implements numa.Owner. Settle is a no-op: Allocate writes the state when all containers have their CPUs.
func (o cpuOwner) Reserve(pod *v1.Pod, c *v1.Container, best numa.Hint) error {
	if o.cpus == nil || cpus.Wanted(pod, c) == 0 {
		return nil
	}
	taken, err := o.cpus.Allocate(pod, c, best.Nodes)
	o.cfg.Metrics.pinned(o.cpus, pod, c, taken, err)
	return err
}

// Settle implements numa.Owner.
func (cpuOwner) Settle(context.Context, *v1.Pod, *v1.Container, numa.Mask) error { return nil }

// deviceOwner gives containers devices.
type deviceOwner struct{ *Allocator }

// Hints implements numa.Owner.
func (o deviceOwner) Hints(pod *v1.Pod, c *v1.Container) numa.Hints {
	return o.cfg.Devices.Hints(pod, c)
}

// PodHints implements numa.Owner.
func (o deviceOwner) PodHints(pod *v1.Pod) numa.Hints { return o.cfg.Devices.PodHints(pod) }

// Reserve implements numa.Owner. The plugins are asked in Settle.
func (deviceOwner) Reserve(*v1.Pod, *v1.Container, numa.Hint) error { return nil }

// Settle implements numa.Owner.
func (o deviceOwner) Settle(ctx context.Context, pod *v1.Pod, c *v1.Container, affinity numa.Mask) error {
	return o.cfg.Devices.Allocate(ctx, pod, c, affinity)
}

// hintsOfDevices is a deviceOwner that allocates nothing.
type hintsOfDevices struct{ deviceOwner }

// Settle implements numa.Owner.
func (hintsOfDevices) Settle(context.Context, *v1.Pod, *v1.Container, numa.Mask) error { return nil }

// Needs reports whether a pod needs something for itself.
func (a *Allocator) Needs(pod *v1.Pod) bool {
	return a.cfg.Devices.Needs(pod) || a.cpus != nil && wantsCPUs(pod) || a.memory != nil && wantsMemory(pod)
}

func wantsCPUs(pod *v1.Pod) bool {
	return anyContainer(pod, func(c *v1.Container) bool { return cpus.Wanted(pod, c) > 0 })
}

func anyContainer(pod *v1.Pod, is func(*v1.Container) bool) bool {
	has := func(c v1.Container) bool { return is(&c) }
	return slices.ContainsFunc(pod.Spec.InitContainers, has) || slices.ContainsFunc(pod.Spec.Containers, has)
}

// Check returns why a new pod cannot have what it needs for itself, nil if it can or if it needs nothing. Wait is true
// while that is not known yet. It does not block, and changes nothing.
func (a *Allocator) Check(pod *v1.Pod) (wait bool, err error) {
	if wait, err = a.cfg.Devices.Check(pod); wait || err != nil {
		return wait, err
	}
	if !a.Needs(pod) || a.cpus == nil && a.memory == nil && !a.cfg.Policy.Aligns() {
		return false, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.rebuild && wantsCPUs(pod) || a.rebuildMemory && wantsMemory(pod) {
		return true, nil
	}
	if a.try(pod, a.uncounted) == nil {
		return false, nil
	}
	begun := a.cfg.Clock.Now()
	err = a.try(pod, a.cfg.Metrics)
	a.cfg.Metrics.admitted(a.cfg.Policy.Aligns(), a.cfg.Clock.Since(begun), err)
	return false, err
}

// try returns why a pod cannot have its CPUs and its memory, or cannot have them aligned with its devices. It changes
// nothing. Called with mu held.
func (a *Allocator) try(pod *v1.Pod, metrics *Metrics) error {
	trial := &Allocator{cfg: a.cfg}
	trial.cfg.Metrics = metrics
	if a.cpus != nil {
		trial.cpus = a.cpus.Clone()
	}
	if a.memory != nil {
		trial.memory = a.memory.Clone()
	}
	aligner := a.aligner
	aligner.Owners = []numa.Owner{cpuOwner{trial}, memoryOwner{trial}, hintsOfDevices{deviceOwner{trial}}}
	aligner.Lock, aligner.Aligned = &sync.Mutex{}, func(ok bool) { metrics.aligned(a.cfg.Scope, boundaryNode, ok) }
	return aligner.Admit(context.Background(), pod)
}

// Allocate gives all containers of a pod what they need for themselves. It returns when the plugins have answered and
// all is on disk, or with the first error. What was allocated until then stays until Release. A plugin may take as long
// as it likes; the call ends with ctx, and when the pod is released.
func (a *Allocator) Allocate(ctx context.Context, pod *v1.Pod) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a.mu.Lock()
	a.calls[pod.UID] = cancel
	a.mu.Unlock()
	begun := a.cfg.Clock.Now()
	err := a.admit(ctx, pod)
	a.cfg.Metrics.admitted(a.cfg.Policy.Aligns(), a.cfg.Clock.Since(begun), err)
	a.mu.Lock()
	delete(a.calls, pod.UID)
	a.mu.Unlock()
	if a.cpus != nil && wantsCPUs(pod) {
		a.measure()
		err = errors.Join(err, a.save())
	}
	if a.memory != nil && wantsMemory(pod) {
		err = errors.Join(err, a.saveMemory())
	}
	return err
}

// admit allocates what a pod needs. With a policy that aligns, a plugin that hangs also delays other pods with devices.
func (a *Allocator) admit(ctx context.Context, pod *v1.Pod) error {
	if a.cfg.Policy.Aligns() && a.cfg.Devices.Needs(pod) {
		select {
		case a.turn <- struct{}{}:
			defer func() { <-a.turn }()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return a.aligner.Admit(ctx, pod)
}
