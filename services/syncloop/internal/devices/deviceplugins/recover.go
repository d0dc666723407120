package deviceplugins

import (
	"encoding/json"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/allocation"
)

// Recover rebuilds the allocations from what runs, if there is no usable checkpoint. It does not block.
func (m *Manager) Recover(observed []*lifecyclev1.PodStatus) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.rebuild {
		return
	}
	m.rebuild, m.dirty = false, true
	found := 0
	for _, pod := range observed {
		for _, c := range pod.GetContainers() {
			if c.GetState() != lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING {
				continue
			}
			found += m.adopt(pod, c)
		}
	}
	if found > 0 {
		m.cfg.Logger.Warn("the devices of containers were read from the runtime, because there is no usable checkpoint",
			"allocations", found)
	}
	m.look()
}

// adopt records the devices that a running container was created with, and returns their number of resources.
func (m *Manager) adopt(pod *lifecyclev1.PodStatus, c *lifecyclev1.Container) int {
	text, ok := c.GetAnnotations()[podlabels.Devices]
	if !ok {
		return 0
	}
	var held map[string][]string
	if err := json.Unmarshal([]byte(text), &held); err != nil {
		m.cfg.Logger.Error("cannot read the devices of a running container", telemetry.KeyPodUID, pod.GetUid(),
			telemetry.KeyContainer, c.GetName(), telemetry.KeyError, err)
		return 0
	}
	for resource, ids := range held {
		grant := allocation.Grant{Rebuilt: true}
		slices.Sort(ids)
		for _, id := range slices.Compact(ids) {
			grant.Devices = append(grant.Devices, allocation.Device{ID: id})
		}
		m.book.Put(allocation.Container{Pod: types.UID(pod.GetUid()), Name: c.GetName()}, resource, grant)
	}
	return len(held)
}
