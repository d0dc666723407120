package projectquota

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/vm"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestAFileSystemWithoutQuotasSaysWhy(t *testing.T) {
	err := FileSystem{}.Enforced("/proc")
	if err == nil || !strings.Contains(err.Error(), "is neither ext4 nor XFS") && !strings.Contains(err.Error(), "the kernel has no quotas") {
		t.Errorf("got %v", err)
	}
	if err := (FileSystem{}).Enforced("/no/such/directory"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(t.TempDir(), link))
	if _, err := (FileSystem{}).Project(link); err == nil {
		t.Error("a link has a project")
	}
}

func TestTheProjectIDsOfTheNodesFilesAreKnown(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "projid")
	must(t, os.WriteFile(file, []byte("# comment\nlogs:42\nbad:-1\n4711:/srv/a:b\n\n"), 0o600))
	named, err := FileSystem{Files: []string{file, filepath.Join(dir, "missing")}}.named()
	if err != nil || len(named) != 2 || !named[42] || !named[4711] {
		t.Errorf("known are %v, %v, want 42 and 4711", named, err)
	}
	if _, err := (FileSystem{Files: []string{dir}}).Pick(dir, "seed", nil); err == nil {
		t.Error("it picks without knowing the names")
	}
}

// fileSystems are the disks of the machine in their order, with the file systems on them.
var fileSystems = []struct {
	device, kind string
	disk         vm.Disk
}{
	{"/dev/vda", "ext4", vm.Disk{MiB: 64, Format: []string{"mkfs.ext4", "-q", "-O", "quota,project"}}},
	{"/dev/vdb", "xfs", vm.Disk{MiB: 512, Format: []string{"mkfs.xfs", "-q"}}},
}

func TestRealFileSystemsEnforceLimits(t *testing.T) {
	machine := vm.Machine{Modules: []string{"quota_v2", "xfs"}}
	for _, one := range fileSystems {
		machine.Disks = append(machine.Disks, one.disk)
	}
	if !vm.Inside(t, machine) {
		return
	}
	for _, one := range fileSystems {
		t.Run(one.kind, func(t *testing.T) {
			// ext4 does not limit processes with this capability, which containers do not have.
			runtime.LockOSThread() // the thread ends with this goroutine
			must(t, dropCapability(unix.CAP_SYS_RESOURCE))
			dir := t.TempDir()
			must(t, unix.Mount(one.device, dir, one.kind, 0, ""))
			if err := (FileSystem{}).Enforced(dir); err == nil || !strings.Contains(err.Error(), "is mounted without prjquota") {
				t.Errorf("mounted without quotas: %v", err)
			}
			must(t, unix.Unmount(dir, 0))
			must(t, unix.Mount(one.device, dir, one.kind, 0, "prjquota"))
			must(t, FileSystem{}.Enforced(dir))
			enforces(t, dir)
			picks(t, dir)
			must(t, unix.Unmount(dir, 0))
		})
	}
}

// dropCapability drops a capability of this thread.
func dropCapability(capability int) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return err
	}
	data[capability/32].Effective &^= 1 << (capability % 32)
	return unix.Capset(&header, &data[0])
}

// enforces checks that writes to a directory fail beyond its limit.
func enforces(t *testing.T, root string) {
	t.Helper()
	const id, mib = 1<<30 + 5, 1 << 20
	var quotas FileSystem
	dir := filepath.Join(root, "claim")
	must(t, os.Mkdir(dir, 0o777))
	if project, err := quotas.Project(dir); err != nil || project != 0 {
		t.Errorf("a new directory has the project %d, %v", project, err)
	}
	must(t, quotas.Limit(root, id, mib))
	must(t, quotas.Assign(dir, id))
	must(t, os.MkdirAll(filepath.Join(dir, "a/b"), 0o777))
	for _, inside := range []string{dir, filepath.Join(dir, "a/b")} {
		if project, err := quotas.Project(inside); err != nil || project != id {
			t.Errorf("%s has the project %d, %v, want %d", inside, project, err, id)
		}
	}
	file := filepath.Join(dir, "a/b/file")
	must(t, write(file, mib/2))
	if err := write(file, 2*mib); !errors.Is(err, unix.EDQUOT) && !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a write beyond the limit: %v", err)
	}
	must(t, write(filepath.Join(root, "outside"), 2*mib))
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil || stat.Blocks*uint64(stat.Bsize) != mib {
		t.Errorf("the size of the directory is %d, %v, want %d", stat.Blocks*uint64(stat.Bsize), err, mib)
	}
	must(t, quotas.Limit(dir, id, 4*mib))
	must(t, write(file, 2*mib))
	must(t, os.Rename(dir, filepath.Join(root, "renamed")))
	must(t, quotas.Limit(root, id, 0))
	must(t, write(filepath.Join(root, "renamed/a/b/file"), 5*mib))
}

// write writes a file durably: a file system may count blocks only when they are allocated.
func write(path string, size int) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = file.Write(make([]byte, size))
	return errors.Join(err, file.Sync(), file.Close())
}

// picks checks that a project ID in use is not picked.
func picks(t *testing.T, root string) {
	t.Helper()
	named := filepath.Join(root, "projid")
	quotas := FileSystem{Files: []string{named}}
	pick := func(taken map[uint32]bool) uint32 {
		id, err := quotas.Pick(root, "seed", taken)
		must(t, err)
		return id
	}
	first := pick(nil)
	if again := pick(nil); again != first || first < firstID {
		t.Errorf("picked are %d and %d", first, again)
	}
	if next := pick(map[uint32]bool{first: true}); next != first+1 {
		t.Errorf("picked is %d, want %d", next, first+1)
	}
	must(t, quotas.Limit(root, first, 1<<20))
	if next := pick(nil); next != first+1 {
		t.Errorf("beside a limit, picked is %d, want %d", next, first+1)
	}
	must(t, quotas.Limit(root, first, 0))
	dir := filepath.Join(root, "used")
	must(t, os.Mkdir(dir, 0o700))
	must(t, quotas.Assign(dir, first))
	if next := pick(nil); next != first+1 {
		t.Errorf("beside a directory, picked is %d, want %d", next, first+1)
	}
	must(t, os.Remove(dir))
	// XFS counts a removed file until its inode is free.
	eventually.That(t, "the project ID is free again", func() bool { return pick(nil) == first })
	must(t, os.WriteFile(named, []byte("theirs:"+strconv.FormatUint(uint64(first), 10)+"\n"), 0o600))
	if next := pick(nil); next != first+1 {
		t.Errorf("beside a name, picked is %d, want %d", next, first+1)
	}
}
