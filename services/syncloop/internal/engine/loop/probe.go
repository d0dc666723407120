package loop

import (
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
	"github.com/quartet-node/quartet/services/syncloop/internal/probe/prober"
)

// handleProbe records a changed result of a probe, and wakes the pod's worker: a container may have to be restarted, or
// the next one may start. A pod that is being ended needs no work.
func (l *Loop) handleProbe(change prober.Change) {
	l.cfg.Store.Probed(change.Pod, change.Traceparent)
	if !l.cfg.Workers.Ending(change.Pod) {
		l.poke(change.Pod, podworkers.Cause{Kind: podworkers.CauseProbe, Traceparent: change.Traceparent})
	}
}

// forgetProbes drops the results of pods that were removed while this process did not run.
func (l *Loop) forgetProbes() {
	if l.cfg.Probes == nil {
		return
	}
	for _, uid := range l.cfg.Probes.UIDs() {
		if l.desired[uid] == nil && !l.cfg.Workers.Has(uid) && l.cfg.Store.Observed(uid) == nil {
			l.cfg.Probes.Forget(uid)
		}
	}
}
