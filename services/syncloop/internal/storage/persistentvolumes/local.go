package persistentvolumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/dirlock"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/fsgroup"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// LocalName is the kubelet's directory of local volumes.
const LocalName = "kubernetes.io~local-volume"

// What a volume waits for, for users: the path of the volume follows.
const (
	// diskOf is for calls of the kernel, which wait for the disk.
	diskOf = "disk of "
	// otherOn is for the locks of the volume.
	otherOn = "other operation on "
)

// eventAlreadyMounted is the reason of the kubelet's event for a volume of other pods with another fsGroup.
const eventAlreadyMounted = "AlreadyMountedVolume"

// Local is the [Kind] for directories and block devices of the node (local). A directory is mounted for each pod by a
// bind mount. The file system of a device is mounted once on the node, and from there as a directory is. A pod can also
// have the device itself.
type Local struct {
	// Mounter mounts and unmounts. Required.
	Mounter volumes.Mounter
	// Formatter mounts the file systems of block devices. Required.
	Formatter Formatter
	// Events receives warnings. Required.
	Events volumes.Events
	// Clock is the clock. Required.
	Clock clock.PassiveClock
	// Expansion is what the growth of volumes needs; nil expands none.
	Expansion *Expansion
	// Measured receives changes of owners, by the kubelet's names of plugin and operation. It may be nil.
	Measured func(plugin, operation string, migrated bool, took time.Duration, err error)

	// locks are by the path of the volume, because pods that share one must not change its owners at the same time, and
	// by the path at which a device is mounted for all pods.
	locks dirlock.Locks
}

// Name implements Kind.
func (*Local) Name() string { return LocalName }

// Supports implements Kind.
func (*Local) Supports(pv *v1.PersistentVolume) bool { return pv.Spec.Local != nil }

// Inline implements Kind. A pod's spec has no such volumes.
func (*Local) Inline(*v1.Volume) bool { return false }

// Mount implements Kind. The owners of the content change before the mount: a volume that is mounted is complete.
func (l *Local) Mount(ctx context.Context, r Request) (string, error) {
	path := r.PV.Spec.Local.Path
	device, err := l.check(ctx, r, path)
	if err != nil {
		return "", err
	}
	if !filepath.IsAbs(path) {
		path = "/" + path // as in the kubelet
	}
	if r.Block {
		at, err := l.mapDevice(ctx, r, path)
		if err != nil {
			return "", err
		}
		return at, l.grow(ctx, r, path, device, false)
	}
	mounted, err := isMounted(l.Mounter, r.Dir)
	if err != nil {
		return "", err
	}
	if !mounted {
		if err := l.mount(ctx, r, path, device); err != nil {
			return "", err
		}
	}
	if err := l.restrict(r); err != nil {
		return "", err
	}
	return r.Dir, l.grow(ctx, r, path, device, !mounted)
}

// check checks the path of a volume, and reports whether it is a block device.
func (*Local) check(ctx context.Context, r Request, path string) (device bool, err error) {
	switch {
	case path == "":
		return false, fmt.Errorf("LocalVolume volume %q path is empty", r.PV.Name)
	case slices.Contains(strings.Split(path, "/"), ".."):
		return false, fmt.Errorf("invalid path: %s must not contain '..'", path)
	}
	answered := volumes.Asking(ctx, diskOf+path)
	info, err := os.Stat(path)
	answered()
	if err != nil {
		return false, err
	}
	device = info.Mode()&fs.ModeDevice != 0 && info.Mode()&fs.ModeCharDevice == 0
	switch {
	case !device && r.Block:
		return false, fmt.Errorf("the local path %s is no block device, which volumeMode Block requires", path)
	case !device && !info.IsDir():
		return false, errors.New("only directory and block device are supported")
	}
	return device, nil
}

// mount mounts a directory for a pod, or the file system of a device. A device is locked first, because two persistent
// volumes may name the same one, and then the mount of its file system, which is all that an unmount knows.
func (l *Local) mount(ctx context.Context, r Request, path string, device bool) error {
	unlock, err := volumes.Locked(ctx, &l.locks, path, otherOn+path)
	if err != nil {
		return err
	}
	defer unlock()
	if !device {
		return l.bind(ctx, r, path)
	}
	global := globalMount(r.Dir)
	unlockGlobal, err := volumes.Locked(ctx, &l.locks, global, otherOn+path)
	if err != nil {
		return err
	}
	defer unlockGlobal()
	if err := os.MkdirAll(r.Dir, folderMode); err != nil {
		return err
	}
	if err := l.mountDevice(ctx, r, path); err != nil {
		return errors.Join(err, removeEmpty(r.Dir))
	}
	return l.bind(ctx, r, global)
}

