package persistentvolumes_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/persistentvolumes"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/killpoint"
	"github.com/quartet-node/quartet/test/require"
)

// newDeviceRig returns a rig whose path is an empty block device.
func newDeviceRig(t *testing.T) *localRig {
	t.Helper()
	require.Root(t, "loop devices")
	for _, program := range []string{"losetup", "mkfs.ext4", "blkid"} {
		_, err := exec.LookPath(program)
		require.NoError(t, err)
	}
	_, err := os.Stat("/dev/loop-control")
	require.NoError(t, err)
	r := newLocalRig(t)
	image := filepath.Join(r.path, "image")
	r.write(image, "")
	if err := os.Truncate(image, 64<<20); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("losetup", "--find", "--show", image).CombinedOutput()
	if err != nil {
		t.Fatalf("losetup: %v, %s", err, out)
	}
	r.path = strings.TrimSpace(string(out))
	t.Cleanup(func() {
		for _, at := range slices.Backward(mountsBelow(t, filepath.Dir(r.pods))) {
			_ = unix.Unmount(at, unix.MNT_DETACH)
		}
		if out, err := exec.Command("losetup", "--detach", r.path).CombinedOutput(); err != nil {
			t.Errorf("losetup: %v, %s", err, out)
		}
	})
	return r
}

// mountsBelow returns what is mounted below a directory.
func mountsBelow(t *testing.T, dir string) (at []string) {
	t.Helper()
	points, err := volumes.Machine{}.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range points {
		if strings.HasPrefix(p.Path, dir+"/") {
			at = append(at, p.Path)
		}
	}
	return at
}

// global is where the file system of the device is mounted for all pods.
func (r *localRig) global() string {
	return filepath.Join(filepath.Dir(r.pods), "plugins/kubernetes.io/local-volume/mounts/pv-1")
}

func (r *localRig) unmount(request persistentvolumes.Request) {
	r.t.Helper()
	eventually.That(r.t, "it is unmounted", func() bool {
		err := r.kind.Unmount(r.t.Context(), request.Dir)
		if err != nil && !errors.Is(err, unix.EBUSY) { // another process may look at a loop device at this moment
			r.t.Fatal(err)
		}
		return err == nil
	})
	if _, err := os.Lstat(request.Dir); !os.IsNotExist(err) {
		r.t.Errorf("%s is left: %v", request.Dir, err)
	}
}

// ends checks that nothing is mounted, held or left but empty directories.
func (r *localRig) ends() {
	r.t.Helper()
	root := filepath.Dir(r.pods)
	if at := mountsBelow(r.t, root); len(at) > 0 {
		r.t.Errorf("mounted: %v, want none", at)
	}
	if held := heldBelow(r.t, root); len(held) > 0 {
		r.t.Errorf("held: %v, want none", held)
	}
	_ = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && (!entry.IsDir() || entry.Name() == "pv-1") {
			r.t.Errorf("left: %s", path)
		}
		return nil
	})
}

// heldBelow returns the files below a directory that have loop devices.
func heldBelow(t *testing.T, dir string) (held []string) {
	t.Helper()
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && strings.HasPrefix(string(text), dir+"/") {
			held = append(held, strings.TrimSpace(string(text)))
		}
	}
	return held
}

// typeOf returns the type of the file system on the device.
func (r *localRig) typeOf() string {
	out, _ := exec.Command("blkid", "-p", "-s", "TYPE", "-o", "value", r.path).Output() // it fails for an empty device
	return strings.TrimSpace(string(out))
}

// TestAnEmptyDeviceGetsAFileSystemOnce covers two pods, and the content after both have gone.
func TestAnEmptyDeviceGetsAFileSystemOnce(t *testing.T) {
	r := newDeviceRig(t)
	one, two := r.request("u1"), r.request("u2")
	one.FSGroup, two.FSGroup = ptr.To[int64](1234), ptr.To[int64](4321)
	r.write(filepath.Join(r.mount(one), "file"), "1")
	if got := r.typeOf(); got != "ext4" {
		t.Errorf("the file system is %q, want ext4", got)
	}
	if content, err := os.ReadFile(filepath.Join(r.mount(two), "file")); err != nil || string(content) != "1" {
		t.Errorf("ReadFile() = %q, %v, want %q", content, err, "1")
	}
	var stat unix.Stat_t
	if err := unix.Stat(r.global(), &stat); err != nil || stat.Gid != 1234 {
		t.Errorf("the group is %d, %v, want 1234", stat.Gid, err)
	}
	if len(r.events.list) != 1 || !strings.Contains(r.events.list[0], "pod-u2 AlreadyMountedVolume") {
		t.Errorf("the events are %q, want one of pod-u2", r.events.list)
	}
	r.mount(one)
	if at := mountsBelow(t, filepath.Dir(r.pods)); len(at) != 3 {
		t.Errorf("mounted: %v, want the device and two pods", at)
	}
	r.unmount(one)
	if at := mountsBelow(t, filepath.Dir(r.pods)); len(at) != 2 {
		t.Errorf("mounted for the second pod: %v", at)
	}
	r.unmount(two)
	r.ends()
	if content, err := os.ReadFile(filepath.Join(r.mount(one), "file")); err != nil || string(content) != "1" {
		t.Errorf("in the next pod: ReadFile() = %q, %v, want %q", content, err, "1")
	}
	r.unmount(one)
	r.ends()
}

