package nodevolumes

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/telemetry"
)

// ErrNotFound is returned for a volume that there is not.
var ErrNotFound = errors.New("there is no such persistent volume")

// Forget removes the record of a volume whose claim was deleted and that is retained. The volume stays in the driver.
// It returns its driver and its handle. It fails with ErrNotFound, or because the volume has a claim, is being deleted,
// or is in use or attached.
func (v *Volumes) Forget(ctx context.Context, name string) (driver, handle string, err error) {
	unlock, err := v.locks.Lock(ctx, name)
	if err != nil {
		return "", "", err
	}
	defer unlock()
	if err := v.Unread(); err != nil {
		return "", "", err
	}
	v.mu.Lock()
	e := v.entries[name]
	if e == nil || e.rec == nil {
		v.mu.Unlock()
		return "", "", ErrNotFound
	}
	rec, released, uses := e.rec, e.released, v.uses
	v.mu.Unlock()
	source := rec.PV.Spec.CSI
	switch {
	case !released:
		return "", "", fmt.Errorf("it is the volume of the claim %s: delete the claim", e.claimName())
	case rec.Phase != made, rec.PV.Spec.PersistentVolumeReclaimPolicy != v1.PersistentVolumeReclaimRetain:
		return "", "", errors.New("its driver is asked to delete it, because it is not to be retained")
	case rec.Attachment != nil, uses == nil || uses(source.Driver, source.VolumeHandle):
		return "", "", errors.New("it is still in use, or attached to the node: try again in a moment")
	}
	if err := v.forget(e); err != nil {
		return "", "", err
	}
	v.cfg.Logger.Info("a retained volume is forgotten; it stays in the storage system", telemetry.KeyVolume,
		source.VolumeHandle, "driver", source.Driver, keyClaim, e.claimName())
	return source.Driver, source.VolumeHandle, nil
}

// Describe returns the volumes whose claims were deleted, sorted by name, for the API of syncloop.
func (v *Volumes) Describe() []*enginev1.ReleasedVolume {
	var all []*enginev1.ReleasedVolume
	for _, one := range v.Released() {
		pv, err := one.PV.Marshal()
		if err != nil { // a volume that was read from its record can be encoded
			v.cfg.Logger.Error("a volume cannot be described", telemetry.KeyVolume, one.PV.Name, telemetry.KeyError, err)
			continue
		}
		released := &enginev1.ReleasedVolume{PersistentVolume: pv}
		if one.Problem != nil {
			released.Problem = one.Problem.Error()
		}
		all = append(all, released)
	}
	return all
}
