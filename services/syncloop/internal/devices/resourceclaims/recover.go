package resourceclaims

import (
	"k8s.io/apimachinery/pkg/types"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/claimbook"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/claimcheckpoint"
)

// Recover reads the claims of pods from their sandboxes, if there is no usable checkpoint. It does not block.
func (m *Manager) Recover(observed []*lifecyclev1.PodStatus) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.rebuild {
		return
	}
	m.rebuild, m.dirty = false, true
	for _, pod := range observed {
		for _, sandbox := range pod.GetSandboxes() { // the newest first
			m.adopt(pod, sandbox)
		}
	}
	if found := len(m.book.All()); found > 0 {
		m.cfg.Logger.Warn("the resource claims were read from the sandboxes of pods, because there is no usable checkpoint",
			"claims", found)
	}
	m.look()
}

// adopt records the claims that a pod had when its sandbox was created. They may have been unprepared since; drivers
// accept that this is repeated.
func (m *Manager) adopt(pod *lifecyclev1.PodStatus, sandbox *lifecyclev1.Sandbox) {
	text, ok := sandbox.GetAnnotations()[podlabels.Claims]
	if !ok {
		return
	}
	claims, err := claimcheckpoint.Decode(text)
	if err != nil {
		m.cfg.Logger.Error("cannot read the resource claims of a pod", telemetry.KeyPodUID, pod.GetUid(),
			telemetry.KeySandboxID, sandbox.GetId(), telemetry.KeyError, err)
		return
	}
	for _, claim := range claims {
		m.book.Load(claimbook.Entry{Claim: claim, Pods: []types.UID{types.UID(pod.GetUid())}})
	}
}
