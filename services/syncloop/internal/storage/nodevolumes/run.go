package nodevolumes

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/backoff"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// attempt is a step of a volume.
type attempt struct {
	step    step
	running bool
	// failures counts the failures, and next is the time of the retry.
	failures int
	next     time.Time
}

// outcome is the result of an attempt.
type outcome struct {
	entry *entry
	err   error
}

// Run detaches, expands and deletes volumes until ctx ends. Each volume waits for its own driver only: there is at most
// one goroutine for each volume. It returns the error of ctx.
func (v *Volumes) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait() // the calls end with ctx
	attempts := map[*entry]*attempt{}
	ended := make(chan outcome)
	timer := v.cfg.Clock.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-v.wake:
		case <-timer.C():
		case o := <-ended:
			v.settle(attempts, o)
		}
		if v.Unread() != nil && !v.reload() {
			timer.Stop()
			timer.Reset(readAgain)
			continue
		}
		again := v.begin(attempts, func(e *entry, s step) {
			running.Go(func() {
				select {
				case ended <- outcome{e, v.take(ctx, e, s)}:
				case <-ctx.Done():
				}
			})
		})
		timer.Stop()
		if !again.IsZero() {
			timer.Reset(again.Sub(v.cfg.Clock.Now()))
		}
	}
}

// settle records the result of an attempt.
func (v *Volumes) settle(attempts map[*entry]*attempt, o outcome) {
	v.note(o.entry, o.err)
	if o.err == nil {
		delete(attempts, o.entry)
		return
	}
	a := attempts[o.entry]
	a.running = false
	a.next = v.cfg.Clock.Now().Add(backoff.After(a.failures))
	a.failures++
	v.cfg.Logger.Warn("a step of a volume has failed; it is tried again", keyClaim, o.entry.claimName(),
		telemetry.KeyVolume, o.entry.name, telemetry.KeyError, o.err)
}

// begin starts the attempts that are due, and returns the time of the next one; zero if there is none.
func (v *Volumes) begin(attempts map[*entry]*attempt, start func(*entry, step)) (again time.Time) {
	due, now, hurry := v.due(), v.cfg.Clock.Now(), v.hurries()
	for e, s := range due {
		a := attempts[e]
		switch {
		case a == nil, !a.running && a.step != s:
			attempts[e] = &attempt{step: s, running: true}
			start(e, s)
		case a.running:
		case a.next.After(now) && !hurry:
			if again.IsZero() || a.next.Before(again) {
				again = a.next
			}
		default:
			a.running = true
			start(e, s)
		}
	}
	for e, a := range attempts {
		if due[e] == stay && !a.running {
			delete(attempts, e)
			v.note(e, nil)
		}
	}
	return again
}

// hurries reports whether Tell was called since the last call: what has failed may succeed now.
func (v *Volumes) hurries() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	hurry := v.hurry
	v.hurry = false
	return hurry
}

// due returns the next steps of the volumes that have one.
func (v *Volumes) due() map[*entry]step {
	v.mu.Lock()
	all := make([]*entry, 0, len(v.entries))
	for _, e := range v.entries {
		all = append(all, e)
	}
	v.mu.Unlock()
	due := map[*entry]step{}
	for _, e := range all {
		if s := v.next(e); s != stay {
			due[e] = s
		}
	}
	return due
}

// next returns the next step of a volume.
func (v *Volumes) next(e *entry) step {
	v.mu.Lock()
	rec, uses, released, wanted, immediate := e.rec, v.uses, e.released, e.wanted, e.immediate != nil
	v.mu.Unlock()
	if uses == nil {
		return stay
	}
	if rec == nil {
		return next(state{isImmediate: immediate && !released})
	}
	source := rec.PV.Spec.CSI
	s := state{
		phase: rec.Phase, isImmediate: immediate, isReleased: released, isAttached: rec.Attachment != nil,
		isRetained: rec.PV.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimRetain,
		grows:      wanted.Cmp(rec.size()) > 0,
	}
	s.inUse = rec.Phase == made && uses(source.Driver, source.VolumeHandle)
	return next(s)
}

// take takes a step, if it still is the next one when no other step of the volume runs.
func (v *Volumes) take(ctx context.Context, e *entry, s step) error {
	unlock, err := v.locks.Lock(ctx, e.name)
	if err != nil {
		return err
	}
	defer unlock()
	if v.next(e) != s {
		return nil
	}
	switch s {
	case begin:
		err = v.begun(ctx, e)
	case finish:
		err = v.create(ctx, e, v.record(e))
	case detach:
		err = v.detach(ctx, e)
	case remove:
		err = v.remove(ctx, e)
	case expand:
		err = v.expand(ctx, e)
	case stay:
	}
	return err
}

