package executor

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/containerspec"
)

// Devices has the devices and CPUs of pods, which they were given when they were admitted; *allocator.Allocator
// implements it.
type Devices interface {
	// Ready returns why no sandbox can be created for a pod: one of its devices is not there, such as after a restart of
	// the machine.
	Ready(pod *v1.Pod) error
	// Give returns what a container that is about to be created gets.
	Give(ctx context.Context, pod *v1.Pod, c *v1.Container) (*containerspec.Given, error)
	// HasCPUs reports whether a container has CPUs for itself; with an empty name, whether any container of the pod has.
	HasCPUs(uid types.UID, container string) bool
	// Pods returns the pods that have something for themselves, and Release takes them from a pod of which nothing runs
	// any more.
	Pods() []types.UID
	Release(uid types.UID)
}

// noDevices is a node without device plugins.
type noDevices struct{}

// Ready implements Devices.
func (noDevices) Ready(*v1.Pod) error { return nil }

// Give implements Devices.
func (noDevices) Give(context.Context, *v1.Pod, *v1.Container) (*containerspec.Given, error) {
	return &containerspec.Given{}, nil
}

// HasCPUs implements Devices.
func (noDevices) HasCPUs(types.UID, string) bool { return false }

// Pods implements Devices.
func (noDevices) Pods() []types.UID { return nil }

// Release implements Devices.
func (noDevices) Release(types.UID) {}

// DevicesError is the error of a pod that waits for its devices.
type DevicesError struct{ Err error }

func (e *DevicesError) Error() string { return "waiting for device plugins: " + e.Err.Error() }

// Unwrap returns the reason.
func (e *DevicesError) Unwrap() error { return e.Err }

// waitForDevices returns why a new sandbox has to wait for the pod's devices. In a sandbox that exists, containers are
// created without a look at them, as in the kubelet.
func (s *podSync) waitForDevices(context.Context) error {
	if !s.actions.CreateSandbox {
		return nil
	}
	if err := s.m.cfg.Devices.Ready(s.pod); err != nil {
		return &DevicesError{Err: err}
	}
	return nil
}

// nodeFor returns the node for a container, or with an empty name for the sandbox of a pod. As in the kubelet, there is
// no quota on CPUs that a container has for itself.
func (m *Manager) nodeFor(pod *v1.Pod, container string) containerspec.Node {
	node := *m.nodeNow()
	node.CPUQuota = node.CPUQuota && !m.cfg.Devices.HasCPUs(pod.UID, container)
	return node
}
