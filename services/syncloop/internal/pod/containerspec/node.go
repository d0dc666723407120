// Package containerspec converts a pod's spec to the CRI's configurations of its sandbox and its containers. It is
// pure: facts about the node and addresses are passed in, and files (hosts, termination message, volumes) are only
// named; package executor creates them.
package containerspec

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
)

// Node holds the inputs that the pods of a node share.
type Node struct {
	// Name is the node's name, and IPs its addresses, the primary one first, for the downward API.
	Name string
	IPs  []string
	// Capacity is the machine's CPU and memory, the reference of the OOM score.
	Capacity v1.ResourceList
	// Allocatable is the amount for pods, the default limit in the downward API. Capacity is used for missing entries.
	Allocatable v1.ResourceList
	// HugePages lists the machine's sizes of huge pages, as its cgroups name them, for example 2MB: a container may use as
	// many as its limit, and none without one.
	HugePages []string
	// CgroupV2 is true if all cgroups of the machine are of version 2. GroupOOMKill then makes the kernel end all
	// processes of a container that runs out of memory, instead of the largest one.
	CgroupV2, GroupOOMKill bool
	// SwapLimit is true if the machine's cgroups can limit swap. LimitedSwap lets containers of burstable pods swap in
	// proportion to their memory requests, with cgroup v2 only; others do not swap.
	SwapLimit, LimitedSwap bool
	// MemoryQoS protects and throttles the memory of containers below their limits. MemoryForPods is the memory, in bytes,
	// that all pods may use, which throttles containers without a limit; 0 if that is not known.
	MemoryQoS     resources.MemoryQoS
	MemoryForPods int64
	// SwapCapacity is the machine's swap space in bytes.
	SwapCapacity int64
	// Sysctls are the default sysctls of pods, by names with dots.
	Sysctls map[string]string
	// PodLogsDir is the directory with one log directory per pod.
	PodLogsDir string
	// SeccompDir is the directory of localhost seccomp profiles.
	SeccompDir string
	// SeccompDefault applies the runtime's default seccomp profile to containers without a profile.
	SeccompDefault bool
	// MaskedPaths are hidden from containers in addition to the default ones.
	MaskedPaths []string
	// CPUQuota converts CPU limits to CFS quotas with the period CPUPeriod; 0 means the kernel's 100 ms.
	CPUQuota  bool
	CPUPeriod time.Duration
	// CgroupParent is the parent of all pods' cgroups.
	CgroupParent string
	// ClusterDNS and ClusterDomain apply to pods with the policy ClusterFirst.
	ClusterDNS    []string
	ClusterDomain string
}

// UnsupportedError is the error of an unsupported field. Nothing of the pod is started.
type UnsupportedError struct {
	// Field is the path in the pod, for example `spec.volumes[0] "data"`.
	Field string
	// Message describes what is not supported, and the remedy.
	Message string
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("%s: %s", e.Field, e.Message)
}

// namespaces returns the namespaces of a pod.
func namespaces(pod *v1.Pod, ids IDs) *runtimeapi.NamespaceOption {
	n := &runtimeapi.NamespaceOption{
		Network: runtimeapi.NamespaceMode_POD, Ipc: runtimeapi.NamespaceMode_POD, Pid: runtimeapi.NamespaceMode_CONTAINER,
		UsernsOptions: ids.namespace(),
	}
	if pod.Spec.HostNetwork {
		n.Network = runtimeapi.NamespaceMode_NODE
	}
	if pod.Spec.HostIPC {
		n.Ipc = runtimeapi.NamespaceMode_NODE
	}
	switch {
	case pod.Spec.HostPID:
		n.Pid = runtimeapi.NamespaceMode_NODE
	case pod.Spec.ShareProcessNamespace != nil && *pod.Spec.ShareProcessNamespace:
		n.Pid = runtimeapi.NamespaceMode_POD
	}
	return n
}
