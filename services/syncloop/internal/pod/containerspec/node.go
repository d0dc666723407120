// Package containerspec turns a pod's spec into what the CRI takes: the configuration of its sandbox and of its
// containers. It is pure: facts of the node and addresses are passed in, and files (hosts, termination message, volumes)
// are only named, never touched; package executor makes them.
package containerspec

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Node is what the specs of all pods of a node have in common.
type Node struct {
	// Name is the node's name, IPs its addresses, the primary one first: what the downward API gives.
	Name string
	IPs  []string
	// Capacity is the machine's cpu and memory: the measure of the oom score.
	Capacity v1.ResourceList
	// Allocatable is what of it is for pods: the downward API's limit of a container without one. Capacity stands in for
	// what is not in it.
	Allocatable v1.ResourceList
	// HugePages are the sizes of huge pages that the machine has, as its cgroups name them, for example 2MB: a container may
	// use as many as its limit says, and none without one.
	HugePages []string
	// CgroupV2 is a machine whose cgroups are of version 2 alone. There GroupOOMKill has the kernel end all processes of a
	// container when its memory runs out, not the largest one alone.
	CgroupV2, GroupOOMKill bool
	// SwapLimit is a machine whose cgroups can limit what containers swap. LimitedSwap lets containers of burstable pods swap in
	// proportion to the memory that they request, with cgroup v2 only; all others do not swap.
	SwapLimit, LimitedSwap bool
	// SwapCapacity is how many bytes of swap space the machine has.
	SwapCapacity int64
	// Sysctls are set in each pod that does not set them itself, by names with dots.
	Sysctls map[string]string
	// PodLogsDir has one folder of logs per pod.
	PodLogsDir string
	// SeccompDir is the folder that localhost seccomp profiles are relative to.
	SeccompDir string
	// SeccompDefault gives containers without a seccomp profile the runtime's default one.
	SeccompDefault bool
	// MaskedPaths are hidden from containers beside those that are hidden on every machine.
	MaskedPaths []string
	// CPUQuota turns CPU limits into CFS quotas of CPUPeriod; 0 is the kernel's 100 ms.
	CPUQuota  bool
	CPUPeriod time.Duration
	// CgroupParent is the cgroup that all pods are under.
	CgroupParent string
	// ClusterDNS and ClusterDomain are for pods with the policy ClusterFirst.
	ClusterDNS    []string
	ClusterDomain string
}

// UnsupportedError says that a pod asks for something that this version cannot give it. Nothing of the pod is started.
type UnsupportedError struct {
	// Field is the path in the pod, for example `spec.volumes[0] "data"`.
	Field string
	// Message says what is not supported, and what to do.
	Message string
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("%s: %s", e.Field, e.Message)
}

// namespaces says which namespaces a pod has of its own.
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
