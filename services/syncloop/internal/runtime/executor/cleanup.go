package executor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/containerlog"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/containerspec"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/containergc"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/rmtree"
)

// CleanUpPod removes what is left of a pod after its termination: containers and sandboxes, and, when they are gone, its
// logs and its files. It refuses a pod that still runs. The runtime need not have anything of the pod any more: the names
// are the pod's own. Calling it again is harmless.
func (m *Manager) CleanUpPod(ctx context.Context, pod *v1.Pod, status *lifecyclev1.PodStatus) error {
	for _, c := range status.GetContainers() {
		if podview.Alive(c) {
			return fmt.Errorf("clean up pod %s: container %q (%s) still runs", podName(pod), c.GetName(), c.GetId())
		}
	}
	runtime, err := m.cfg.Runtime()
	if err != nil {
		return err
	}
	rt := m.instrument(runtime)
	ctx, span := m.phase(ctx, "pod.cleanup", pod, telemetry.Subject{})
	defer func() { telemetry.End(span, err) }()
	// In turns, so that many pods that go at once leave room for those that start.
	err = m.removals.Pass(ctx, func() error { return m.removeFromRuntime(ctx, rt, status) })
	// Before the files, by which it is found again when it cannot be removed.
	if err = errors.Join(err, m.ReleasePod(ctx, pod), m.forgetPod(pod)); err == nil {
		err = m.removeFiles(pod)
	}
	if err != nil {
		return fmt.Errorf("clean up pod %s: %w", podName(pod), err)
	}
	return nil
}

// removeFromRuntime removes all containers and sandboxes of a pod.
func (m *Manager) removeFromRuntime(ctx context.Context, rt *tracedRuntime, status *lifecyclev1.PodStatus) error {
	var errs []error
	for _, c := range status.GetContainers() {
		errs = append(errs, m.removeContainer(ctx, rt, status.GetUid(), c))
	}
	for _, s := range status.GetSandboxes() {
		if err := rt.removePodSandbox(ctx, s.GetId()); err != nil {
			errs = append(errs, fmt.Errorf("remove sandbox %s: %w", s.GetId(), err))
		}
	}
	return errors.Join(errs...)
}

func (m *Manager) removeContainer(ctx context.Context, rt *tracedRuntime, uid string, c *lifecyclev1.Container) error {
	if err := rt.removeContainer(ctx, c.GetId()); err != nil {
		return fmt.Errorf("remove container %q (%s): %w", c.GetName(), c.GetId(), err)
	}
	return m.cfg.Endings.ForgetContainer(types.UID(uid), c.GetId())
}

// removeFiles removes a pod's logs and files. A folder with something mounted in it is left: what is mounted is not the
// pod's to remove.
func (m *Manager) removeFiles(pod *v1.Pod) error {
	if uid := string(pod.UID); uid == "" || uid == "." || uid == ".." || strings.ContainsAny(pod.Namespace+pod.Name+uid, "/\x00") {
		return nil // nothing of ours: the paths would be of something else
	}
	dir := m.podDir(string(pod.UID))
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return fmt.Errorf("read the mount table: %w", err)
	}
	if len(mounts) > 0 {
		return fmt.Errorf("remove %s: %s is mounted there; unmount it", dir, mounts[0].Mountpoint)
	}
	if pod.Name == "" || pod.Namespace == "" {
		return rmtree.All(dir) // found by this folder alone
	}
	return errors.Join(rmtree.All(dir), rmtree.All(containerspec.LogDir(m.cfg.PodLogsDir, pod)))
}

// PruneContainers has removed what containergc.Of finds of a pod, with the logs and termination messages of containers; at least one
// ended container of each name stays with its own. With Config.Garbage that is done later and fails there.
func (m *Manager) PruneContainers(ctx context.Context, status *lifecyclev1.PodStatus, keepPerContainer int) error {
	items := containergc.Of(status, keepPerContainer)
	if m.cfg.Garbage != nil {
		m.cfg.Garbage.Put(ctx, items)
		return nil
	}
	var errs []error
	for _, item := range items {
		errs = append(errs, m.RemoveGarbage(ctx, item))
	}
	return errors.Join(errs...)
}

// RemoveGarbage removes a container, its logs and its termination message, or a sandbox. It may be called again, and while the pod is
// worked on.
func (m *Manager) RemoveGarbage(ctx context.Context, item containergc.Item) error {
	runtime, err := m.cfg.Runtime()
	if err != nil {
		return err
	}
	rt, c := m.instrument(runtime), item.Container
	if c == nil {
		if err := rt.removePodSandbox(ctx, item.Sandbox); err != nil {
			return fmt.Errorf("remove sandbox %s: %w", item.Sandbox, err)
		}
		return nil
	}
	// The files first: of a container that is gone nobody knows them.
	count := podlabels.RestartOf(c.GetAnnotations(), c.GetAttempt()).Count
	err = os.Remove(m.terminationFile(item.Pod, c.GetName(), count))
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	if log := c.GetLogPath(); strings.HasPrefix(log, m.cfg.PodLogsDir+string(filepath.Separator)) {
		err = errors.Join(err, containerlog.Remove(log))
	}
	return errors.Join(err, m.removeContainer(ctx, rt, item.Pod, c))
}

// Starting tells whether sandboxes are being made.
func (m *Manager) Starting() bool { return m.starts.Busy() }

// PodFromObserved makes a pod from what the runtime records of it, for a pod that is in no source any more: its names,
// labels and annotations, its grace period, and of its containers what ending them needs.
func PodFromObserved(status *lifecyclev1.PodStatus) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: status.GetName(), Namespace: status.GetNamespace(), UID: types.UID(status.GetUid())}}
	if sandboxes := status.GetSandboxes(); len(sandboxes) > 0 {
		pod.Spec.HostNetwork = sandboxes[0].GetHostNetwork()
		pod.Annotations = sandboxes[0].GetAnnotations()
		pod.Labels = map[string]string{}
		for key, value := range sandboxes[0].GetLabels() {
			if key != podlabels.PodName && key != podlabels.PodNamespace && key != podlabels.PodUID {
				pod.Labels[key] = value
			}
		}
	}
	seen := map[string]bool{}
	for _, c := range status.GetContainers() {
		if seen[c.GetName()] {
			continue
		}
		seen[c.GetName()] = true
		// What cannot be read is left out: the container is ended without its hook rather than not at all.
		recovered, _ := podlabels.Recover(c.GetAnnotations())
		pod.Spec.Containers = append(pod.Spec.Containers, *specOf(c, recovered))
		if recovered.PodTerminationGracePeriod != nil {
			pod.Spec.TerminationGracePeriodSeconds = recovered.PodTerminationGracePeriod
		}
	}
	return pod
}
