package machine

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/statedir"
)

// fileSystems are the file systems that are unsuitable for a state directory, by their numbers in linux/magic.h, with
// the reason.
var fileSystems = map[int64]struct{ name, why string }{
	unix.OVERLAYFS_SUPER_MAGIC: {"overlayfs", "images cannot be layered on it and are copied instead"},
	unix.NFS_SUPER_MAGIC:       {"nfs", "locks and sockets on a network file system do not keep two nodes apart"},
	unix.SMB2_SUPER_MAGIC:      {"smb", "locks and sockets on a network file system do not keep two nodes apart"},
	unix.V9FS_MAGIC:            {"9p", "locks and sockets on a network file system do not keep two nodes apart"},
	unix.TMPFS_MAGIC:           {"tmpfs", "it is in memory, and gone after a reboot"},
	unix.RAMFS_MAGIC:           {"ramfs", "it is in memory, and gone after a reboot"},
}

// StateDir checks that the state directory, or the directory in which it would be created, is writable and on a local
// file system.
func (m Machine) StateDir(dir string) Finding {
	f := Finding{Check: "state directory"}
	at, err := m.existing(dir)
	if err != nil {
		return f.With(Fault, err.Error(), "name another with --state-dir")
	}
	if info, err := os.Stat(m.path(at)); err == nil && !info.IsDir() {
		return f.With(Fault, at+" is not a directory", "move that file away, or name another directory with --state-dir")
	}
	mount, unknown := m.MountOf(at)
	switch err := m.Access(m.path(at), unix.W_OK|unix.X_OK); {
	case err == nil && unknown == nil && mount != nil && statedir.HasFailed(mount):
		return f.With(Fault, at+" is on a file system that is read-only since an error",
			"look in dmesg for the cause, quartet down, umount "+mount.Mountpoint+", and e2fsck "+mount.Source)
	case errors.Is(err, unix.EROFS):
		fix := "name a directory with --state-dir that can be written"
		if unknown == nil && mount != nil {
			fix = fmt.Sprintf("mount -o remount,rw %s, or %s", mount.Mountpoint, fix)
		}
		return f.With(Fault, at+" is on a file system that is mounted read-only", fix)
	case err != nil:
		return f.With(
			Fault,
			fmt.Sprintf("%s cannot be written: %v", at, err),
			"run the command as root, or name another directory with --state-dir",
		)
	}
	var stat unix.Statfs_t
	if err := m.Statfs(m.path(at), &stat); err != nil {
		return Unknown(f.Check, fmt.Errorf("reading the file system of %s: %w", at, err))
	}
	if bad, found := fileSystems[int64(stat.Type)]; found { //nolint:unconvert // 32 bits wide elsewhere
		return f.With(
			Warning,
			fmt.Sprintf("%s is on %s: %s", at, bad.name, bad.why),
			"name a directory on ext4 or xfs with --state-dir",
		)
	}
	f.Detail = dir
	if at != dir {
		f.Detail = dir + " does not exist yet, and can be created in " + at
	}
	return f
}

// Room is the minimum of free space on a file system.
type Room struct {
	// Bytes and Inodes are eviction thresholds; a zero one is not checked.
	Bytes, Inodes nodeconfig.Threshold
	// Fields names both configuration fields, for the detail.
	Fields string
}

// Disk checks that the file system of a directory is not so full that the node would report DiskPressure. name
// describes the use of the directory.
func (m Machine) Disk(name, dir string, room Room) Finding {
	f := Finding{Check: "disk of " + name}
	at, err := m.existing(dir)
	if err != nil {
		return Unknown(f.Check, err)
	}
	var stat unix.Statfs_t
	if err := m.Statfs(m.path(at), &stat); err != nil {
		return Unknown(f.Check, fmt.Errorf("reading the free space of %s: %w", at, err))
	}
	size := int64(stat.Bsize)                                               //nolint:unconvert // 32 bits wide elsewhere
	capacity, available := int64(stat.Blocks)*size, int64(stat.Bavail)*size //nolint:gosec // less than 8 EiB
	inodes, inodesFree := int64(stat.Files), int64(stat.Ffree)              //nolint:gosec // as above
	f.Detail = fmt.Sprintf("%s: %s of %s", dir, gibibytes(available), gibibytes(capacity))
	if inodes > 0 { // btrfs and others have no fixed number
		f.Detail += fmt.Sprintf(" and %d %% of the inodes", inodesFree*100/inodes)
	}
	f.Detail += " are free"
	var short []string
	if minimum := room.Bytes.Of(capacity); available < minimum {
		short = append(short, gibibytes(minimum))
	}
	if minimum := room.Inodes.Of(inodes); inodesFree < minimum {
		short = append(short, fmt.Sprintf("%d inodes", minimum))
	}
	if len(short) > 0 {
		return f.With(
			Warning,
			fmt.Sprintf(
				"%s, and below %s the node reports DiskPressure (%s)",
				f.Detail,
				strings.Join(short, " and "),
				room.Fields,
			),
			"free some: 'du -xh --max-depth=2 "+at+" | sort -h' shows what is large",
		)
	}
	return f
}

func gibibytes(bytes int64) string { return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30)) }

// Overlay checks for overlayfs, on which runtimes layer images.
func (m Machine) Overlay() Finding {
	f := Ok("overlayfs", "in the kernel")
	known, err := m.read("proc/filesystems")
	if err != nil {
		return Unknown(f.Check, err)
	}
	for line := range strings.Lines(known) {
		if words := strings.Fields(line); len(words) > 0 && words[len(words)-1] == "overlay" {
			return f
		}
	}
	return f.With(Warning, "not loaded: images are copied for each container, or none starts",
		"modprobe overlay, and the line overlay in /etc/modules-load.d/quartet.conf")
}
