package volumes

import (
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// limitError is the error of a volume that cannot be attached because the node has reached the limit of a driver.
type limitError interface {
	// RejectsPod returns the reason for which a kubelet rejects the pod; empty if the pod waits on.
	RejectsPod() string
	// ExhaustedDriver returns the driver whose limit is reached.
	ExhaustedDriver() string
}

// Rejection is a pod that does not get its volumes because of the limit of a driver.
type Rejection struct {
	Pod *v1.Pod
	// Reason and Message are the kubelet's.
	Reason, Message string
	// Drivers are the drivers whose limits are reached.
	Drivers []string
}

// Rejected returns the pods that a kubelet rejects: those that have waited for a volume as long as Wait waits, if the
// last failure of that volume is the limit of a driver.
func (m *Manager) Rejected() []Rejection {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Rejection
	for uid, known := range m.pods {
		if known.intent != wanted {
			continue
		}
		r := Rejection{Pod: m.specs[uid].pod}
		var missing, exhausted []string
		for _, k := range ordered(known) {
			s := known.volumes[k]
			if !s.inSpec || s.ready {
				continue
			}
			missing = append(missing, k.name)
			var limit limitError
			if m.cfg.Clock.Since(s.wantedSince) < waitTimeout || !errors.As(s.err, &limit) || limit.RejectsPod() == "" {
				continue
			}
			exhausted, r.Reason = append(exhausted, k.name), limit.RejectsPod()
			if driver := limit.ExhaustedDriver(); !slices.Contains(r.Drivers, driver) {
				r.Drivers = append(r.Drivers, driver)
			}
		}
		if r.Reason == "" {
			continue
		}
		r.Message = fmt.Sprintf("Node has reached its volume attachment limit, rejecting pod. "+
			"unmounted volumes=%v, unattached volumes=%v, failed to process volumes=[]: context deadline exceeded",
			missing, exhausted)
		out = append(out, r)
	}
	return out
}
