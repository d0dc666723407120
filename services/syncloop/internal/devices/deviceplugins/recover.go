package deviceplugins

import (
	"encoding/json"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/allocation"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/holders"
)

// Recover rebuilds the allocations from the containers in the runtime, if there is no usable checkpoint. GoesOn reports
// whether the containers of a pod may be started again. It does not block.
func (m *Manager) Recover(observed []*lifecyclev1.PodStatus, goesOn func(types.UID) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.rebuild {
		return
	}
	m.rebuild, m.dirty = false, true
	found := 0
	for _, h := range holders.Of(observed, goesOn) {
		found += m.adopt(allocation.Container{Pod: h.Pod, Name: h.Container.GetName()}, h.Container)
	}
	if found > 0 {
		m.cfg.Logger.Warn("the devices of containers were read from the runtime, because there is no usable checkpoint",
			"allocations", found)
	}
	m.look()
}

// adopt records the devices that a container was created with, and returns their number of resources.
func (m *Manager) adopt(c allocation.Container, made *lifecyclev1.Container) (found int) {
	text, ok := made.GetAnnotations()[podlabels.Devices]
	if !ok {
		return 0
	}
	var held map[string][]string
	if err := json.Unmarshal([]byte(text), &held); err != nil {
		m.cfg.Logger.Error("cannot read the devices of a container", telemetry.KeyPodUID, string(c.Pod),
			telemetry.KeyContainer, c.Name, telemetry.KeyError, err)
		return 0
	}
	for resource, ids := range held {
		grant := allocation.Grant{Rebuilt: true}
		slices.Sort(ids)
		for _, id := range slices.Compact(ids) {
			grant.Devices = append(grant.Devices, allocation.Device{ID: id})
		}
		if !m.book.Adopt(c, resource, grant) {
			m.cfg.Logger.Error("a container loses its devices, because another pod has them", telemetry.KeyPodUID, string(c.Pod),
				telemetry.KeyContainer, c.Name, keyResource, resource, "ids", ids)
			continue
		}
		found++
	}
	return found
}
