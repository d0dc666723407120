package loop

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/privilege"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/admission"
)

// refusePrivileges refuses a pod that asks for access to the host which its source may not give, and reports whether it
// did. It checks each version of a pod, and what runs already: a running pod ends, because configmux, which checks too,
// sends such a change only when it was taken over or has other flags.
func (l *Loop) refusePrivileges(uid types.UID, d *desiredPod, traceparent string) bool {
	refusal := admission.Privileges(privilege.Check(d.wanted, d.source, l.cfg.Privileges))
	if refusal == nil || d.refused {
		return false
	}
	ctx := telemetry.WithTraceparent(context.Background(), traceparent)
	mayRun := l.cfg.Workers.Has(uid) || !l.cfg.Store.IsNew(uid)
	l.refuse(ctx, uid, d, refusal)
	cause := podworkers.Cause{Kind: podworkers.CauseConfig, Traceparent: traceparent}
	if mayRun && !l.cfg.Workers.End(uid, cause, podworkers.End{}) {
		l.cfg.Workers.Want(d.pod, cause, &podworkers.End{})
	}
	return true
}
