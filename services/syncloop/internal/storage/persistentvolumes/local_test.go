package persistentvolumes_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/persistentvolumes"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
	"github.com/quartet-node/quartet/test/require"
)

// warnings are the events of pods.
type warnings struct {
	mu   sync.Mutex
	list []string
}

// Warning implements volumes.Events.
func (w *warnings) Warning(_ context.Context, pod *v1.Pod, _, reason, message string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list = append(w.list, pod.Name+" "+reason+" "+message)
}

// localRig has a directory of the node, and a directory of pods.
type localRig struct {
	t      *testing.T
	kind   *persistentvolumes.Local
	events warnings
	pods   string
	path   string
}

func newLocalRig(t *testing.T) *localRig {
	t.Helper()
	r := &localRig{t: t, pods: filepath.Join(t.TempDir(), "pods"), path: filepath.Join(t.TempDir(), "disk")}
	r.kind = &persistentvolumes.Local{
		Mounter: volumes.Machine{}, Formatter: persistentvolumes.NewFormatter(), Events: &r.events, Clock: clock.RealClock{},
	}
	if err := os.Mkdir(r.path, 0o777); err != nil {
		t.Fatal(err)
	}
	return r
}

// request returns the request of a pod.
func (r *localRig) request(uid types.UID) persistentvolumes.Request {
	dir := filepath.Join(r.pods, string(uid), "volumes", r.kind.Name(), "pv-1")
	if err := os.MkdirAll(filepath.Dir(dir), 0o750); err != nil {
		r.t.Fatal(err)
	}
	return persistentvolumes.Request{
		Pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod-" + string(uid), UID: uid}},
		PV: &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-1"}, Spec: v1.PersistentVolumeSpec{
			PersistentVolumeSource: v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: r.path}},
		}},
		Dir: dir,
	}
}

// mount mounts a volume for the test. Where that is not permitted it skips the test, except in CI.
func (r *localRig) mount(request persistentvolumes.Request) string {
	r.t.Helper()
	path, err := r.kind.Mount(r.t.Context(), request)
	if errors.Is(err, os.ErrPermission) {
		require.NoError(r.t, err)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := r.kind.Unmount(context.Background(), request.Dir); err != nil {
			r.t.Error(err)
		}
	})
	return path
}

func (r *localRig) write(path, content string) {
	r.t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o640); err != nil {
		r.t.Fatal(err)
	}
}

func TestALocalVolumeIsTheDirectoryForEachPod(t *testing.T) {
	r := newLocalRig(t)
	one, two := r.request("u1"), r.request("u2")
	two.ReadOnly = true
	at, other := r.mount(one), r.mount(two)
	r.write(filepath.Join(at, "file"), "1")
	for _, path := range []string{filepath.Join(other, "file"), filepath.Join(r.path, "file")} {
		if content, err := os.ReadFile(path); err != nil || string(content) != "1" {
			t.Errorf("%s: ReadFile() = %q, %v, want %q", path, content, err, "1")
		}
	}
	if err := os.WriteFile(filepath.Join(other, "file"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("writing to the read-only volume: %v", err)
	}
	r.mount(one) // again changes nothing
	if err := r.kind.Unmount(t.Context(), one.Dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(one.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is left: %v", err)
	}
	if _, err := os.Stat(filepath.Join(r.path, "file")); err != nil {
		t.Errorf("the content is gone: %v", err)
	}
	if err := r.kind.Unmount(t.Context(), one.Dir); err != nil {
		t.Errorf("once more: %v", err)
	}
}

// A process that is killed after the bind mount has not made it read-only. The next one does.
func TestAMountOfAKilledProcessGetsItsOptions(t *testing.T) {
	r := newLocalRig(t)
	request := r.request("u1")
	at := r.mount(request)
	r.write(filepath.Join(at, "file"), "")
	request.ReadOnly = true
	request.PV.Spec.MountOptions = []string{"noexec", "nodev"}
	r.mount(request)
	var stat unix.Statfs_t
	if err := unix.Statfs(at, &stat); err != nil {
		t.Fatal(err)
	}
	if want := int64(unix.ST_RDONLY | unix.ST_NOEXEC | unix.ST_NODEV); stat.Flags&want != want {
		t.Errorf("the flags are %#x", stat.Flags)
	}
}

func TestALocalVolumeBelongsToTheGroupOfItsFirstPod(t *testing.T) {
	r := newLocalRig(t)
	r.write(filepath.Join(r.path, "file"), "")
	group := func(path string) int {
		info, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		return int(info.Sys().(*syscall.Stat_t).Gid)
	}
	var measured []string
	r.kind.Measured = func(plugin, operation string, migrated bool, _ time.Duration, err error) {
		measured = append(measured, fmt.Sprint(plugin, " ", operation, " ", migrated, " ", err))
	}
	one, two := r.request("u1"), r.request("u2")
	one.FSGroup, two.FSGroup = ptr.To[int64](1234), ptr.To[int64](4321)
	if at := r.mount(one); group(at) != 1234 || group(filepath.Join(at, "file")) != 1234 {
		t.Errorf("the groups are %d and %d, want 1234 and 1234", group(at), group(filepath.Join(at, "file")))
	}
	if at := r.mount(two); group(at) != 1234 {
		t.Errorf("the group of another pod is %d", group(at))
	}
	want := "pod-u2 AlreadyMountedVolume The requested fsGroup is 4321, but the volume pv-1 has GID 1234. The volume may not be shareable."
	if len(r.events.list) != 1 || r.events.list[0] != want {
		t.Errorf("the events are %q, want exactly one and r.events.list[0] %v", r.events.list, want)
	}
	if want := "kubernetes.io/local-volume volume_apply_access_control false <nil>"; !slices.Equal(measured, []string{want}) {
		t.Errorf("measured %q, want %q", measured, want)
	}
}

func TestALocalPathThatIsNoDirectoryIsRefused(t *testing.T) {
	r := newLocalRig(t)
	file := filepath.Join(r.path, "file")
	r.write(file, "")
	for path, want := range map[string]string{
		"":                     `LocalVolume volume "pv-1" path is empty`,
		r.path + "/../disk":    "must not contain '..'",
		r.path + "/none":       "no such file or directory",
		file:                   "only directory and block device are supported",
		"/dev/null":            "only directory and block device are supported",
		r.path + "/file/below": "not a directory",
	} {
		request := r.request("u1")
		request.PV.Spec.Local.Path = path
		if _, err := r.kind.Mount(t.Context(), request); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", path, err, want)
		}
		if _, err := os.Lstat(request.Dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%q: something is left: %v", path, err)
		}
	}
	block := r.request("u1")
	block.Block = true
	const want = "is no block device, which volumeMode Block requires"
	if _, err := r.kind.Mount(t.Context(), block); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a directory as a device: %v", err)
	}
}

