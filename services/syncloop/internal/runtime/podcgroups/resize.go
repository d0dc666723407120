package podcgroups

import (
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
)

// Name returns the name of a pod's cgroup, and whether the cgroup exists.
func (t *Tree) Name(pod *v1.Pod) (name string, exists bool) {
	name, err := t.cfg.Names.Pod(pod)
	return name, err == nil && t.cfg.Cgroups.Has(name)
}

// Given returns the current cpu and memory limits of a pod's cgroup, and the limits in the pod's spec. The error is
// fs.ErrNotExist if the cgroup does not exist.
func (t *Tree) Given(pod *v1.Pod) (has, wants resources.Resources, err error) {
	name, err := t.cfg.Names.Pod(pod)
	if err != nil {
		return resources.Resources{}, resources.Resources{}, err
	}
	has, err = t.cfg.Cgroups.Given(name)
	return has, t.limits(pod), err
}

// Limit changes some of the limits of a pod's cgroup. A later Ensure sets all of them.
func (t *Tree) Limit(pod *v1.Pod, part resources.Resources) error {
	name, err := t.cfg.Names.Pod(pod)
	if err != nil {
		return err
	}
	t.mu.Lock()
	delete(t.given, name)
	t.mu.Unlock()
	begun := t.cfg.Clock.Now()
	err = t.cfg.Cgroups.Limit(name, part)
	t.cfg.Metrics.done(operationUpdate, t.cfg.Clock.Since(begun))
	if err != nil {
		return fmt.Errorf("cgroupsPerQOS: %w", err)
	}
	return nil
}

// MemoryUsage returns the memory usage of a pod's cgroup in bytes.
func (t *Tree) MemoryUsage(pod *v1.Pod) (uint64, error) {
	name, err := t.cfg.Names.Pod(pod)
	if err != nil {
		return 0, err
	}
	usage, err := t.cfg.Cgroups.Usage(name)
	return usage.MemoryBytes, err
}
