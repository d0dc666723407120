// Package devices is the wing for what a container has for itself alone: devices of device plugins and of resource
// claims, CPUs, and memory of NUMA nodes. It has no code of its own.
//
// In: the plugins that register, the devices that they report, the CPUs and the memory of the machine, and pods. Out:
// which container has which device, CPU and memory, and what the runtime gives to the container for it. allocation,
// cpus, memory and numa decide without clock, network and disk; checkpoint, cpustate and memorystate keep the decisions
// in the kubelet's files; deviceplugins talks to the plugins; allocator is the one owner that admits a pod and gives a
// container what it has. Claims of pods are decided by the cluster: claimbook, claimcheckpoint and resourceclaims are
// the same for them. Imports: pod.
package devices
