package loop

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/nodewatch"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/admission"
)

// nodeGrace is how long new pods wait for the Node after everything else is known, because it has the allocatable
// resources. Without it they are admitted by the rules that need no Node.
const nodeGrace = 3 * time.Second

// nodeWord is a message of nodestatus about the node.
type nodeWord struct {
	node *v1.Node
	// shuttingDown is true while the machine is about to shut down.
	shuttingDown bool
}

// followNode follows the Node. While nodestatus is unreachable, the last Node counts.
func (l *Loop) followNode(ctx context.Context) error {
	if l.cfg.Node == nil {
		return nil
	}
	return stream.Follow(ctx, stream.FollowConfig[*nodev1.Node]{
		Name: stream.NameNode, Source: l.cfg.Node, Clock: l.cfg.Clock, Logger: l.cfg.Logger, Metrics: l.cfg.NodeMetrics,
		Handle: func(c stream.Change[*nodev1.Node]) {
			if c.New == nil || c.Op == stream.OpRemove {
				return
			}
			if l.cfg.Pressing != nil {
				l.cfg.Pressing(c.New.GetEvictionSignals())
			}
			node, err := nodewatch.Decode(c.New)
			if err != nil {
				l.cfg.Logger.Error("keeping the last Node", telemetry.KeyError, err)
				return
			}
			if l.cfg.Learned != nil {
				l.cfg.Learned(node)
			}
			select {
			case l.nodes <- nodeWord{node: node, shuttingDown: c.New.GetShuttingDown()}:
			case <-ctx.Done():
			}
		},
	})
}

// handleNode records the Node. The first one releases the pods and resizes that waited for it.
func (l *Loop) handleNode(word nodeWord) {
	first := l.node == nil
	l.node = word.node
	l.cfg.Mirrors.SetNode(word.node.UID)
	if l.shuttingDown != word.shuttingDown {
		l.shuttingDown = word.shuttingDown
		l.cfg.Logger.Info("the shutdown of the machine has begun or was canceled; new pods are refused during a shutdown", "shutting_down", l.shuttingDown)
	}
	if first && l.isOpen() {
		l.startUnknown()
		l.resizeFor = periodic
	}
}

// awaitsNode reports whether decisions wait for the Node: it is not known yet, and it may still come in time.
func (l *Loop) awaitsNode() bool {
	return l.cfg.Node != nil && l.node == nil && l.cfg.Clock.Since(l.opened) < nodeGrace
}

// admit reports whether a pod may be given to a worker. A pod of which anything is in the runtime was admitted before.
// A new pod is checked, and may have to wait. A refused pod is Failed, and stays Failed.
func (l *Loop) admit(cause context.Context, uid types.UID, d *desiredPod) bool {
	switch {
	case d.refused || d.allocating != nil:
		return false
	case d.admitted || l.cfg.Workers.Has(uid) || !l.cfg.Store.IsNew(uid):
		d.admitted = true
		return true
	case l.awaitsNode():
		return false // housekeeping, or the Node, tries again
	case l.cfg.Node != nil && admission.AsksForStrictGroups(d.pod) && !admission.KnowsRuntime(l.node) &&
		l.cfg.Clock.Since(l.opened) < nodeGrace:
		return false // housekeeping, or the Node, tries again
	case !l.areGone(d.behind):
		return false // housekeeping tries again
	}
	wait, lacking := l.cfg.Devices.Check(d.pod)
	if wait {
		l.waitsForDevices(uid)
		return false // housekeeping tries again
	}
	var refusal *admission.Refusal
	l.withActive(uid, func(others []*v1.Pod) {
		refusal = admission.Check(admission.Request{
			Pod: d.pod, Static: podset.IsStaticSource(d.source), Critical: isCritical(d), Others: others, Node: l.node,
			Devices: lacking, Owned: l.cfg.Devices.Owns, Machine: l.cfg.Machine, UnsafeSysctls: l.cfg.UnsafeSysctls,
			Features: l.cfg.Features,
		})
	})
	if l.shuttingDown {
		refusal = admission.NodeShutdown()
	}
	if refusal == nil && l.cfg.Devices.Needs(d.pod) {
		l.allocateDevices(cause, uid, d)
		return false
	}
	if refusal == nil {
		d.admitted, d.behind = true, nil
		return true
	}
	if !l.shuttingDown && l.preempt(cause, uid, d, refusal) {
		return false
	}
	l.refuse(cause, uid, d, refusal)
	return false
}

// refuse makes a pod Failed for good. It gives back the devices that it may have.
func (l *Loop) refuse(cause context.Context, uid types.UID, d *desiredPod, refusal *admission.Refusal) {
	d.refused = true
	l.cfg.Logger.WarnContext(cause, "a pod is refused", telemetry.KeyPod, d.pod.Namespace+"/"+d.pod.Name, telemetry.KeyPodUID, string(uid),
		telemetry.KeyReason, refusal.Reason, telemetry.KeyError, refusal.Message)
	l.cfg.Metrics.refused(refusal.Reason)
	l.cfg.PodEvents.Warning(cause, d.pod, "", refusal.Reason, refusal.Message)
	if err := l.cfg.Store.Evict(uid, podstore.Eviction{
		Reason: refusal.Reason, Message: refusal.StatusMessage(),
	}); err != nil {
		l.cfg.Logger.Error("cannot find a refused pod", telemetry.KeyPodUID, string(uid), telemetry.KeyError, err)
	}
	if l.cfg.Devices.Needs(d.pod) {
		l.releaseDevices(uid)
	}
}

// withActive calls use with the pods that use the node's resources, except one. They are copies for use alone: it must
// not keep them, because the next call has them in the same memory. Otherwise each of many starts would allocate as
// many copies.
func (l *Loop) withActive(without types.UID, use func(others []*v1.Pod)) {
	copies := l.copies[:0]
	for uid, d := range l.desired {
		if uid == without || !l.isActive(uid, d) {
			continue
		}
		pod := *l.asItIs(uid, d)
		pod.Status = l.cfg.Store.Status(uid) // a decreased resource counts until the decrease is done
		copies = append(copies, pod)
	}
	others := make([]*v1.Pod, len(copies))
	for i := range copies {
		others[i] = &copies[i]
	}
	use(others)
	clear(copies)
	l.copies = copies
}

// isActive reports whether a pod uses the node's resources: it was admitted, gets devices, or runs already, and has not
// ended.
func (l *Loop) isActive(uid types.UID, d *desiredPod) bool {
	if d.refused || (!d.admitted && d.allocating == nil && l.cfg.Store.IsNew(uid)) {
		return false
	}
	phase := l.cfg.Store.Phase(uid)
	return phase != v1.PodSucceeded && phase != v1.PodFailed
}
