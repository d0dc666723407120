package volumes

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"k8s.io/mount-utils"
)

// Mounter is what plugins mount with: Machine on a node, mount.FakeMounter in tests.
type Mounter interface {
	// Mount mounts at a folder that is there. Options are those of mount(8), for example "size=1024" and "noexec".
	Mount(source, target, fstype string, options []string) error
	// Unmount takes away what was mounted at a folder last.
	Unmount(target string) error
	// IsMountPoint tells whether something is mounted at a folder that is there. It is quicker than List.
	IsMountPoint(path string) (bool, error)
	// List is everything that is mounted, in the order of the mount table.
	List() ([]mount.MountPoint, error)
}

// Machine mounts by the kernel's own calls, with no program in between.
type Machine struct{}

// mountFlags are the options that the kernel takes as flags; the others are the file system's.
func mountFlags() map[string]uintptr {
	return map[string]uintptr{
		"ro": unix.MS_RDONLY, "rw": 0, "noexec": unix.MS_NOEXEC, "nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV, "noatime": unix.MS_NOATIME,
		"relatime": unix.MS_RELATIME, "bind": unix.MS_BIND, "rbind": unix.MS_BIND | unix.MS_REC, "remount": unix.MS_REMOUNT,
	}
}

// Mount implements Mounter.
func (Machine) Mount(source, target, fstype string, options []string) error {
	known, flags := mountFlags(), uintptr(0)
	var rest []string
	for _, option := range options {
		if flag, ok := known[option]; ok {
			flags |= flag
		} else {
			rest = append(rest, option)
		}
	}
	if err := unix.Mount(source, target, fstype, flags, strings.Join(rest, ",")); err != nil {
		return fmt.Errorf("mount %s at %s: %w", fstype, target, err)
	}
	return nil
}

// Unmount implements Mounter. It follows no link, and fails when something is open there.
func (Machine) Unmount(target string) error {
	if err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW); err != nil {
		return &os.PathError{Op: "unmount", Path: target, Err: err}
	}
	return nil
}

// IsMountPoint implements Mounter.
func (Machine) IsMountPoint(path string) (bool, error) { return mountinfo.Mounted(path) }

// List implements Mounter.
func (Machine) List() ([]mount.MountPoint, error) {
	infos, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, err
	}
	points := make([]mount.MountPoint, 0, len(infos))
	for _, info := range infos {
		opts := slices.DeleteFunc(strings.Split(info.Options+","+info.VFSOptions, ","), func(o string) bool { return o == "" })
		points = append(points, mount.MountPoint{Device: info.Source, Path: info.Mountpoint, Type: info.FSType, Opts: opts})
	}
	return points, nil
}
