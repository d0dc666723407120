package deviceplugins

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/quartet-node/quartet/services/syncloop/internal/devices/allocation"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/numa"
)

// registrationGrace is how long after the start of this process a new pod waits for a plugin that was registered
// before. Plugins register again when they notice that their socket is gone; those that are built like Kubernetes'
// sample plugin look every 10 s.
const registrationGrace = 30 * time.Second

// Check returns why the devices of a new pod cannot be allocated, nil if they can or if it needs none. Wait is true
// while that is not known yet, because this process has just started. It does not block.
func (m *Manager) Check(pod *v1.Pod) (wait bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	needs := m.book.Needs(pod)
	if len(needs) > 0 && m.rebuild {
		return true, nil
	}
	for _, need := range needs {
		if m.book.Awaits(need.Resource) && m.cfg.Clock.Since(m.started) < registrationGrace {
			return true, nil
		}
	}
	return false, m.book.Check(pod)
}

// Needs reports whether a pod needs devices.
func (m *Manager) Needs(pod *v1.Pod) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.book.Needs(pod)) > 0
}

// Owns reports whether a resource is one of device plugins.
func (m *Manager) Owns(resource v1.ResourceName) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.book.Manages(string(resource))
}

// Hints returns the NUMA nodes that a container could get its devices from, by resource.
func (m *Manager) Hints(pod *v1.Pod, c *v1.Container) numa.Hints {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.book.Hints(pod, c, m.cfg.Nodes)
}

// PodHints returns the NUMA nodes that all containers of a pod together could get their devices from.
func (m *Manager) PodHints(pod *v1.Pod) numa.Hints {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.book.PodHints(pod, m.cfg.Nodes)
}

// Allocate allocates the devices of a container, those of the affinity first. It returns when the plugins have answered
// and the checkpoint is written, or with the first error. What was allocated until then stays until Release. A plugin
// may take as long as it likes; the call ends with ctx, and when the pod is released.
func (m *Manager) Allocate(ctx context.Context, pod *v1.Pod, c *v1.Container, affinity numa.Mask) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.mu.Lock()
	needs := m.book.NeedsOf(pod, c)
	if err := ctx.Err(); err != nil && len(needs) > 0 {
		m.mu.Unlock()
		return err
	}
	m.calls[pod.UID] = cancel
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		delete(m.calls, pod.UID)
		m.mu.Unlock()
	}()
	for _, need := range needs {
		need.Affinity = affinity
		if err := m.allocate(ctx, pod, need); err != nil {
			return err
		}
	}
	if len(needs) == 0 {
		return nil
	}
	return m.save()
}

// Release takes all devices from a pod of which nothing runs any more. It ends an allocation under way.
func (m *Manager) Release(pod types.UID) {
	m.mu.Lock()
	if cancel := m.calls[pod]; cancel != nil {
		cancel()
	}
	had := m.book.Release(pod)
	m.mu.Unlock()
	if had {
		m.saveOrWarn()
	}
}

// allocate allocates the devices of one resource to a container that does not have them yet.
func (m *Manager) allocate(ctx context.Context, pod *v1.Pod, need allocation.Need) error {
	m.mu.Lock()
	question, ask, err := m.book.Ask(pod, need)
	e := m.plugin(need.Resource)
	m.mu.Unlock()
	if err != nil {
		return err
	}
	var preferred []string
	if ask && e != nil && e.options.GetGetPreferredAllocationAvailable() {
		if preferred, err = e.prefer(ctx, question); err != nil {
			return err
		}
	}
	m.mu.Lock()
	ids, err := m.book.Reserve(pod, need, preferred)
	e = m.plugin(need.Resource)
	m.mu.Unlock()
	if err != nil || len(ids) == 0 {
		return err
	}
	response, err := m.call(ctx, e, need.Resource, ids)
	m.mu.Lock()
	defer m.mu.Unlock()
	reserved, held := m.book.Held(need.Container)[need.Resource]
	switch {
	case !held || reserved.Settled():
		return fmt.Errorf("pod %s was removed while devices were allocated", pod.UID)
	case err != nil:
		m.book.Drop(need.Container, need.Resource)
		return err
	}
	reserved.Response = response
	m.book.Put(need.Container, need.Resource, reserved)
	return nil
}

// call asks a plugin, nil if there is none, to allocate devices.
func (m *Manager) call(
	ctx context.Context, e *endpoint, resource string, ids []string,
) (*pluginapi.ContainerAllocateResponse, error) {
	if e == nil {
		return nil, fmt.Errorf("unknown Device Plugin %s", resource)
	}
	begun := m.cfg.Clock.Now()
	response, err := e.client.Allocate(ctx, &pluginapi.AllocateRequest{
		ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}},
	})
	m.cfg.Metrics.allocated(resource, m.cfg.Clock.Since(begun))
	if err != nil {
		return nil, err
	}
	if len(response.GetContainerResponses()) == 0 {
		return nil, fmt.Errorf("no containers return in allocation response %v", response)
	}
	return response.GetContainerResponses()[0], nil
}

// prefer asks a plugin which devices it prefers.
func (e *endpoint) prefer(ctx context.Context, q allocation.Question) ([]string, error) {
	response, err := e.client.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{
		ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
			AvailableDeviceIDs: q.Available, MustIncludeDeviceIDs: q.Required,
			AllocationSize: int32(min(q.Size, len(q.Available))), //nolint:gosec // at most the devices of one message
		}},
	})
	if err != nil {
		return nil, fmt.Errorf("device plugin GetPreferredAllocation rpc failed with err: %w", err)
	}
	if len(response.GetContainerResponses()) == 0 {
		return nil, nil
	}
	return response.GetContainerResponses()[0].GetDeviceIDs(), nil
}
