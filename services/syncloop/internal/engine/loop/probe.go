package loop

import (
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
	"github.com/quartet-node/quartet/services/syncloop/internal/probe/prober"
)

// handleProbe shows what a probe has come to at once, and has the pod's worker look: a container may be to be restarted, or the next
// one may begin. A pod that is being ended needs no look: nothing of it is started or restarted.
func (l *Loop) handleProbe(change prober.Change) {
	l.cfg.Store.Probed(change.Pod, change.Traceparent)
	if !l.cfg.Workers.Ending(change.Pod) {
		l.poke(change.Pod, podworkers.Cause{Kind: podworkers.CauseProbe, Traceparent: change.Traceparent})
	}
}

// forgetProbes forgets the results of pods that went while this process did not run.
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
