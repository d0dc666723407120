package executor

import "github.com/quartet-node/quartet/services/syncloop/internal/runtime/phases"

// timePhase begins to time a phase of a start, of a container or, when that is empty, of the pod. What it returns notes the
// phase, unless it has failed.
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
