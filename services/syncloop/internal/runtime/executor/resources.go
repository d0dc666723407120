package executor

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// podResource is something that is held for a pod while it is on the node: of the machine, such as its cgroup, or of what a cluster has for
// it, such as its config maps. A step that is nil is a no-op.
type podResource struct {
	name string
	// use says that a pod is to run. It is called at the beginning of each sync and waits for nothing.
	use func(ctx context.Context, pod *v1.Pod)
	// prepare returns when the resource is in place. Nothing of the pod is started before.
	prepare func(s *podSync, ctx context.Context) error
	// release gives the resource back when nothing of the pod runs any more. It is called until it succeeds, also for a pod that has none.
	release func(ctx context.Context, uid types.UID) error
}

// heldForPods returns what is held for each pod. A resource may use those that follow it, so use goes from the last to the first, and prepare
// and release go from the first to the last: what is left in the cgroup is killed before the volumes go that it may have open.
func (m *Manager) heldForPods() []podResource {
	held := []podResource{
		{name: "cgroup", prepare: (*podSync).ensureCgroup, release: m.removeCgroup},
		{name: "volumes", use: m.cfg.Volumes.Want, prepare: (*podSync).waitForVolumes, release: m.cfg.Volumes.Release},
		{name: "service variables", release: forget(m.cfg.Services.Forget)},
		{name: "runtime class", use: note(m.cfg.RuntimeClasses.Use), release: forget(m.cfg.RuntimeClasses.Forget)},
		{name: "config maps and secrets", use: note(m.cfg.Objects.Use), release: forget(m.cfg.Objects.Forget)},
	}
	for _, known := range m.cfg.Issued {
		held = append(held, podResource{name: known.Name, release: forget(known.Forget)})
	}
	return held
}

// Issued is something that others hand out to pods and remember, such as tokens.
type Issued struct {
	// Name names it in errors.
	Name string
	// Forget drops what a pod was given. It waits for nothing.
	Forget func(uid types.UID)
}

// note makes a use of a function that only needs the pod.
func note(use func(pod *v1.Pod)) func(context.Context, *v1.Pod) {
	return func(_ context.Context, pod *v1.Pod) { use(pod) }
}

// forget makes a release of a function that cannot fail.
func forget(forget func(uid types.UID)) func(context.Context, types.UID) error {
	return func(_ context.Context, uid types.UID) error {
		forget(uid)
		return nil
	}
}

// useResources says of each resource that a pod is to run.
func (m *Manager) useResources(ctx context.Context, pod *v1.Pod) {
	for _, r := range slices.Backward(m.held) {
		if r.use != nil {
			r.use(ctx, pod)
		}
	}
}

// prepareResources returns when all that the pod holds is in place, or with the first error.
func (s *podSync) prepareResources(ctx context.Context) error {
	for _, r := range s.m.held {
		if r.prepare == nil {
			continue
		}
		if err := r.prepare(s, ctx); err != nil {
			return err
		}
	}
	return nil
}

// ReleasePod gives back what a pod holds of which nothing runs any more. What says how it ended stays. It stops at the first resource that
// cannot be released; calling it again is harmless.
func (m *Manager) ReleasePod(ctx context.Context, pod *v1.Pod) error {
	for _, r := range m.held {
		if err := r.release(ctx, pod.UID); err != nil {
			return fmt.Errorf("pod %s: release its %s: %w", podName(pod), r.name, err)
		}
	}
	return nil
}
