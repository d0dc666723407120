package executor

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// podResource is a resource that a pod holds while it is on the node: one of the machine, such as its cgroup, or one of
// the cluster, such as its config maps. A step that is nil is a no-op.
type podResource struct {
	name string
	// use registers a pod that is to run. It is called at the beginning of each sync and does not block.
	use func(ctx context.Context, pod *v1.Pod)
	// prepare returns when the resource is ready. Nothing of the pod is started before.
	prepare func(s *podSync, ctx context.Context) error
	// release releases the resource when nothing of the pod runs any more. It is called until it succeeds, also for a pod
	// without the resource.
	release func(ctx context.Context, uid types.UID) error
}

// newPodResources returns the resources that each pod holds. A resource may use those that follow it. Therefore use
// goes from the last to the first, and prepare and release go from the first to the last: processes that are left in
// the cgroup are killed before the volumes that they may have open are removed.
func (m *Manager) newPodResources() []podResource {
	resources := []podResource{
		{name: "cgroup", prepare: (*podSync).ensureCgroup, release: m.removeCgroup},
		{name: "resource claims", prepare: (*podSync).prepareClaims, release: m.releaseClaims},
		{name: "devices", prepare: (*podSync).waitForDevices, release: forget(m.cfg.Devices.Release)},
		{name: "volumes", use: m.cfg.Volumes.Want, prepare: (*podSync).waitForVolumes, release: m.cfg.Volumes.Release},
		{name: "claims", use: note(m.cfg.Claims.Use), release: forget(m.cfg.Claims.Forget)},
		{name: "service variables", release: forget(m.cfg.Services.Forget)},
		{name: "runtime class", use: note(m.cfg.RuntimeClasses.Use), release: forget(m.cfg.RuntimeClasses.Forget)},
		{name: "config maps and secrets", use: note(m.cfg.Objects.Use), release: forget(m.cfg.Objects.Forget)},
	}
	for _, issued := range m.cfg.Issued {
		resources = append(resources, podResource{name: issued.Name, release: forget(issued.Forget)})
	}
	return resources
}

// Claims knows the claims of pods; claims.Source implements it.
type Claims interface {
	// Use registers a pod with the claims that its spec names, and Forget removes it.
	Use(pod *v1.Pod)
	Forget(uid types.UID)
}

// Issued is a store of things that were issued to pods, such as tokens.
type Issued struct {
	// Name is the name in errors.
	Name string
	// Forget drops what was issued to a pod. It does not block.
	Forget func(uid types.UID)
}

// note returns a use step that calls a function of the pod.
func note(use func(pod *v1.Pod)) func(context.Context, *v1.Pod) {
	return func(_ context.Context, pod *v1.Pod) { use(pod) }
}

// forget returns a release step that calls a function that cannot fail.
func forget(forget func(uid types.UID)) func(context.Context, types.UID) error {
	return func(_ context.Context, uid types.UID) error {
		forget(uid)
		return nil
	}
}

// useResources registers a pod with each resource.
func (m *Manager) useResources(ctx context.Context, pod *v1.Pod) {
	for _, r := range slices.Backward(m.podResources) {
		if r.use != nil {
			r.use(ctx, pod)
		}
	}
}

// prepareResources returns when all resources of the pod are ready, or with the first error.
func (s *podSync) prepareResources(ctx context.Context) error {
	for _, r := range s.m.podResources {
		if r.prepare == nil {
			continue
		}
		if err := r.prepare(s, ctx); err != nil {
			return err
		}
	}
	return nil
}

// ReleasePod releases the resources of a pod of which nothing runs any more. The records of how it ended stay. It stops
// at the first resource that cannot be released. It is idempotent.
func (m *Manager) ReleasePod(ctx context.Context, pod *v1.Pod) error {
	for _, r := range m.podResources {
		if err := r.release(ctx, pod.UID); err != nil {
			return fmt.Errorf("pod %s: release its %s: %w", podName(pod), r.name, err)
		}
	}
	return nil
}
