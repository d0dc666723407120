package executor

import (
	"context"
	"fmt"
	"os"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
)

// eventCgroupFailed is the reason of the event for a pod whose cgroup cannot be created. It is the kubelet's reason.
const eventCgroupFailed = "FailedCreatePodContainer"

// podDirMode is the mode of a pod's folder of files.
const podDirMode = 0o750

// Cgroups keeps one cgroup for each pod; *podcgroups.Tree implements it.
type Cgroups interface {
	// Ensure creates or updates a pod's cgroup and returns its name.
	Ensure(ctx context.Context, pod *v1.Pod) (name string, err error)
	// Name returns the name of a pod's cgroup, and whether the cgroup exists.
	Name(pod *v1.Pod) (name string, exists bool)
	// Given returns the current cpu and memory limits of a pod's cgroup, and the limits in the pod's spec. The error is
	// fs.ErrNotExist if the cgroup does not exist.
	Given(pod *v1.Pod) (has, wants resources.Resources, err error)
	// Limit changes some of the limits of a pod's cgroup.
	Limit(pod *v1.Pod, part resources.Resources) error
	// MemoryUsage returns the memory usage of a pod in bytes.
	MemoryUsage(pod *v1.Pod) (uint64, error)
	// Remove kills the processes in a pod's cgroup and removes it. It succeeds if the pod has no cgroup.
	Remove(ctx context.Context, uid types.UID) error
}

// CgroupError reports that a pod's cgroup cannot be created. Until then nothing of the pod is started.
type CgroupError struct{ Err error }

func (e *CgroupError) Error() string { return e.Err.Error() }
func (e *CgroupError) Unwrap() error { return e.Err }

// ensureCgroup creates or updates the cgroup of the pod's sandbox and containers.
func (s *podSync) ensureCgroup(ctx context.Context) error {
	if s.m.cfg.Cgroups == nil {
		return nil
	}
	// The pod's folder marks the cgroup as Quartet's. If this process is killed before the pod is removed, the next
	// process finds leftover pods by their folders. The cgroup tree may also hold cgroups of other programs, for example
	// of a kubelet.
	if uid := string(s.pod.UID); !strings.Contains(uid, "/") {
		if err := os.MkdirAll(s.m.podDir(uid), podDirMode); err != nil {
			return fmt.Errorf("folder of pod %s: %w", podName(s.pod), err)
		}
	}
	if name, exists := s.m.cfg.Cgroups.Name(s.pod); exists && s.result.ResizeError != nil {
		s.cgroup = name // after a failed resize the cgroup stays as it is
		return nil
	}
	name, err := s.m.cfg.Cgroups.Ensure(ctx, s.pod)
	if err != nil {
		s.m.warn(ctx, s.pod, "", eventCgroupFailed, fmt.Sprintf("unable to ensure pod container exists: %v", err))
		return &CgroupError{fmt.Errorf("cgroup of pod %s: %w", podName(s.pod), err)}
	}
	s.cgroup = name
	return nil
}

// setCgroupParent sets the pod's cgroup as the parent in a sandbox's configuration. If pods have no cgroups of their
// own, the common parent stays.
func (s *podSync) setCgroupParent(config *runtimeapi.PodSandboxConfig) {
	if s.cgroup != "" {
		config.Linux.CgroupParent = s.cgroup
	}
}

// removeCgroup removes a pod's cgroup and kills the processes in it.
func (m *Manager) removeCgroup(ctx context.Context, uid types.UID) error {
	if m.cfg.Cgroups == nil {
		return nil
	}
	return m.cfg.Cgroups.Remove(ctx, uid)
}
