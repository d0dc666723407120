package deviceplugins

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/allocation"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/containerspec"
)

// Ready returns why no sandbox can be created for a pod: a device that it has is not reported as healthy. After a
// restart of the machine, its plugin has to start first.
func (m *Manager) Ready(pod *v1.Pod) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.book.Present(pod.UID)
}

// Give returns what a container that is about to be created gets for its devices. It calls the plugins that want to
// prepare devices. Devices that the container does not have yet, such as after a lost checkpoint, are allocated.
func (m *Manager) Give(ctx context.Context, pod *v1.Pod, c *v1.Container) (*containerspec.Given, error) {
	m.mu.Lock()
	needs := slices.DeleteFunc(m.book.NeedsOf(pod, c), func(n allocation.Need) bool { return n.Count == 0 })
	m.mu.Unlock()
	if len(needs) == 0 {
		return &containerspec.Given{}, nil
	}
	for _, need := range needs {
		if err := m.settle(ctx, pod, need); err != nil {
			return nil, err
		}
		if err := m.preStart(ctx, need); err != nil {
			return nil, err
		}
	}
	m.mu.Lock()
	held := m.book.Held(needs[0].Container)
	m.mu.Unlock()
	return m.merge(held)
}

// settle makes sure that a container has its devices and the plugin's response.
func (m *Manager) settle(ctx context.Context, pod *v1.Pod, need allocation.Need) error {
	m.mu.Lock()
	grant, held := m.book.Held(need.Container)[need.Resource]
	e := m.plugin(need.Resource)
	m.mu.Unlock()
	switch {
	case held && grant.Response != nil:
		return nil
	case !held:
		if err := m.allocate(ctx, pod, need); err != nil {
			return err
		}
		return m.save()
	}
	response, err := m.call(ctx, e, need.Resource, grant.IDs())
	if err != nil {
		return err
	}
	m.mu.Lock()
	if _, still := m.book.Held(need.Container)[need.Resource]; still {
		grant.Response = response
		m.book.Put(need.Container, need.Resource, grant)
	}
	m.mu.Unlock()
	return m.save()
}

// preStart calls PreStartContainer if the plugin of a resource wants it.
func (m *Manager) preStart(ctx context.Context, need allocation.Need) error {
	m.mu.Lock()
	e, ids := m.plugin(need.Resource), m.book.Held(need.Container)[need.Resource].IDs()
	options := m.options[need.Resource]
	if e != nil {
		options = e.options
	}
	m.mu.Unlock()
	if !options.GetPreStartRequired() {
		return nil
	}
	err := errors.New("the plugin has gone")
	if e != nil {
		within, cancel := context.WithTimeout(ctx, pluginapi.KubeletPreStartContainerRPCTimeoutInSecs*time.Second)
		defer cancel()
		_, err = e.client.PreStartContainer(within, &pluginapi.PreStartContainerRequest{DevicesIds: ids})
	}
	if err != nil {
		return fmt.Errorf("device plugin PreStartContainer rpc failed with err: %w", err)
	}
	return nil
}

// merge joins the responses for a container by the names of the resources. Of what two plugins give twice, the first
// counts, and a difference is logged.
func (m *Manager) merge(held map[string]allocation.Grant) (*containerspec.Given, error) {
	given := &containerspec.Given{Annotations: map[string]string{}}
	ids := map[string][]string{}
	envs, devices, mounts, cdi := map[string]string{}, map[string]string{}, map[string]string{}, map[string]bool{}
	fresh := func(known map[string]string, what, key, value string) bool {
		before, exists := known[key]
		if exists && before != value {
			m.cfg.Logger.Error("two device plugins contradict each other; the first one counts", "field", what, "key", key,
				"expected", before, "got", value)
		}
		known[key] = before
		if !exists {
			known[key] = value
		}
		return !exists
	}
	for _, name := range slices.Sorted(maps.Keys(held)) {
		response := held[name].Response
		ids[name] = held[name].IDs()
		for _, key := range slices.Sorted(maps.Keys(response.GetEnvs())) {
			if value := response.GetEnvs()[key]; fresh(envs, "envs", key, value) {
				given.Envs = append(given.Envs, v1.EnvVar{Name: key, Value: value})
			}
		}
		for _, d := range response.GetDevices() {
			if fresh(devices, "devices", d.GetContainerPath(), d.GetHostPath()) {
				given.Devices = append(given.Devices, &runtimeapi.Device{
					ContainerPath: d.GetContainerPath(), HostPath: d.GetHostPath(), Permissions: d.GetPermissions(),
				})
			}
		}
		for _, mount := range response.GetMounts() {
			if fresh(mounts, "mounts", mount.GetContainerPath(), mount.GetHostPath()) {
				given.Mounts = append(given.Mounts, &runtimeapi.Mount{
					ContainerPath: mount.GetContainerPath(), HostPath: mount.GetHostPath(), Readonly: mount.GetReadOnly(),
				})
			}
		}
		for key, value := range response.GetAnnotations() {
			fresh(given.Annotations, "annotations", key, value)
		}
		for _, d := range response.GetCdiDevices() {
			if !cdi[d.GetName()] {
				cdi[d.GetName()] = true
				given.CDIDevices = append(given.CDIDevices, &runtimeapi.CDIDevice{Name: d.GetName()})
			}
		}
	}
	encoded, err := json.Marshal(ids)
	if err != nil {
		return nil, err
	}
	given.Annotations[podlabels.Devices] = string(encoded)
	return given, nil
}
