package executor

import (
	"github.com/quartet-node/quartet/services/syncloop/internal/metrics"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/decide"
)

// timePhase begins to time a phase of a start, of a container or, when that is empty, of the pod. What it returns notes the
// phase, unless it has failed.
func (s *podSync) timePhase(phase metrics.Phase, container string) (done func(*error)) {
	cfg := &s.m.cfg
	begun := cfg.Clock.Now()
	return func(err *error) {
		if *err != nil {
			return
		}
		ended := cfg.Clock.Now()
		cfg.Metrics.Passed(phase, ended.Sub(begun))
		cfg.Phases.Passed(s.pod.UID, container, phase, ended, ended.Sub(begun))
	}
}

// typeOf is the kubelet's word for a kind of container: a sidecar is an init container to it.
func typeOf(kind decide.Kind) metrics.ContainerType {
	switch kind {
	case decide.Init, decide.Sidecar:
		return metrics.InitContainer
	case decide.Ephemeral:
		return metrics.EphemeralContainer
	case decide.Ordinary:
	}
	return metrics.Container
}
