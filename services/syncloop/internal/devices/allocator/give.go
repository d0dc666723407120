package allocator

import (
	"context"
	"maps"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/cpuset"

	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/cpus"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/containerspec"
)

// Ready returns why no sandbox can be created for a pod: a device that it has is not reported as healthy.
func (a *Allocator) Ready(pod *v1.Pod) error { return a.cfg.Devices.Ready(pod) }

// Give returns what a container that is about to be created gets. CPUs and memory that it does not have yet, such as
// after a lost state, are allocated.
func (a *Allocator) Give(ctx context.Context, pod *v1.Pod, c *v1.Container) (*containerspec.Given, error) {
	given, err := a.cfg.Devices.Give(ctx, pod, c)
	if err != nil || a.cpus == nil && a.memory == nil {
		return given, err
	}
	set, own, err := a.cpusOf(pod, c)
	if err != nil {
		return nil, err
	}
	blocks, err := a.memoryOf(pod, c)
	if err != nil {
		return nil, err
	}
	with := *given
	with.CPUs, with.MemoryNodes, with.Annotations = set.String(), listOf(blocks), map[string]string{}
	if own {
		with.Annotations[podlabels.CPUs] = set.String()
	}
	if blocks != nil {
		with.Annotations[podlabels.Memory] = annotationOf(blocks)
	}
	maps.Copy(with.Annotations, given.Annotations)
	return &with, nil
}

// cpusOf returns the CPUs of a container that has or gets some for itself, or else the shared ones; none with the
// policy none.
func (a *Allocator) cpusOf(pod *v1.Pod, c *v1.Container) (set cpuset.CPUSet, own bool, err error) {
	if a.cpus == nil {
		return set, false, nil
	}
	a.mu.Lock()
	taken := false
	if cpus.Wanted(pod, c) > 0 {
		taken, err = a.cpus.Allocate(pod, c, 0)
	}
	set, own = a.cpus.Of(pod.UID, c.Name)
	a.mu.Unlock()
	if err != nil {
		return set, own, err
	}
	if taken {
		a.cfg.Logger.Info("a container of a running pod gets CPUs that it did not have", telemetry.KeyPodUID, pod.UID,
			telemetry.KeyContainer, c.Name, keyCPUs, set.String())
		a.measure()
		err = a.save()
	}
	return set, own, err
}
