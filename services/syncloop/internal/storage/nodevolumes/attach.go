package nodevolumes

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// Attachment attaches a volume to this node, unless it is attached, and returns its publish context; nil without an
// error for a driver that does not attach volumes, and for a volume that is not of this package. It must be in use, as
// Connect's function says, until it may be detached.
func (v *Volumes) Attachment(ctx context.Context, driver, handle string) (map[string]string, error) {
	if err := v.Unread(); err != nil {
		return nil, err
	}
	e := v.withHandle(driver, handle)
	if e == nil {
		return nil, nil
	}
	unlock, err := volumes.Locked(ctx, &v.locks, e.name, volumes.OtherCall(driver))
	if err != nil {
		return nil, err
	}
	defer unlock()
	values, err := v.attach(ctx, e)
	v.note(e, err)
	if err != nil {
		return nil, fmt.Errorf("AttachVolume.Attach failed for volume %q : %w", e.name, err)
	}
	return values, nil
}

// AttachmentNow does what Attachment does, because nobody else detaches the volumes of the node.
func (v *Volumes) AttachmentNow(ctx context.Context, driver, handle string) (map[string]string, error) {
	return v.Attachment(ctx, driver, handle)
}

// Refused does nothing, because TellSecret notifies the pods of every change of a secret.
func (*Volumes) Refused(types.UID, *v1.Secret) {}

// Accepted does nothing.
func (*Volumes) Accepted(types.UID, string, string) {}

// withHandle returns a volume by its driver and its handle; nil if there is none.
func (v *Volumes) withHandle(driver, handle string) *entry {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, e := range v.entries {
		if e.rec == nil || e.rec.Phase != made {
			continue
		}
		if source := e.rec.PV.Spec.CSI; source.Driver == driver && source.VolumeHandle == handle {
			return e
		}
	}
	return nil
}

// attach attaches a volume. The caller has its lock.
func (v *Volumes) attach(ctx context.Context, e *entry) (map[string]string, error) {
	rec := v.record(e)
	if rec == nil {
		return nil, errors.New("the volume is deleted")
	}
	source := rec.PV.Spec.CSI
	c, err := v.controller(ctx, source.Driver)
	attaches := c.can[csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME]
	if errors.Is(err, errNoController) || err == nil && !attaches {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("CSI driver %s: %w", source.Driver, err)
	}
	if a := rec.Attachment; a != nil && a.NodeID != c.node.ID {
		if err := v.detach(ctx, e); err != nil {
			return nil, err
		}
		rec = v.record(e)
	}
	if rec.Attachment != nil && rec.Attachment.Done {
		return rec.Attachment.Context, nil
	}
	secrets, err := v.secret(ctx, source.ControllerPublishSecretRef)
	if err != nil {
		return nil, err
	}
	asking := *rec
	asking.Attachment = &attachment{NodeID: c.node.ID}
	if err := v.put(e, &asking); err != nil {
		return nil, err
	}
	answer, err := c.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{
		VolumeId: source.VolumeHandle, NodeId: c.node.ID, VolumeCapability: c.first(rec), Secrets: secrets,
		VolumeContext: source.VolumeAttributes,
	})
	if err != nil {
		return nil, err
	}
	attached := asking
	attached.Attachment = &attachment{NodeID: c.node.ID, Done: true, Context: answer.GetPublishContext()}
	return attached.Attachment.Context, v.put(e, &attached)
}

// detach detaches a volume from the node. The caller has its lock.
func (v *Volumes) detach(ctx context.Context, e *entry) error {
	rec := v.record(e)
	source := rec.PV.Spec.CSI
	c, err := v.controller(ctx, source.Driver)
	if err != nil {
		return fmt.Errorf("CSI driver %s: %w", source.Driver, err)
	}
	secrets, err := v.secret(ctx, source.ControllerPublishSecretRef)
	if err != nil {
		return err
	}
	_, err = c.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{
		VolumeId: source.VolumeHandle, NodeId: rec.Attachment.NodeID, Secrets: secrets,
	})
	if err != nil {
		return err
	}
	detached := *rec
	detached.Attachment = nil
	v.cfg.Logger.DebugContext(ctx, "a volume is detached", keyClaim, e.claimName(), telemetry.KeyVolume, source.VolumeHandle)
	return v.put(e, &detached)
}
