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

// eventCgroupFailed is the reason of the kubelet's event for a pod whose cgroup cannot be made.
const eventCgroupFailed = "FailedCreatePodContainer"

// podDirMode is that of the folder of a pod's own files.
const podDirMode = 0o750

// Cgroups keeps a cgroup for each pod; *podcgroups.Tree does it.
type Cgroups interface {
	// Ensure makes a pod's cgroup, or brings it up to date, and returns its name.
	Ensure(ctx context.Context, pod *v1.Pod) (name string, err error)
	// Name returns the name of a pod's cgroup, and whether it is there.
	Name(pod *v1.Pod) (name string, there bool)
	// Given returns the cpu and memory limits of a pod's cgroup, and those that the pod's spec asks for. The error is
	// fs.ErrNotExist if there is no such cgroup.
	Given(pod *v1.Pod) (has, wants resources.Resources, err error)
	// Limit changes a part of the limits of a pod's cgroup.
	Limit(pod *v1.Pod, part resources.Resources) error
	// MemoryUsage returns how many bytes of memory a pod uses.
	MemoryUsage(pod *v1.Pod) (uint64, error)
	// Remove removes a pod's cgroup with all that runs in it. A pod without one is fine.
	Remove(ctx context.Context, uid types.UID) error
}

// CgroupError says that a pod's cgroup cannot be made. Nothing of the pod is started before it can.
type CgroupError struct{ Err error }

func (e *CgroupError) Error() string { return e.Err.Error() }
func (e *CgroupError) Unwrap() error { return e.Err }

// ensureCgroup has the cgroup that the pod's sandbox and containers are put into.
func (s *podSync) ensureCgroup(ctx context.Context) error {
	if s.m.cfg.Cgroups == nil {
		return nil
	}
	// The folder says that the cgroup is one of ours, should this process be killed before the pod is gone: what is left of
	// pods is found by their folders. In the tree of cgroups there may be those of others, a kubelet's for example.
	if uid := string(s.pod.UID); !strings.Contains(uid, "/") {
		if err := os.MkdirAll(s.m.podDir(uid), podDirMode); err != nil {
			return fmt.Errorf("folder of pod %s: %w", podName(s.pod), err)
		}
	}
	if name, there := s.m.cfg.Cgroups.Name(s.pod); there && s.result.ResizeError != nil {
		s.cgroup = name // it stays as it is for now
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

// inCgroup puts a sandbox's configuration into the pod's cgroup. Without cgroups for pods it stays where all pods are.
func (s *podSync) inCgroup(config *runtimeapi.PodSandboxConfig) {
	if s.cgroup != "" {
		config.Linux.CgroupParent = s.cgroup
	}
}

// removeCgroup removes the cgroup of a pod with what is left in it.
func (m *Manager) removeCgroup(ctx context.Context, uid types.UID) error {
	if m.cfg.Cgroups == nil {
		return nil
	}
	return m.cfg.Cgroups.Remove(ctx, uid)
}
