package loop

import (
	"context"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/admission"
)

// eventMissingFeatures is the kubelet's event for a change of a pod that requires features that the node does not have.
const eventMissingFeatures = "FailedNodeDeclaredFeaturesCheck"

// checkFeatures warns people of a change of a pod that requires features that the node does not have. As in the
// kubelet, the change is not refused. Known is nil for a new pod.
func (l *Loop) checkFeatures(known, next *desiredPod) {
	if known == nil || l.cfg.Features == nil {
		return
	}
	ctx := telemetry.WithTraceparent(context.Background(), next.traceparent)
	missing, err := l.cfg.Features.MissingForUpdate(known.wanted, next.wanted)
	switch {
	case err != nil:
		l.cfg.Logger.ErrorContext(ctx, "cannot find the features that the change of a pod requires",
			telemetry.KeyPod, next.pod.Namespace+"/"+next.pod.Name, telemetry.KeyPodUID, string(next.pod.UID),
			telemetry.KeyError, err)
	case len(missing) > 0:
		l.cfg.PodEvents.Warning(ctx, next.wanted, "", eventMissingFeatures, admission.MissingFeatures(missing))
	}
}
