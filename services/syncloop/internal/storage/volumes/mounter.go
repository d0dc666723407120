package volumes

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"k8s.io/mount-utils"
)

// Mounter mounts file systems for plugins: Machine on a node, mount.FakeMounter in tests.
type Mounter interface {
	// Mount mounts a file system on an existing directory. Options are those of mount(8), for example "size=1024" and
	// "noexec".
	Mount(source, target, fstype string, options []string) error
	// Unmount removes the last mount of a directory.
	Unmount(target string) error
	// IsMountPoint reports whether an existing directory is a mount point. It is faster than List.
	IsMountPoint(path string) (bool, error)
	// List returns all mounts in the order of the mount table.
	List() ([]mount.MountPoint, error)
}

// Machine mounts with system calls, without another program.
type Machine struct{}

// mountFlags maps the options that are flags of the kernel; the others are options of the file system.
func mountFlags() map[string]uintptr {
	return map[string]uintptr{
		"ro": unix.MS_RDONLY, "rw": 0, "noexec": unix.MS_NOEXEC, "nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV,
		"noatime":  unix.MS_NOATIME,
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

// Unmount implements Mounter. It follows no link, and fails if the mount is busy.
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
		opts := slices.DeleteFunc(strings.Split(info.Options+","+info.VFSOptions, ","), func(o string) bool {
			return o == ""
		})
		points = append(points, mount.MountPoint{Device: info.Source, Path: info.Mountpoint, Type: info.FSType, Opts: opts})
	}
	return points, nil
}

// Refs returns where else the same directory of the same file system is mounted as at a path, which may be missing. As
// in the kubelet, that is what the mount table says; the path itself is not looked at, because its server may be away.
func (Machine) Refs(path string) ([]string, error) {
	infos, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, err
	}
	for _, at := range slices.Backward(infos) { // a later mount covers an earlier one
		below, err := filepath.Rel(at.Mountpoint, path)
		if err != nil || !filepath.IsLocal(below) {
			continue
		}
		root := filepath.Join(at.Root, below)
		var refs []string
		for _, other := range infos {
			if other.ID != at.ID && other.Root == root && other.Major == at.Major && other.Minor == at.Minor {
				refs = append(refs, other.Mountpoint)
			}
		}
		return refs, nil
	}
	return nil, fmt.Errorf("%s is below no mount", path)
}
