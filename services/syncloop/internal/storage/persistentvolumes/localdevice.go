package persistentvolumes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/mount-utils"
	utilexec "k8s.io/utils/exec"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/blockdevice"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// The kubelet's directories of local volumes that are block devices, below the root directory.
const (
	// localMounts has the file systems of devices, by persistent volume, from where they are mounted for each pod.
	localMounts = "plugins/kubernetes.io/local-volume/mounts"
	// localDevices has the devices that pods have as devices, by persistent volume and pod.
	localDevices = "plugins/kubernetes.io~local-volume/volumeDevices"
)

// localFSType is the kubelet's file system of a device that names none.
const localFSType = "ext4"

// Formatter mounts block devices by the programs of the node; *mount.SafeFormatAndMount implements it.
type Formatter interface {
	// FormatAndMount mounts the file system of a device on an existing directory. It makes one on an empty device, and
	// checks and repairs the one that is there. It never formats a device that is not empty, and fails for an empty one
	// with the option "ro".
	FormatAndMount(device, target, fstype string, options []string) error
}

// NewFormatter returns the formatter of the node.
func NewFormatter() Formatter { return nodeFormatter{} }

type nodeFormatter struct{}

// FormatAndMount implements Formatter.
func (nodeFormatter) FormatAndMount(device, target, fstype string, options []string) error {
	return mount.NewSafeFormatAndMount(nodeMounter(), utilexec.New()).FormatAndMount(device, target, fstype, options)
}

// rootOf returns the root directory of the directory of a volume, which is ROOT/pods/UID/volumes/KIND/PV.
func rootOf(dir string) string {
	for range 5 {
		dir = filepath.Dir(dir)
	}
	return dir
}

// globalMount is where the file system of a device is mounted for all pods.
func globalMount(dir string) string {
	return filepath.Join(rootOf(dir), localMounts, filepath.Base(dir))
}

// heldDevice is where a device is mounted and held for a pod that has it as a device.
func heldDevice(dir string) string {
	uid := filepath.Base(filepath.Dir(filepath.Dir(filepath.Dir(dir))))
	return filepath.Join(rootOf(dir), localDevices, filepath.Base(dir), uid)
}

// isDevice reports whether a directory is that of a volume that a pod has as a block device.
func isDevice(dir string) bool {
	return filepath.Base(filepath.Dir(filepath.Dir(dir))) == devicesFolder
}

// mountDevice mounts the file system of a device for all pods, unless it is mounted. The caller has the lock of the
// mount, and has made the directory of the pod, because without one nobody would unmount it after a kill.
func (l *Local) mountDevice(ctx context.Context, r Request, device string) error {
	global := globalMount(r.Dir)
	mounted, err := isMounted(l.Mounter, global)
	if err != nil || mounted {
		return err
	}
	if err := os.MkdirAll(global, folderMode); err != nil {
		return err
	}
	fstype, options := localFSType, r.PV.Spec.MountOptions
	if r.PV.Spec.Local.FSType != nil {
		fstype = *r.PV.Spec.Local.FSType
	}
	if r.ReadOnly {
		options = append([]string{"ro"}, options...)
	}
	defer volumes.Asking(ctx, diskOf+device)()
	if err := l.Formatter.FormatAndMount(device, global, fstype, options); err != nil {
		err = fmt.Errorf("local: failed to mount device %s at %s (fstype: %s), error %w", device, global, fstype, err)
		return errors.Join(err, removeEmpty(global))
	}
	return nil
}

// unmountDevice unmounts the file system of a device after its last pod, and removes the directory of this one. Both
// are done with the lock of the mount: otherwise two pods that end at once would leave it to each other.
func (l *Local) unmountDevice(ctx context.Context, dir string) error {
	global := globalMount(dir)
	if _, err := os.Lstat(global); errors.Is(err, fs.ErrNotExist) {
		return removeEmpty(dir)
	}
	unlock, err := volumes.Locked(ctx, &l.locks, global, otherOn+global)
	if err != nil {
		return err
	}
	defer unlock()
	used, err := usedByOthers(dir)
	if err != nil {
		return err
	}
	if !used {
		if err := l.unmountAll(ctx, global); err != nil {
			return err
		}
		if err := removeEmpty(global); err != nil {
			return err
		}
	}
	return removeEmpty(dir)
}

// mapDevice gives a pod a device: a link to it, which is first, because it is what the next process finds.
func (l *Local) mapDevice(ctx context.Context, r Request, device string) (string, error) {
	defer volumes.Asking(ctx, diskOf+device)()
	if err := blockdevice.Link(device, r.Dir); err != nil {
		return "", err
	}
	return r.Dir, blockdevice.Hold(device, heldDevice(r.Dir), l.mounted)
}

// unmapDevice undoes mapDevice.
func (l *Local) unmapDevice(ctx context.Context, dir string) error {
	defer volumes.Asking(ctx, diskOf+dir)()
	held := heldDevice(dir)
	if err := blockdevice.Release(held, l.mounted); err != nil {
		return err
	}
	// Another pod may have the device, and be about to get it.
	if err := removeEmpty(filepath.Dir(held)); err != nil && !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	return removeEmpty(dir)
}

// mounted is a blockdevice.Mounted.
func (l *Local) mounted(path string) (bool, error) { return isMounted(l.Mounter, path) }

// Usage implements Measurer. As in the kubelet, a device has a capacity, and nothing else that can be seen. The usage
// of other volumes is that of their file system.
func (l *Local) Usage(_ context.Context, dir string) (*statsv1alpha1.FsStats, error) {
	if !isDevice(dir) {
		return nil, nil
	}
	device, err := os.Open(heldDevice(dir))
	if err != nil {
		return nil, fmt.Errorf("unable to open device: %w", err)
	}
	end, err := device.Seek(0, io.SeekEnd)
	if err = errors.Join(err, device.Close()); err != nil {
		return nil, fmt.Errorf("failed to detect size of the device: %w", err)
	}
	size, none := uint64(max(end, 0)), new(uint64)
	return &statsv1alpha1.FsStats{
		Time: metav1.Now(), CapacityBytes: &size, AvailableBytes: none, UsedBytes: none,
		InodesFree: none, Inodes: none, InodesUsed: none,
	}, nil
}