// remove deletes a volume. The caller has its lock.
func (v *Volumes) remove(ctx context.Context, e *entry) error {
	rec := v.record(e)
	source := rec.PV.Spec.CSI
	c, err := v.controller(ctx, source.Driver)
	if err != nil {
		return fmt.Errorf("CSI driver %s: %w", source.Driver, err)
	}
	secrets, err := v.secret(ctx, rec.Secret)
	if err != nil {
		return err
	}
	request := &csi.DeleteVolumeRequest{VolumeId: source.VolumeHandle, Secrets: secrets}
	if _, err := c.DeleteVolume(ctx, request); err != nil {
		return err
	}
	v.cfg.Logger.Info("the volume of a deleted claim is deleted", keyClaim, e.claimName(), telemetry.KeyVolume, source.VolumeHandle)
	return v.forget(e)
}

// expand expands a volume to the size of its claim, as far as its class and its driver permit. The caller has its lock.
func (v *Volumes) expand(ctx context.Context, e *entry) error {
	rec := v.record(e)
	v.mu.Lock()
	wanted := e.wanted
	v.mu.Unlock()
	name, source := rec.PV.Spec.StorageClassName, rec.PV.Spec.CSI
	class, err := v.cfg.Objects.StorageClass(name)
	if err != nil {
		return fmt.Errorf("expand the volume to %s: %w", wanted.String(), err)
	}
	if !ptr.Deref(class.AllowVolumeExpansion, false) {
		return fmt.Errorf("expand the volume to %s: the storage class %q has no allowVolumeExpansion", wanted.String(), name)
	}
	c, err := v.controller(ctx, source.Driver)
	if err != nil && !errors.Is(err, errNoController) {
		return fmt.Errorf("CSI driver %s: %w", source.Driver, err)
	}
	size, onNode := wanted, true
	if !c.can[csi.ControllerServiceCapability_RPC_EXPAND_VOLUME] {
		err = c.checkNodeExpands(ctx)
		if err != nil {
			return fmt.Errorf("CSI driver %s: %w", source.Driver, err)
		}
	} else {
		secrets, err := v.secret(ctx, source.ControllerExpandSecretRef)
		if err != nil {
			return err
		}
		answer, err := c.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
			VolumeId: source.VolumeHandle, Secrets: secrets, VolumeCapability: c.first(rec),
			CapacityRange: &csi.CapacityRange{RequiredBytes: wanted.Value()},
		})
		if err != nil {
			return fmt.Errorf("resize volume %q by resizer %q failed: %w", e.name, source.Driver, err)
		}
		onNode = answer.GetNodeExpansionRequired()
		if bytes := answer.GetCapacityBytes(); bytes >= wanted.Value() {
			size = *resource.NewQuantity(bytes, resource.BinarySI)
		}
	}
	grown := *rec
	grown.PV = rec.PV.DeepCopy()
	grown.PV.Spec.Capacity[v1.ResourceStorage] = size
	if !onNode {
		grown.Told = size
	}
	if err := v.put(e, &grown); err != nil {
		return err
	}
	v.cfg.Logger.Info("a volume is expanded", keyClaim, e.claimName(), telemetry.KeyVolume, source.VolumeHandle, "size", size.String())
	v.cfg.Changed(e.claim.Namespace, e.claim.Name)
	return nil
}

// checkNodeExpands returns an error unless the driver expands volumes on the node.
func (c controller) checkNodeExpands(ctx context.Context) error {
	answer, err := c.onNode.NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
	if err != nil {
		return err
	}
	for _, one := range answer.GetCapabilities() {
		if one.GetRpc().GetType() == csi.NodeServiceCapability_RPC_EXPAND_VOLUME {
			return nil
		}
	}
	return errors.New("CSI driver neither supports controller resize nor node resize")
}

// MarkExpanding returns the claim. Its status has no progress of an expansion on a node without an API server.
func (v *Volumes) MarkExpanding(
	_ context.Context, claim *v1.PersistentVolumeClaim,
) (*v1.PersistentVolumeClaim, error) {
	return claim, nil
}

// MarkExpanded records the size of an expanded file system, and returns the claim with it.
func (v *Volumes) MarkExpanded(
	ctx context.Context, claim *v1.PersistentVolumeClaim, size resource.Quantity,
) (*v1.PersistentVolumeClaim, error) {
	claim = claim.DeepCopy()
	claim.Status.Capacity = v1.ResourceList{v1.ResourceStorage: size}
	v.mu.Lock()
	e := v.entries[claim.Spec.VolumeName]
	v.mu.Unlock()
	if e == nil {
		return claim, nil
	}
	unlock, err := volumes.Locked(ctx, &v.locks, e.name, volumes.OtherCall(v.driverOf(e, claim)))
	if err != nil {
		return nil, err
	}
	defer unlock()
	rec := v.record(e)
	if rec == nil || rec.Told.Cmp(size) == 0 {
		return claim, nil
	}
	told := *rec
	told.Told = size
	return claim, v.put(e, &told)
}

// MarkExpansionFailed records why the expansion of a file system has failed, and returns the claim.
func (v *Volumes) MarkExpansionFailed(
	_ context.Context, claim *v1.PersistentVolumeClaim, cause error, _ bool,
) (*v1.PersistentVolumeClaim, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if e := v.entries[claim.Spec.VolumeName]; e != nil {
		e.problem = cause
	}
	return claim, nil
}
