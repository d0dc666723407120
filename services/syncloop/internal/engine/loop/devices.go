package loop

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/admission"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podstatus"
)

// waitDevices is why a pod waits while its devices and CPUs are allocated.
const waitDevices = "waiting for device plugins to allocate devices"

// Devices allocates the devices and CPUs of new pods; *allocator.Allocator implements it. All methods but Allocate and
// Release return at once.
type Devices interface {
	// Recover learns what containers hold from all pods in the runtime, before any pod is admitted. GoesOn reports whether
	// the containers of a pod may be started again.
	Recover(observed []*lifecyclev1.PodStatus, goesOn func(types.UID) bool)
	// Check returns why the devices or CPUs of a pod cannot be allocated; wait is true while that is not known.
	Check(pod *v1.Pod) (wait bool, err error)
	// Owns reports whether a resource is one of device plugins, and Needs whether a pod needs anything for itself.
	Owns(name v1.ResourceName) bool
	Needs(pod *v1.Pod) bool
	// Allocate allocates the devices and CPUs of a pod, and returns when plugins have answered.
	Allocate(ctx context.Context, pod *v1.Pod) error
	// Release gives back what a pod has of which nothing runs.
	Release(uid types.UID)
}

// noDevices is a node without device plugins.
type noDevices struct{}

// Recover implements Devices.
func (noDevices) Recover([]*lifecyclev1.PodStatus, func(types.UID) bool) {}

// Check implements Devices.
func (noDevices) Check(*v1.Pod) (wait bool, err error) { return false, nil }

// Owns implements Devices.
func (noDevices) Owns(v1.ResourceName) bool { return false }

// Needs implements Devices.
func (noDevices) Needs(*v1.Pod) bool { return false }

// Allocate implements Devices.
func (noDevices) Allocate(context.Context, *v1.Pod) error { return nil }

// Release implements Devices.
func (noDevices) Release(types.UID) {}

// goesOn reports whether the containers of a pod may be started again: it has not ended, and a source names it, or may
// do so when it is ready.
func (l *Loop) goesOn(uid types.UID) bool {
	d := l.desired[uid]
	if d == nil {
		return !l.allReady()
	}
	phase := l.cfg.Store.Phase(uid)
	return d.pod.DeletionTimestamp == nil && phase != v1.PodSucceeded && phase != v1.PodFailed
}

// allocating is an allocation of devices under way. It is compared by address.
type allocating struct{ _ byte }

// allocateDevices asks the device plugins for the devices of a pod that is admitted otherwise. Other pods count it
// meanwhile. The pod is dispatched when the plugins have answered; a plugin that hangs delays this pod alone.
func (l *Loop) allocateDevices(cause context.Context, uid types.UID, d *desiredPod) {
	this, pod := &allocating{}, d.pod
	d.allocating = this
	l.waitsForDevices(uid)
	l.runIO(eventConfig, func(ctx context.Context) func() {
		err := l.cfg.Devices.Allocate(telemetry.WithTraceparent(ctx, telemetry.Traceparent(cause)), pod)
		return func() { l.devicesAllocated(cause, uid, this, err) }
	})
}

// devicesAllocated handles the end of an allocation. The pod may be gone by now, or its end may have begun; then its
// worker gives the devices back.
func (l *Loop) devicesAllocated(cause context.Context, uid types.UID, this *allocating, err error) {
	d := l.desired[uid]
	if d == nil || d.allocating != this {
		if d == nil && !l.cfg.Workers.Has(uid) {
			l.releaseDevices(uid)
		}
		return
	}
	d.allocating = nil
	if l.cfg.Workers.Has(uid) || d.pod.DeletionTimestamp != nil {
		return
	}
	l.cfg.Store.Synced(uid, podworkers.SyncReport{ReasonsKnown: true})
	if err != nil {
		l.refuse(cause, uid, d, admission.Unallocated(err))
		l.decide(uid, d)
		return
	}
	d.admitted, d.behind = true, nil
	l.dispatch(uid, podset.Add, d.traceparent)
}

// waitsForDevices shows people what a pod waits for.
func (l *Loop) waitsForDevices(uid types.UID) {
	l.cfg.Store.Synced(uid, podworkers.SyncReport{
		ReasonsKnown: true, Wait: podstatus.Reason{Reason: podstatus.ReasonDevices, Message: waitDevices},
	})
}

// releaseDevices gives back the devices of a pod that is not started.
func (l *Loop) releaseDevices(uid types.UID) {
	l.runIO(eventConfig, func(context.Context) func() {
		l.cfg.Devices.Release(uid)
		return func() {}
	})
}
