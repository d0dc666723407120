package podruntime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/moby/sys/mountinfo"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/containerspec"
	"github.com/quartet-node/quartet/services/syncloop/internal/observed"
)

// CleanUpPod removes what is left of a pod after its termination: containers and sandboxes, and, when they are gone, its
// logs and its files. It refuses a pod that still runs. The runtime need not have anything of the pod any more: the names
// are the pod's own. Calling it again is harmless.
func (m *Manager) CleanUpPod(ctx context.Context, pod *v1.Pod, status *lifecyclev1.PodStatus) error {
	for _, c := range status.GetContainers() {
		if observed.Alive(c) {
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
	var errs []error
	for _, c := range status.GetContainers() {
		if err := m.removeContainer(ctx, rt, status.GetUid(), c); err != nil {
			errs = append(errs, err)
		}
	}
	for _, s := range status.GetSandboxes() {
		if err := rt.removePodSandbox(ctx, s.GetId()); err != nil {
			errs = append(errs, fmt.Errorf("remove sandbox %s: %w", s.GetId(), err))
		}
	}
	// Before the files, by which it is found again when it cannot be removed.
	errs = append(errs, m.ReleasePod(ctx, pod), m.forgetPod(pod))
	if err = errors.Join(errs...); err == nil {
		err = m.removeFiles(pod)
	}
	if err != nil {
		return fmt.Errorf("clean up pod %s: %w", podName(pod), err)
	}
	return nil
}

func (m *Manager) removeContainer(ctx context.Context, rt *tracedRuntime, uid string, c *lifecyclev1.Container) error {
	if err := rt.removeContainer(ctx, c.GetId()); err != nil {
		return fmt.Errorf("remove container %q (%s): %w", c.GetName(), c.GetId(), err)
	}
	return m.cfg.Endings.ForgetPreStop(types.UID(uid), c.GetId())
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
		return os.RemoveAll(dir) // found by this folder alone
	}
	return errors.Join(os.RemoveAll(dir), os.RemoveAll(containerspec.LogDir(m.cfg.PodLogsDir, pod)))
}

// PruneContainers removes ended containers beyond the newest keepPerContainer of each name (at least one stays: it holds
// restart count, last state and back-off), containers that were created and never started when a newer one is there, and
// dead sandboxes that nothing is left of. Logs stay until the pod goes.
func (m *Manager) PruneContainers(ctx context.Context, status *lifecyclev1.PodStatus, keepPerContainer int) error {
	remove, sandboxes := pruned(status, max(keepPerContainer, 1))
	if len(remove) == 0 && len(sandboxes) == 0 {
		return nil
	}
	runtime, err := m.cfg.Runtime()
	if err != nil {
		return err
	}
	rt := m.instrument(runtime)
	var errs []error
	for _, c := range remove {
		if err := m.removeContainer(ctx, rt, status.GetUid(), c); err != nil {
			errs = append(errs, err)
			continue
		}
		count := podlabels.RestartOf(c.GetAnnotations(), c.GetAttempt()).Count
		if err := os.Remove(m.terminationFile(status.GetUid(), c.GetName(), count)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	for _, id := range sandboxes {
		if err := rt.removePodSandbox(ctx, id); err != nil {
			errs = append(errs, fmt.Errorf("remove sandbox %s: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

// pruned says which containers and sandboxes of a pod are not needed any more.
func pruned(status *lifecyclev1.PodStatus, keep int) (containers []*lifecyclev1.Container, sandboxes []string) {
	kept, seen, inUse := map[string]int{}, map[string]bool{}, map[string]bool{}
	for _, c := range status.GetContainers() { // newest first
		name := c.GetName()
		created := c.GetState() == lifecyclev1.ContainerState_CONTAINER_STATE_CREATED
		switch {
		case created && seen[name], observed.Exited(c) && kept[name] >= keep:
			containers = append(containers, c)
			continue
		case observed.Exited(c):
			kept[name]++
		}
		seen[name] = true
		inUse[c.GetSandboxId()] = true
	}
	for i, s := range status.GetSandboxes() { // newest first: it holds the attempt, and the pod's last addresses
		if i > 0 && !observed.Ready(s) && !inUse[s.GetId()] {
			sandboxes = append(sandboxes, s.GetId())
		}
	}
	return containers, sandboxes
}

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