// As in a kubelet, the path may be a link, because the node's administrator has written it.
func TestALocalPathMayBeALink(t *testing.T) {
	r := newLocalRig(t)
	r.write(filepath.Join(r.path, "file"), "1")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(r.path, link); err != nil {
		t.Fatal(err)
	}
	request := r.request("u1")
	request.PV.Spec.Local.Path, request.FSGroup = link, ptr.To[int64](1234)
	if content, err := os.ReadFile(filepath.Join(r.mount(request), "file")); err != nil || string(content) != "1" {
		t.Errorf("ReadFile() = %q, %v, want %q", content, err, "1")
	}
	var stat unix.Stat_t
	if err := unix.Stat(filepath.Join(r.path, "file"), &stat); err != nil || stat.Gid != 1234 {
		t.Errorf("the group is %d, %v, want 1234", stat.Gid, err)
	}
	if to, err := os.Readlink(link); err != nil || to != r.path {
		t.Errorf("the link leads to %s, %v, want %s", to, err, r.path)
	}
	loop := r.request("u2")
	loop.PV.Spec.Local.Path = filepath.Join(t.TempDir(), "loop")
	if err := os.Symlink(loop.PV.Spec.Local.Path, loop.PV.Spec.Local.Path); err != nil {
		t.Fatal(err)
	}
	if _, err := r.kind.Mount(t.Context(), loop); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a link to itself: %v, want %v", err, unix.ELOOP)
	}
}

// What is in the directory of a volume that is not mounted is nobody's, and stays.
func TestContentBelowAMissingMountStays(t *testing.T) {
	r := newLocalRig(t)
	request := r.request("u1")
	if err := os.MkdirAll(request.Dir, 0o750); err != nil {
		t.Fatal(err)
	}
	r.write(filepath.Join(request.Dir, "file"), "")
	if err := r.kind.Unmount(t.Context(), request.Dir); !errors.Is(err, unix.ENOTEMPTY) {
		t.Errorf("Unmount() error = %v, want %v", err, unix.ENOTEMPTY)
	}
}

func TestAHostPathIsCheckedAndNotMounted(t *testing.T) {
	r := newLocalRig(t)
	kind := persistentvolumes.HostPath{}
	request := r.request("u1")
	made := filepath.Join(r.path, "made")
	request.PV.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{
		HostPath: &v1.HostPathVolumeSource{Path: made, Type: ptr.To(v1.HostPathDirectory)},
	}
	if !kind.Supports(request.PV) || kind.Inline(&v1.Volume{}) {
		t.Error("it is of another kind")
	}
	_, err := kind.Mount(t.Context(), request)
	if err == nil || !strings.Contains(err.Error(), "hostPath type check failed") {
		t.Errorf("a missing directory: %v", err)
	}
	request.PV.Spec.HostPath.Type = ptr.To(v1.HostPathDirectoryOrCreate)
	if path, err := kind.Mount(t.Context(), request); err != nil || path != made {
		t.Errorf("at %q: %v, want %q", path, err, made)
	}
	if err := kind.Unmount(t.Context(), request.Dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(made); err != nil {
		t.Errorf("the path of the node is gone: %v", err)
	}
	request.Block = true
	if _, err := kind.Mount(t.Context(), request); err == nil {
		t.Error("a block device is accepted")
	}
}
