package persistentvolumes_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/mount-utils"
	utilexec "k8s.io/utils/exec"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/persistentvolumes"
	"github.com/quartet-node/quartet/test/eventually"
)

// resizer expands file systems if this process may: the kernel lets nobody without CAP_SYS_RESOURCE.
type resizer struct {
	*mount.ResizeFs
	may   bool
	asked []string
}

func newResizer(t *testing.T) *resizer {
	t.Helper()
	header, data := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	if err := unix.Capget(&header, &data[0]); err != nil {
		t.Fatal(err)
	}
	may := data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
	return &resizer{ResizeFs: mount.NewResizeFs(utilexec.New()), may: may}
}

func (r *resizer) Resize(device, mountPoint string) (bool, error) {
	r.asked = append(r.asked, device+" at "+mountPoint)
	if !r.may {
		return true, nil
	}
	return r.ResizeFs.Resize(device, mountPoint)
}

// expansions is what a local volume that grows tells.
type expansions struct {
	claimed []string
	events  []string
	fails   error
}

func (e *expansions) MarkExpanded(
	_ context.Context, claim *v1.PersistentVolumeClaim, size resource.Quantity,
) (*v1.PersistentVolumeClaim, error) {
	e.claimed = append(e.claimed, claim.Name+" "+size.String())
	return claim, e.fails
}

func (e *expansions) Normal(_ context.Context, _ *v1.Pod, _, reason, _ string) {
	e.events = append(e.events, reason)
}

func (e *expansions) Warning(_ context.Context, _ *v1.Pod, _, reason, _ string) {
	e.events = append(e.events, reason)
}

func (e *expansions) Claim(_ *v1.PersistentVolumeClaim, kind, reason, _ string) {
	e.events = append(e.events, kind+" "+reason)
}

// TestTheFileSystemOfADeviceGrows has a device that grows while a pod uses it, and a persistent volume whose size an
// administrator changes.
func TestTheFileSystemOfADeviceGrows(t *testing.T) {
	r := newDeviceRig(t)
	told, resizes := &expansions{}, newResizer(t)
	r.kind.Expansion = &persistentvolumes.Expansion{Claims: told, Resizer: resizes, Events: told}
	one := r.request("u1")
	one.Claim = &v1.PersistentVolumeClaim{}
	one.Claim.Name, one.Claim.Status.Capacity = "data", v1.ResourceList{v1.ResourceStorage: resource.MustParse("64Mi")}
	one.PV.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse("64Mi")}
	size := func() uint64 {
		var stat unix.Statfs_t
		if err := unix.Statfs(r.mount(one), &stat); err != nil {
			t.Fatal(err)
		}
		return stat.Blocks * uint64(stat.Bsize)
	}
	before := size()
	image, err := os.ReadFile("/sys/block/" + filepath.Base(r.path) + "/loop/backing_file")
	if err == nil {
		err = os.Truncate(strings.TrimSpace(string(image)), 128<<20)
	}
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("losetup", "--set-capacity", r.path).CombinedOutput(); err != nil {
		t.Fatalf("losetup: %v, %s", err, out)
	}
	if again := size(); again != before || len(told.claimed) > 0 {
		t.Errorf("a larger device changes the size from %d to %d, told %v", before, again, told.claimed)
	}
	one.PV.Spec.Capacity[v1.ResourceStorage] = resource.MustParse("128Mi")
	told.fails = errors.New("the API server is away")
	size() // a volume in use stays
	told.fails = nil
	after, claimed := size(), []string{"data 128Mi", "data 128Mi"}
	if resizes.may && after < before+(50<<20) || !slices.Equal(told.claimed, claimed) {
		t.Errorf("the file system has grown from %d to %d, told %v", before, after, told.claimed)
	}
	want := []string{"VolumeResizeFailed", "FileSystemResizeSuccessful", "Normal FileSystemResizeSuccessful"}
	if !slices.Equal(told.events, want) {
		t.Errorf("the events are %q, want %q", told.events, want)
	}
	if asked := r.path + " at " + r.global(); !slices.Equal(resizes.asked, []string{asked, asked}) {
		t.Errorf("resized %q, want %q", resizes.asked, asked)
	}
	r.unmount(one)
	r.ends()
}

// TestWhatAKubeletHasLeftOfLocalDevicesIsSwept has a kubelet that was killed after the last pod's directory was
// removed. What pods have is not swept.
func TestWhatAKubeletHasLeftOfLocalDevicesIsSwept(t *testing.T) {
	r := newDeviceRig(t)
	root := filepath.Dir(r.pods)
	sweep := func() {
		t.Helper()
		if err := r.kind.Sweep(t.Context(), root); err != nil {
			t.Error(err)
		}
	}
	sweep() // there is nothing
	one, device := r.request("u1"), r.deviceRequest("u2")
	r.mount(one)
	r.mount(device)
	sweep()
	held := filepath.Join(root, "plugins/kubernetes.io~local-volume/volumeDevices/pv-1")
	if len(mountsBelow(t, r.global()+"/..")) == 0 && !slices.Contains(mountsBelow(t, root), r.global()) {
		t.Errorf("the mount of a pod is swept: %v", mountsBelow(t, root))
	}
	if len(heldBelow(t, held)) != 1 {
		t.Errorf("the device of a pod is swept: %v", heldBelow(t, held))
	}
	if err := unix.Unmount(one.Dir, 0); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(r.pods); err != nil {
		t.Fatal(err)
	}
	eventually.That(t, "it is swept", func() bool { // another process may look at a loop device at this moment
		err := r.kind.Sweep(t.Context(), root)
		return err == nil && len(mountsBelow(t, root)) == 0
	})
	sweep()
	r.ends()
}
