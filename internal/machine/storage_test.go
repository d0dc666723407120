package machine

import (
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/test/require"
)

const ext4 = 0xef53

// mounted returns a machine with the root mount and another mount.
func mounted(root, second string) files {
	line := func(id, at, optional string) string {
		return id + " 1 0:2" + id + " / " + at + " rw,relatime " + optional + "- ext4 /dev/vda rw\n"
	}
	return files{
		"var/lib/x/here":             "",
		"proc/thread-self/mountinfo": line("1", "/", root) + line("2", "/var/lib/x", second),
	}
}

func TestPropagation(t *testing.T) {
	at := func(dir string) func(Machine) Finding { return func(m Machine) Finding { return m.Propagation(dir) } }
	run(t, at("/var/lib/x"), []fileCase{
		{"shared mount of its own", mounted("", "shared:7 "), OK, []string{"/var/lib/x"}},
		{"private, below a shared root", mounted("shared:1 ", ""), Warning,
			[]string{"mount --bind /var/lib/x /var/lib/x && mount --make-rshared /var/lib/x"}},
		{
			"no mounts are shown",
			files{"proc/thread-self/mountinfo": "", "var/lib/x/here": ""},
			Warning,
			[]string{"cannot be determined"},
		},
	})
	run(t, at("/var/lib/quartet"), []fileCase{
		{"not there yet, shared root", mounted("shared:1 ", ""), OK, nil},
		{
			"not there yet, private root",
			mounted("", "shared:7 "),
			Warning,
			[]string{"mkdir -p /var/lib/quartet && mount --bind"},
		},
	})
}

// The last mount on a mount point counts, as in the kernel.
func TestTheLastMountOnAPointCounts(t *testing.T) {
	m := mounted("", "").and(files{"proc/thread-self/mountinfo": mounted("", "")["proc/thread-self/mountinfo"] +
		"3 2 0:23 / /var/lib/x rw shared:9 - ext4 /dev/vda rw\n"}).in(t)
	if at, err := m.MountOf("/var/lib/x"); err != nil || !IsShared(at) {
		t.Errorf("MountOf() = %+v (%v), want a shared mount", at, err)
	}
}

func TestMountOfThisMachine(t *testing.T) {
	dir := t.TempDir()
	at, err := This().MountOf(dir)
	if err != nil || at == nil || !strings.HasPrefix(dir, at.Mountpoint) {
		t.Errorf("%s is said to be in the mount %+v (%v)", dir, at, err)
	}
}

func TestStateDir(t *testing.T) {
	check := func(dir string, access error, magic int64) func(Machine) Finding {
		return func(m Machine) Finding {
			m.Access = func(string, uint32) error { return access }
			m.Statfs = func(_ string, stat *unix.Statfs_t) error {
				stat.Type = magic
				return nil
			}
			return m.StateDir(dir)
		}
	}
	there := mounted("", "")
	failed := there.and(files{"proc/thread-self/mountinfo": "1 1 0:21 / / rw - ext4 /dev/vda rw\n" +
		"2 1 0:22 / /var/lib/x rw,relatime - ext4 /dev/vdb rw,emergency_ro\n"})
	for name, c := range map[string]struct {
		check func(Machine) Finding
		level Level
		words []string
	}{
		"there":             {check("/var/lib/x", nil, ext4), OK, []string{"/var/lib/x"}},
		"not there yet":     {check("/var/lib/quartet", nil, ext4), OK, []string{"can be created in /var/lib"}},
		"read-only":         {check("/var/lib/x", unix.EROFS, ext4), Fault, []string{"mount -o remount,rw /var/lib/x", "--state-dir"}},
		"another user's":    {check("/var/lib/x", unix.EACCES, ext4), Fault, []string{"as root"}},
		"a file":            {check("/var/lib/x/here", nil, ext4), Fault, []string{"not a directory"}},
		"below a file":      {check("/var/lib/x/here/below", nil, ext4), Fault, []string{"--state-dir"}},
		"on overlayfs":      {check("/var/lib/x", nil, unix.OVERLAYFS_SUPER_MAGIC), Warning, []string{"overlayfs", "ext4"}},
		"on a network disk": {check("/var/lib/x", nil, unix.NFS_SUPER_MAGIC), Warning, []string{"nfs"}},
		"in memory":         {check("/var/lib/x", nil, unix.TMPFS_MAGIC), Warning, []string{"tmpfs"}},
	} {
		t.Run(name, func(t *testing.T) { expect(t, c.check(there.in(t)), c.level, c.words...) })
	}
	well := check("/var/lib/x", nil, ext4)
	expect(t, well(failed.in(t)), Fault, "read-only since an error", "umount /var/lib/x", "e2fsck /dev/vdb")
}

// A real read-only file system, and one in memory.
func TestStateDirOnRealFileSystems(t *testing.T) {
	require.Root(t, "mounting")
	dir := t.TempDir()
	require.NoError(t, unix.Mount("none", dir, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	expect(t, This().StateDir(filepath.Join(dir, "a", "b")), Warning, "tmpfs")
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	expect(t, This().StateDir(filepath.Join(dir, "a", "b")), Fault, "read-only", "mount -o remount,rw "+dir)
}

func TestDisk(t *testing.T) {
	threshold := func(text string) nodeconfig.Threshold {
		parsed, err := nodeconfig.ParseThreshold(text)
		if err != nil {
			t.Fatal(err)
		}
		return parsed
	}
	room := Room{Bytes: threshold("10%"), Inodes: threshold("5%"), Fields: "evictionHard"}
	check := func(available, inodes, inodesFree uint64) func(Machine) Finding {
		return func(m Machine) Finding {
			m.Statfs = func(_ string, stat *unix.Statfs_t) error {
				stat.Bsize, stat.Blocks, stat.Bavail, stat.Files, stat.Ffree = 4096, 100<<18, available<<18, inodes, inodesFree
				return nil
			}
			return m.Disk("state", "/var/lib/quartet", room)
		}
	}
	there := files{"var/lib/x": ""}
	run(t, check(50, 1000, 500), []fileCase{{"half", there, OK, []string{"50.0 GiB of 100.0 GiB", "50 % of the inodes"}}})
	run(
		t,
		check(9, 1000, 500),
		[]fileCase{{"few bytes", there, Warning, []string{"below 10.0 GiB", "DiskPressure", "evictionHard", "du -xh"}}},
	)
	run(t, check(50, 1000, 40), []fileCase{{"few inodes", there, Warning, []string{"below 50 inodes"}}})
	run(t, check(50, 0, 0), []fileCase{{"no fixed number of inodes", there, OK, nil}})
}