// TestPodsOfADeviceThatComeAndGoAtOnce checks that none leaves the unmount to the other.
func TestPodsOfADeviceThatComeAndGoAtOnce(t *testing.T) {
	r := newDeviceRig(t)
	var pods sync.WaitGroup
	for _, uid := range []types.UID{"u1", "u2", "u3", "u4"} {
		request := r.request(uid)
		pods.Go(func() {
			for range 5 {
				if _, err := r.kind.Mount(context.Background(), request); err != nil {
					t.Error(err)
				}
				if err := r.kind.Unmount(context.Background(), request.Dir); err != nil {
					t.Error(err)
				}
			}
		})
	}
	pods.Wait()
	r.ends()
}

func TestTheOptionsOfADevice(t *testing.T) {
	r := newDeviceRig(t)
	request := r.request("u1")
	request.PV.Spec.MountOptions = []string{"noexec", "noatime", "commit=7"}
	r.mount(request)
	var stat unix.Statfs_t
	if err := unix.Statfs(request.Dir, &stat); err != nil {
		t.Fatal(err)
	}
	if want := int64(unix.ST_NOEXEC | unix.ST_NOATIME); stat.Flags&want != want {
		t.Errorf("the flags are %#x, want %#x", stat.Flags, want)
	}
	points, err := volumes.Machine{}.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range points {
		if p.Path == r.global() && !slices.Contains(p.Opts, "commit=7") {
			t.Errorf("the options of the file system are %q, want commit=7", p.Opts)
		}
	}
	r.unmount(request)
	request.ReadOnly = true
	r.mount(request)
	if err := os.WriteFile(filepath.Join(request.Dir, "file"), nil, 0o600); err == nil {
		t.Error("a read-only volume is written to")
	}
	r.unmount(request)
	r.ends()
}

// TestADeviceWithContentIsNeverFormatted covers another file system, a partition table, and an empty device for a pod
// that may only read.
func TestADeviceWithContentIsNeverFormatted(t *testing.T) {
	r := newDeviceRig(t)
	request := r.request("u1")
	refused := func(want string) {
		t.Helper()
		before, err := os.ReadFile(r.path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.kind.Mount(t.Context(), request); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
		if after, err := os.ReadFile(r.path); err != nil || !bytes.Equal(before, after) {
			t.Errorf("the device is changed, %v", err)
		}
		r.unmount(request)
		r.ends()
	}
	request.ReadOnly = true
	refused("cannot mount unformatted disk")
	request.ReadOnly = false
	request.PV.Spec.Local.FSType = ptr.To("nofs")
	refused("format of disk")
	request.PV.Spec.Local.FSType = nil
	partitioned := make([]byte, 512)
	copy(partitioned[446:], []byte{0, 0, 2, 0, 0x83, 0, 0, 0, 1, 0, 0, 0, 0xff, 0, 0, 0})
	partitioned[510], partitioned[511] = 0x55, 0xaa
	writeAt(t, r.path, partitioned)
	refused("failed to mount device")
	writeAt(t, r.path, make([]byte, 512))
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", r.path).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v, %s", err, out)
	}
	request.PV.Spec.Local.FSType = ptr.To("xfs")
	if _, err := r.kind.Mount(t.Context(), request); err == nil || r.typeOf() != "ext4" {
		t.Errorf("ext4 is mounted as xfs: %v, the device is %q", err, r.typeOf())
	}
	r.unmount(request)
	r.ends()
}

