package containerspec

import (
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
)

// SandboxUpdate returns the request that reports the new limits of a pod's cgroup to a runtime: those of its overhead,
// and the rest. 0 means no limit.
func SandboxUpdate(
	sandboxID string, pod *v1.Pod, node Node, has resources.Resources,
) *runtimeapi.UpdatePodSandboxResourcesRequest {
	over := overhead(pod, node)
	r := &runtimeapi.LinuxContainerResources{
		CpuPeriod: int64(has.CPUPeriod), CpuShares: int64(has.CPUShares), //nolint:gosec // they are small
		Unified: has.Unified,
	}
	if has.CPUQuota > 0 {
		r.CpuQuota = has.CPUQuota - over.GetCpuQuota()
	}
	if has.Memory > 0 {
		r.MemoryLimitInBytes = has.Memory - over.GetMemoryLimitInBytes()
	}
	if cpu := pod.Spec.Overhead.Cpu(); !cpu.IsZero() {
		r.CpuShares = int64(resources.Shares(resources.MilliOfShares(has.CPUShares) - cpu.MilliValue())) //nolint:gosec // as above
	}
	return &runtimeapi.UpdatePodSandboxResourcesRequest{PodSandboxId: sandboxID, Overhead: over, Resources: r}
}
