package persistentvolumes

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// The kubelet's reasons of events.
const (
	eventGrown   = "FileSystemResizeSuccessful"
	eventNoGrown = "VolumeResizeFailed"
)

// Expansion is what the growth of local volumes needs. All fields are required.
type Expansion struct {
	// Claims records the size of a volume in the status of its claim, and returns the changed claim.
	Claims interface {
		MarkExpanded(ctx context.Context, claim *v1.PersistentVolumeClaim, size resource.Quantity) (
			*v1.PersistentVolumeClaim, error)
	}
	// Resizer expands the mounted file system of a device to the size of the device; *mount.ResizeFs implements it.
	Resizer interface {
		Resize(device, mountPoint string) (bool, error)
	}
	// Events receives what happens; *podevents.Recorder implements it.
	Events interface {
		Normal(ctx context.Context, pod *v1.Pod, container, reason, message string)
		Warning(ctx context.Context, pod *v1.Pod, container, reason, message string)
		Claim(claim *v1.PersistentVolumeClaim, kind, reason, message string)
	}
}

// grow tells the claim the size of its persistent volume if that is larger, and expands the file system of a device
// before. As in the kubelet, nothing is done for a directory, and for a device that the pod has itself. A failure keeps
// a volume that is just being mounted from its pod; that of a volume in use is an event.
func (l *Local) grow(ctx context.Context, r Request, path string, device, mounting bool) error {
	if l.Expansion == nil || r.Claim == nil || r.ReadOnly {
		return nil
	}
	size, told := r.PV.Spec.Capacity[v1.ResourceStorage], r.Claim.Status.Capacity[v1.ResourceStorage]
	if size.Cmp(told) <= 0 {
		return nil
	}
	err := l.resize(ctx, r, path, device)
	if err == nil {
		_, err = l.Expansion.Claims.MarkExpanded(ctx, r.Claim, size)
	}
	if err != nil && !mounting {
		l.Expansion.Events.Warning(ctx, r.Pod, "", eventNoGrown,
			fmt.Sprintf("NodeExpandVolume.NodeExpandVolume failed for volume %q : %v", r.PV.Name, err))
		return nil
	}
	if err != nil {
		return fmt.Errorf("expand the volume to %s: %w", size.String(), err)
	}
	message := fmt.Sprintf("MountVolume.NodeExpandVolume succeeded for volume %q %s", r.PV.Name, r.Pod.Spec.NodeName)
	l.Expansion.Events.Normal(ctx, r.Pod, "", eventGrown, message)
	l.Expansion.Events.Claim(r.Claim, v1.EventTypeNormal, eventGrown, message)
	return nil
}

// resize expands the file system of a device to the size of the device.
func (l *Local) resize(ctx context.Context, r Request, path string, device bool) error {
	if !device || r.Block {
		return nil
	}
	global := globalMount(r.Dir)
	unlock, err := volumes.Locked(ctx, &l.locks, global, otherOn+path)
	if err != nil {
		return err
	}
	defer unlock()
	defer volumes.Asking(ctx, diskOf+path)()
	_, err = l.Expansion.Resizer.Resize(path, global)
	return err
}
