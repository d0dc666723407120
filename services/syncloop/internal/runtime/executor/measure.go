package executor

import "github.com/quartet-node/quartet/services/syncloop/internal/runtime/phases"

// timePhase starts the timer of a phase of a container's start, or of the pod's start if container is empty. The
// returned function records the duration unless the phase has failed.
func (s *podSync) timePhase(phase phases.Phase, container string) (done func(*error)) {
	cfg := &s.m.cfg
	begun := cfg.Clock.Now()
	return func(err *error) {
		if *err != nil {
			return
		}
		ended := cfg.Clock.Now()
		cfg.Phases.Passed(s.pod.UID, container, phase, ended, ended.Sub(begun))
	}
}