func writeAt(t *testing.T, path string, content []byte) {
	t.Helper()
	device, err := os.OpenFile(path, os.O_WRONLY|os.O_SYNC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := device.WriteAt(content, 0); err != nil {
		t.Error(err)
	}
	if err := device.Close(); err != nil {
		t.Error(err)
	}
}

// deviceRequest returns the request of a pod that has the device as a device.
func (r *localRig) deviceRequest(uid types.UID) persistentvolumes.Request {
	r.t.Helper()
	request := r.request(uid)
	request.Block, request.PV.Spec.VolumeMode = true, ptr.To(v1.PersistentVolumeBlock)
	request.Dir = filepath.Join(r.pods, string(uid), "volumeDevices", r.kind.Name(), "pv-1")
	if err := os.MkdirAll(filepath.Dir(request.Dir), 0o750); err != nil {
		r.t.Fatal(err)
	}
	return request
}

// TestAPodHasALocalDevice names the device by a link, as /dev/disk/by-id does.
func TestAPodHasALocalDevice(t *testing.T) {
	r := newDeviceRig(t)
	link := filepath.Join(t.TempDir(), "by-id")
	if err := os.Symlink(r.path, link); err != nil {
		t.Fatal(err)
	}
	one, two := r.deviceRequest("u1"), r.deviceRequest("u2")
	one.PV.Spec.Local.Path, two.PV.Spec.Local.Path = link, link
	for _, request := range []persistentvolumes.Request{one, two, one} {
		if at := r.mount(request); at != request.Dir {
			t.Errorf("at %s, want %s", at, request.Dir)
		}
	}
	held := filepath.Join(filepath.Dir(r.pods), "plugins/kubernetes.io~local-volume/volumeDevices/pv-1")
	if got, want := heldBelow(t, held), []string{held + "/u1", held + "/u2"}; !slices.Equal(slices.Sorted(slices.Values(got)), want) {
		t.Errorf("held are %v, want %v", got, want)
	}
	writeAt(t, one.Dir, []byte("hello"))
	if content, err := os.ReadFile(r.path); err != nil || !bytes.HasPrefix(content, []byte("hello")) {
		t.Errorf("not on the device: %v", err)
	}
	if usage, err := r.kind.Usage(t.Context(), one.Dir); err != nil || *usage.CapacityBytes != 64<<20 {
		t.Errorf("Usage() = %+v, %v, want a capacity of 64 MiB", usage, err)
	}
	r.unmount(one)
	if got := heldBelow(t, held); len(got) != 1 {
		t.Errorf("held for the second pod: %v", got)
	}
	r.unmount(two)
	r.unmount(two)
	r.ends()
}

// localKill is the root directory, and localPath the path, of the process that is killed; localBlock is set if its pods
// have the device itself.
const (
	localKill  = "LOCAL_TEST_ROOT"
	localPath  = "LOCAL_TEST_PATH"
	localBlock = "LOCAL_TEST_BLOCK"
)

// TestAKillAnywhereLeavesNothingOfALocalDevice kills a process before each system call that changes something.
func TestAKillAnywhereLeavesNothingOfALocalDevice(t *testing.T) {
	if root := os.Getenv(localKill); root != "" {
		r := &localRig{t: t, path: os.Getenv(localPath), pods: filepath.Join(root, "pods")}
		r.kind = &persistentvolumes.Local{
			Mounter: volumes.Machine{}, Formatter: persistentvolumes.NewFormatter(), Events: &r.events,
		}
		for _, request := range r.pair(os.Getenv(localBlock) != "") {
			if _, err := r.kind.Mount(t.Context(), request); err != nil {
				t.Fatal(err)
			}
		}
		for _, request := range r.pair(os.Getenv(localBlock) != "") {
			r.unmount(request)
		}
		return
	}
	for _, block := range []bool{false, true} {
		calls := localKilledAt(t, 0, block, false)
		if len(calls) < 10 {
			t.Fatalf("only %d calls change something:\n%s", len(calls), strings.Join(calls, "\n"))
		}
		for n := 1; n <= len(calls); n++ {
			localKilledAt(t, n, block, n%2 == 0)
		}
	}
}

// pair returns the requests of two pods.
func (r *localRig) pair(block bool) []persistentvolumes.Request {
	if block {
		return []persistentvolumes.Request{r.deviceRequest("u1"), r.deviceRequest("u2")}
	}
	return []persistentvolumes.Request{r.request("u1"), r.request("u2")}
}

// localKilledAt kills a process before its nth call, or not at all if n is 0, and lets the next process take over: it
// removes what it finds of the pods, which may come back before.
func localKilledAt(t *testing.T, n int, block, comesBack bool) (calls []string) {
	t.Helper()
	r := newDeviceRig(t)
	pair := r.pair(block)
	cmd := exec.Command(os.Args[0], "-test.run=^TestAKillAnywhereLeavesNothingOfALocalDevice$")
	cmd.Env = append(os.Environ(), localKill+"="+filepath.Dir(r.pods), localPath+"="+r.path)
	if block {
		cmd.Env = append(cmd.Env, localBlock+"=true")
	}
	tr := &killpoint.Tracer{Root: filepath.Dir(r.pods), Kill: n}
	status := tr.Run(t, cmd)
	if status.Signaled() != (n > 0) || n == 0 && status.ExitStatus() != 0 {
		t.Fatalf("the process ended with %#x after\n%s", status, strings.Join(tr.Calls, "\n"))
	}
	for _, request := range pair {
		if comesBack {
			if _, err := r.kind.Mount(t.Context(), request); err != nil {
				t.Error(err)
			}
		}
	}
	want := 3 // the file system of the device, and a mount for each pod
	if block {
		want = 4 // a mount and a loop device for each pod
	}
	root := filepath.Dir(r.pods)
	if got := slices.Concat(mountsBelow(t, root), heldBelow(t, root)); comesBack && len(got) != want {
		t.Errorf("mounted and held are %v, want %d", got, want)
	}
	for _, request := range pair {
		// The volume manager finds what has a directory or a link.
		if _, err := os.Lstat(request.Dir); err == nil {
			r.unmount(request)
		}
	}
	r.ends()
	if t.Failed() {
		t.Fatalf("killed before call %d, %s", n, tr.Calls[max(n, 1)-1])
	}
	return tr.Calls
}