// bind gives the content to the group of the pod, and mounts the directory. The caller has the lock of the directory.
func (l *Local) bind(ctx context.Context, r Request, path string) error {
	if r.FSGroup != nil && !r.ReadOnly {
		if err := l.own(ctx, r, path); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(r.Dir, folderMode); err != nil {
		return err
	}
	answered := volumes.Asking(ctx, diskOf+path)
	err := l.Mounter.Mount(path, r.Dir, "", []string{"bind"})
	answered()
	if err != nil {
		return errors.Join(err, removeEmpty(r.Dir))
	}
	return nil
}

// own gives the content to the group of the pod. As in the kubelet, it stays that of the pods that use it already.
func (l *Local) own(ctx context.Context, r Request, path string) error {
	used, err := usedByOthers(r.Dir)
	if err != nil {
		return err
	}
	if !used {
		begun := l.Clock.Now()
		answered := volumes.Asking(ctx, volumes.Owners)
		err := fsgroup.Apply(ctx, path, *r.FSGroup, false, r.FSGroupChangePolicy, &fsgroup.Monitor{
			Clock: l.Clock, Volume: fsgroup.VolumeOf(r.Dir, r.Pod.UID),
			Warn: func(message string) { l.Events.Warning(ctx, r.Pod, "", fsgroup.EventSlow, message) },
		})
		answered()
		if l.Measured != nil {
			l.Measured("kubernetes.io/local-volume", fsgroup.Operation, false, l.Clock.Since(begun), err)
		}
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("failed to check fsGroup for %s (%w)", path, err)
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && int64(stat.Gid) != *r.FSGroup {
		l.Events.Warning(ctx, r.Pod, "", eventAlreadyMounted, fmt.Sprintf(
			"The requested fsGroup is %d, but the volume %s has GID %d. The volume may not be shareable.",
			*r.FSGroup, r.PV.Name, stat.Gid))
	}
	return nil
}

// usedByOthers reports whether another pod has a directory of the same kind and name. It fails if that is not known.
func usedByOthers(dir string) (bool, error) {
	volume := filepath.Join("volumes", filepath.Base(filepath.Dir(dir)), filepath.Base(dir))
	pods := strings.TrimSuffix(dir, volume)
	pods = filepath.Dir(filepath.Clean(pods))
	entries, err := os.ReadDir(pods)
	if err != nil {
		return false, err
	}
	for _, entry := range entries {
		other := filepath.Join(pods, entry.Name(), volume)
		if other == dir {
			continue
		}
		switch _, err := os.Lstat(other); {
		case err == nil:
			return true, nil
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR):
			return false, err
		}
	}
	return false, nil
}

// restrict applies the mount options and the read-only mode of a volume, which the kernel takes for a bind mount only
// when it exists. A process that is killed before leaves this to the next one.
func (l *Local) restrict(r Request) error {
	// The others are for a file system, or have no effect on a bind mount.
	options := slices.DeleteFunc(slices.Clone(r.PV.Spec.MountOptions), func(o string) bool {
		return !slices.ContainsFunc(flags(), func(f flag) bool { return f.name == o })
	})
	if r.ReadOnly {
		options = append(options, "ro")
	}
	if len(options) == 0 {
		return nil
	}
	present, err := mountFlags(r.Dir)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(options, func(o string) bool { return !slices.Contains(present, o) }) {
		return nil
	}
	// The flags of the file system stay.
	options = append(append([]string{"bind", "remount"}, present...), options...)
	return l.Mounter.Mount(r.Dir, r.Dir, "", options)
}

// flag is a flag of a mount.
type flag struct {
	bit  int64
	name string
}

// flags returns the flags of mounts that are options.
func flags() []flag {
	return []flag{
		{unix.ST_RDONLY, "ro"}, {unix.ST_NOSUID, "nosuid"}, {unix.ST_NODEV, "nodev"}, {unix.ST_NOEXEC, "noexec"},
		{unix.ST_NOATIME, "noatime"}, {unix.ST_RELATIME, "relatime"},
	}
}

// mountFlags returns the flags of a mount as options.
func mountFlags(dir string) ([]string, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return nil, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	var options []string
	for _, flag := range flags() {
		if stat.Flags&flag.bit != 0 {
			options = append(options, flag.name)
		}
	}
	return options, nil
}

// Unmount implements Kind.
func (l *Local) Unmount(ctx context.Context, dir string) error {
	if isDevice(dir) {
		return l.unmapDevice(ctx, dir)
	}
	if err := l.unmountAll(ctx, dir); err != nil {
		return err
	}
	return l.unmountDevice(ctx, dir)
}

// unmountAll removes all mounts of a directory, which may be missing.
func (l *Local) unmountAll(ctx context.Context, dir string) error {
	defer volumes.Asking(ctx, diskOf+dir)()
	for {
		mounted, err := isMounted(l.Mounter, dir)
		if err != nil || !mounted {
			return err
		}
		if err := l.Mounter.Unmount(dir); err != nil {
			return err
		}
	}
}

// isMounted reports whether something is mounted at a directory, which may be missing.
func isMounted(mounter volumes.Mounter, dir string) (bool, error) {
	mounted, err := mounter.IsMountPoint(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return mounted, err
}

// removeEmpty removes an empty directory, which may be missing. It fails for one with content, which nothing of a
// volume can be.
func removeEmpty(dir string) error {
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
