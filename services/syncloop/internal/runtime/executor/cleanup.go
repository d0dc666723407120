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

// CleanUpPod removes what is left of a pod after its termination: its containers and sandboxes, and then its logs and
// files. It fails if a container still runs. The runtime may have lost the pod: all names are derived from the pod.
// CleanUpPod is idempotent.
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
	// The gate limits how many pods are removed at once, so that others can start.
	err = m.removals.pass(ctx, func() error { return m.removeFromRuntime(ctx, rt, status) })
	// The files are removed last: if a removal fails, the pod is found again by its files.
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

// removeFiles removes a pod's logs and files. It fails if a file system is mounted below the pod's folder, because the
// content of the mount does not belong to the pod.
func (m *Manager) removeFiles(pod *v1.Pod) error {
	if uid := string(pod.UID); uid == "" || uid == "." || uid == ".." || strings.ContainsAny(pod.Namespace+pod.Name+uid, "/\x00") {
		return nil // not a pod of Quartet: the paths would lead outside of the pod folders
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
		return rmtree.All(dir) // Leftovers found only this folder
	}
	return errors.Join(rmtree.All(dir), rmtree.All(containerspec.LogDir(m.cfg.PodLogsDir, pod)))
}

// PruneContainers removes the items that containergc.Of finds for a pod, with the logs and termination messages of the
// containers. At least one ended container of each name stays. With Config.Garbage the removal, and its errors, come
// later.
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

// RemoveGarbage removes a container with its logs and termination message, or a sandbox. It is idempotent and may run
// while a worker syncs the pod.
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
	// The files are removed first, because their names are known only as long as the container exists.
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

// Starting reports whether sandboxes are being created.
func (m *Manager) Starting() bool { return m.starts.busy() }

// PodFromObserved returns a pod made from the runtime's records, for a pod that no source has any more. It has the
// names, the labels and annotations, the grace period, and the fields of the containers that stopping them needs.
func PodFromObserved(status *lifecyclev1.PodStatus) *v1.Pod {
	pod := &v1.Pod{}
	pod.Name, pod.Namespace, pod.UID = status.GetName(), status.GetNamespace(), types.UID(status.GetUid())
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
		// Fields that cannot be read are left out: a container is better stopped without its hook than not stopped.
		recovered, _ := podlabels.Recover(c.GetAnnotations())
		pod.Spec.Containers = append(pod.Spec.Containers, *specOf(c, recovered))
		if recovered.PodTerminationGracePeriod != nil {
			pod.Spec.TerminationGracePeriodSeconds = recovered.PodTerminationGracePeriod
		}
	}
	return pod
}
