package containerspec

import (
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Given is what a container gets for the devices, the CPUs and the memory that it has.
type Given struct {
	// Envs are environment variables; the container's own take precedence.
	Envs []v1.EnvVar
	// Mounts and Devices precede those of the container's volumes.
	Mounts  []*runtimeapi.Mount
	Devices []*runtimeapi.Device
	// CDIDevices are devices by their fully qualified CDI names.
	CDIDevices []*runtimeapi.CDIDevice
	// CPUs are the CPUs that the container may use, as a list of the kernel's; empty for all.
	CPUs string
	// MemoryNodes are the NUMA nodes that the container has its memory from, as a list of the kernel's; empty for all.
	MemoryNodes string
	// Annotations are annotations of the container in the runtime.
	Annotations map[string]string
}
