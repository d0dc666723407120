package podruntime

import (
	"github.com/quartet-node/quartet/services/syncloop/internal/decide"
	"github.com/quartet-node/quartet/services/syncloop/internal/metrics"
)

// timePhase begins to time a phase of a start. What it returns notes the phase, unless it has failed.
func (m *Manager) timePhase(phase metrics.Phase) (done func(*error)) {
	begun := m.cfg.Clock.Now()
	return func(err *error) {
		if *err == nil {
			m.cfg.Metrics.Passed(phase, m.cfg.Clock.Since(begun))
		}
	}
}

// typeOf is the kubelet's word for a kind of container: a sidecar is an init container to it.
func typeOf(kind decide.Kind) metrics.ContainerType {
	switch kind {
	case decide.Init, decide.Sidecar:
		return metrics.InitContainer
	case decide.Ordinary:
	}
	return metrics.Container
}
