package persistentvolumes_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/persistentvolumes"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/selinux"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/require"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// folder is a kind of volumes that are directories with a file "mount".
type folder struct {
	mu    sync.Mutex
	calls []string
	// at has the directories that are in use by a call.
	at map[string]bool
	// fail is the error of Mount, and hang what Mount waits for.
	fail error
	hang chan struct{}
}

func (*folder) Name() string                          { return "kubernetes.io~folder" }
func (*folder) Supports(pv *v1.PersistentVolume) bool { return pv.Spec.NFS != nil }
func (*folder) Inline(v *v1.Volume) bool              { return v.NFS != nil }

func (f *folder) begin(what, dir string) (end func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.at == nil {
		f.at = map[string]bool{}
	}
	if f.at[dir] {
		panic("two calls for " + dir)
	}
	f.at[dir] = true
	f.calls = append(f.calls, what+" "+filepath.Base(dir))
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.at, dir)
	}
}

func (f *folder) count(call string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(slices.DeleteFunc(slices.Clone(f.calls), func(c string) bool { return c != call }))
}

func (f *folder) Mount(ctx context.Context, r persistentvolumes.Request) (string, error) {
	defer f.begin("mount", r.Dir)()
	if f.hang != nil {
		select {
		case <-f.hang:
		case <-ctx.Done():
		}
	}
	path := filepath.Join(r.Dir, "mount")
	if r.Block {
		return path, os.Symlink("/dev/null", r.Dir)
	}
	return path, errors.Join(os.MkdirAll(path, 0o750), f.fail)
}

func (f *folder) Unmount(_ context.Context, dir string) error {
	defer f.begin("unmount", dir)()
	return os.RemoveAll(dir)
}

// claims has the persistent volumes of claims by their names.
type claims map[string]*v1.PersistentVolume

func (c claims) Claim(_ context.Context, pod *v1.Pod, v *v1.Volume) (*v1.PersistentVolumeClaim, *v1.PersistentVolume,
	error) {
	name := pod.Name + "-" + v.Name
	if v.PersistentVolumeClaim != nil {
		name = v.PersistentVolumeClaim.ClaimName
	}
	if c[name] == nil {
		return nil, nil, unbound{fmt.Errorf("PVC %s is not bound", name)}
	}
	return &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}}, c[name], nil
}

func pv(name string) *v1.PersistentVolume {
	return &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PersistentVolumeSpec{
		PersistentVolumeSource: v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{}},
	}}
}

type rig struct {
	t      *testing.T
	dir    string
	kind   *folder
	claims claims
	// kinds are the kinds of the next process, and labels its labels; nil for none.
	kinds   []persistentvolumes.Kind
	labels  *selinux.Labels
	manager *volumes.Manager
	stop    func()
}

func newRig(t *testing.T) *rig {
	t.Helper()
	kind := &folder{}
	r := newRigOf(t, kind, nil)
	r.kind = kind
	return r
}

// newRigOf returns a rig with a kind, on a machine with SELinux unless labels is nil.
func newRigOf(t *testing.T, kind persistentvolumes.Kind, labels *selinux.Labels) *rig {
	t.Helper()
	r := &rig{t: t, dir: t.TempDir(), kinds: []persistentvolumes.Kind{kind}, labels: labels,
		claims: claims{"data": pv("pv-1"), "pod-scratch": pv("pv-2")}}
	r.start()
	t.Cleanup(func() { r.stop() })
	return r
}

// start starts a new process.
func (r *rig) start() {
	r.t.Helper()
	manager, err := volumes.New(volumes.Config{
		PodsDir: r.dir, Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler),
		Plugins: append(persistentvolumes.Plugins(persistentvolumes.Config{
			Claims: r.claims, Kinds: r.kinds, Labels: r.labels,
			Node: func(context.Context) (*v1.Node, error) {
				return &v1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"host": "here"}}}, nil
			},
		}), volumes.HostPath{}),
	})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = manager.Run(ctx)
	}()
	r.manager = manager
	r.stop = func() {
		cancel()
		<-ended
	}
}

func (r *rig) path(elems ...string) string {
	return filepath.Join(append([]string{r.dir}, elems...)...)
}

func claimVolume(name, claim string) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{
		PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}}
}

// newPod returns a pod that mounts volumes.
func newPod(uid types.UID, vs ...v1.Volume) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pod", UID: uid}}
	c := v1.Container{Name: "app"}
	for _, v := range vs {
		c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: v.Name, MountPath: "/" + v.Name})
	}
	pod.Spec.Volumes, pod.Spec.Containers = vs, []v1.Container{c}
	return pod
}

func (r *rig) want(pod *v1.Pod) error {
	ctx, cancel := context.WithTimeout(r.t.Context(), 30*time.Second)
	defer cancel()
	r.manager.Want(ctx, pod)
	return r.manager.Wait(ctx, pod)
}

func (r *rig) release(uid types.UID) {
	r.t.Helper()
	if err := r.manager.Release(r.t.Context(), uid); err != nil {
		r.t.Fatal(err)
	}
	if left, _ := filepath.Glob(r.path(string(uid), "volume*", "*", "*")); len(left) > 0 {
		r.t.Errorf("left: %v, want none", left)
	}
}

func TestAClaimIsMountedAtTheKubeletsPath(t *testing.T) {
	r := newRig(t)
	pod := newPod("u1", claimVolume("files", "data"),
		v1.Volume{Name: "scratch", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}},
		v1.Volume{Name: "inline", VolumeSource: v1.VolumeSource{NFS: &v1.NFSVolumeSource{}}})
	if err := errors.Join(r.manager.Supports(pod), r.want(pod)); err != nil {
		t.Fatal(err)
	}
	want := []string{"pv-1", "pv-2", "inline"}
	for i, name := range want {
		dir := r.path("u1/volumes/kubernetes.io~folder", name)
		if got := r.manager.Path(pod, &pod.Spec.Volumes[i]); got != filepath.Join(dir, "mount") {
			t.Errorf("%s is at %q, want %q", name, got, filepath.Join(dir, "mount"))
		}
	}
	if _, err := os.Stat(r.path("u1/volumes/kubernetes.io~claim")); !os.IsNotExist(err) {
		t.Errorf("the name of the plugin is on disk: %v", err)
	}
	r.describes("u1", "files", "inline", "scratch")
	r.release("u1")
	for _, name := range want {
		if r.kind.count("unmount "+name) != 1 {
			t.Errorf("calls: %v, want count 1", r.kind.calls)
		}
	}
}

// describes checks that each volume is described once, and counted once.
func (r *rig) describes(uid types.UID, want ...string) {
	r.t.Helper()
	var got []string
	for _, v := range r.manager.Describe(uid) {
		got = append(got, v.GetName())
		if v.GetPlugin() != "kubernetes.io/folder" || filepath.Base(v.GetPath()) != "mount" {
			r.t.Errorf("described as %v, want Plugin %q and filepath.Base(v.Path) %q", v, "kubernetes.io/folder", "mount")
		}
	}
	if !slices.Equal(got, want) {
		r.t.Errorf("described are %v, want %v", got, want)
	}
	for _, c := range r.manager.Count() {
		if expected := map[string]int{"kubernetes.io/folder": len(want)}[c.Plugin]; c.Volumes != expected {
			r.t.Errorf("counted %+v, want Volumes %v", c, expected)
		}
	}
}

func TestAClaimOfAnEarlierProcessIsTakenOverOnce(t *testing.T) {
	r := newRig(t)
	pod := newPod("u1", claimVolume("files", "data"))
	if err := r.want(pod); err != nil {
		t.Fatal(err)
	}
	r.stop()
	r.start()
	if err := r.want(pod); err != nil {
		t.Fatal(err)
	}
	r.describes("u1", "files")
	r.release("u1")
	if r.kind.count("unmount pv-1") != 1 {
		t.Errorf("calls: %v, want count 1", r.kind.calls)
	}
}

func TestAClaimOfAPodThatIsGoneIsRemovedFromItsPath(t *testing.T) {
	r := newRig(t)
	pod, block := newPod("u1", claimVolume("files", "data")), newPod("u2", claimVolume("disk", "raw"))
	r.claims["raw"] = pv("pv-3")
	r.claims["raw"].Spec.VolumeMode = ptr.To(v1.PersistentVolumeBlock)
	c := &block.Spec.Containers[0]
	c.VolumeMounts, c.VolumeDevices = nil, []v1.VolumeDevice{{Name: "disk", DevicePath: "/dev/disk"}}
	if err := errors.Join(r.want(pod), r.want(block)); err != nil {
		t.Fatal(err)
	}
	if link, err := os.Readlink(r.path("u2/volumeDevices/kubernetes.io~folder/pv-3")); link != "/dev/null" {
		t.Errorf("Readlink() = %q, %v, want %q", link, err, "/dev/null")
	}
	r.stop()
	r.start()
	r.release("u1")
	r.release("u2")
}

// TestAVolumeIsMountedAndUnmountedInTurn removes a volume that was found on disk while its claim is being set up.
func TestAVolumeIsMountedAndUnmountedInTurn(t *testing.T) {
	r := newRig(t)
	pod := newPod("u1", claimVolume("files", "data"))
	if err := r.want(pod); err != nil {
		t.Fatal(err)
	}
	r.stop()
	r.kind.hang = make(chan struct{})
	r.start()
	r.manager.Want(t.Context(), pod)
	eventually.That(t, "the mount hangs", func() bool { return r.kind.count("mount pv-1") == 2 })
	released := make(chan error)
	go func() { released <- r.manager.Release(t.Context(), "u1") }()
	close(r.kind.hang)
	if err := <-released; err != nil {
		t.Error(err)
	}
	r.release("u1")
}

func TestAFailedMountIsRemovedWithThePod(t *testing.T) {
	r := newRig(t)
	r.kind.fail = errors.New("the driver says no")
	if err := r.want(newPod("u1", claimVolume("files", "data"))); err == nil || !strings.Contains(err.Error(), `MountVolume.SetUp failed for volume "files" : the driver says no`) {
		t.Error(err)
	}
	r.release("u1")
}

func TestClaimsThatCannotBeMounted(t *testing.T) {
	r := newRig(t)
	block, other, away, bad := pv("block"), pv("other"), pv("away"), pv("../up")
	block.Spec.VolumeMode = ptr.To(v1.PersistentVolumeBlock)
	other.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{FC: &v1.FCVolumeSource{}}
	away.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
		MatchExpressions: []v1.NodeSelectorRequirement{{Key: "host", Operator: v1.NodeSelectorOpIn, Values: []string{"there"}}},
	}}}}
	r.claims = claims{"block": block, "other": other, "away": away, "bad": bad}
	r.stop()
	r.start()
	for claim, want := range map[string]string{
		"none":  "PVC none is not bound",
		"block": "volume v has volumeMode Block, but is specified in volumeMounts",
		"other": `persistent volume "other": spec.fc: no volume plugin matched: this version of Quartet does not support this source`,
		"away":  `storage node affinity check failed: persistent volume "away": no matching NodeSelectorTerms`,
		"bad":   "the name is invalid",
	} {
		uid := types.UID("u-" + claim)
		if err := r.want(newPod(uid, claimVolume("v", claim))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: want() error = %v, want an error with %q", claim, err, want)
		}
		named := ""
		if pv := r.claims[claim]; pv != nil {
			named = pv.Name
		}
		if v := r.manager.Describe(uid)[0]; v.GetClaim() != claim || v.GetPersistentVolume() != named {
			t.Errorf("%s: described as %v, want the persistent volume %q", claim, v, named)
		}
		if _, err := os.Stat(r.path(string(uid), "volumes")); !os.IsNotExist(err) {
			t.Errorf("%s: something is on disk: %v, want fs.ErrNotExist", claim, err)
		}
		r.release(uid)
	}
}

func TestPartsOfAClaimAreNamedAfterItsPersistentVolume(t *testing.T) {
	r := newRig(t)
	pod := newPod("u1", claimVolume("files", "data"))
	if err := r.want(pod); err != nil {
		t.Fatal(err)
	}
	at, err := r.manager.SubPath(t.Context(), pod, &pod.Spec.Volumes[0], &pod.Spec.Containers[0], 0, "a")
	if errors.Is(err, os.ErrPermission) {
		require.NoError(t, err)
	}
	if want := r.path("u1/volume-subpaths/pv-1/app/0"); err != nil || at != want {
		t.Errorf("at %q, want %q: %v", at, want, err)
	}
	r.release("u1")
	if _, err := os.Stat(r.path("u1/volume-subpaths/pv-1")); !os.IsNotExist(err) {
		t.Errorf("left: %v, want fs.ErrNotExist", err)
	}
}

func TestANodeWithoutClaimsSupportsNone(t *testing.T) {
	manager, err := volumes.New(volumes.Config{
		PodsDir: t.TempDir(), Clock: clock.RealClock{},
		Plugins: persistentvolumes.Plugins(persistentvolumes.Config{Kinds: []persistentvolumes.Kind{&folder{}}}),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := manager.Supports(newPod("u1", claimVolume("files", "data"))); err == nil {
		t.Error("a claim is supported")
	}
}

// unbound is an error of a claim, which says what has to change.
type unbound struct{ error }

func (unbound) WaitsFor() string { return "persistentvolumeclaim shop/none" }

// TestAVolumeIsDescribedWithItsClaim covers a mounted claim, and one that waits.
func TestAVolumeIsDescribedWithItsClaim(t *testing.T) {
	r := newRig(t)
	if err := r.want(newPod("u1", claimVolume("files", "data"))); err != nil {
		t.Fatal(err)
	}
	if v := r.manager.Describe("u1")[0]; v.GetClaim() != "data" || v.GetPersistentVolume() != "pv-1" || v.GetWaitsFor() != "" {
		t.Errorf("described as %v", v)
	}
	if err := r.want(newPod("u2", claimVolume("files", "none"))); err == nil {
		t.Fatal("a claim that is not bound is mounted")
	}
	if v := r.manager.Describe("u2")[0]; v.GetPersistentVolume() != "" || v.GetWaitsFor() != "persistentvolumeclaim shop/none" {
		t.Errorf("described as %v", v)
	}
	r.release("u1")
	r.release("u2")
}

// TestALinkInPlaceOfAVolumeIsNotFollowed finds a link to a directory of the node, when the volume is mounted and when
// it is removed.
func TestALinkInPlaceOfAVolumeIsNotFollowed(t *testing.T) {
	r := newRig(t)
	theirs := filepath.Join(t.TempDir(), "theirs")
	if err := os.Mkdir(theirs, 0o750); err != nil {
		t.Fatal(err)
	}
	link := r.path("u1/volumes/kubernetes.io~folder/pv-1")
	if err := os.MkdirAll(filepath.Dir(link), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(theirs, link); err != nil {
		t.Fatal(err)
	}
	err := r.want(newPod("u1", claimVolume("files", "data")))
	if err == nil || !strings.Contains(err.Error(), link+" is a symbolic link, and nothing is mounted through it: remove it") {
		t.Error(err)
	}
	r.release("u1")
	if _, err := os.Lstat(link); !os.IsNotExist(err) {
		t.Errorf("the link is left: %v", err)
	}
	if entries, err := os.ReadDir(theirs); err != nil || len(entries) > 0 {
		t.Errorf("the directory has %v, %v, want nothing", entries, err)
	}
}

// TestNothingIsDoneInADirectoryThatCannotBeListed: what is there may be a link. The directory leads to itself.
func TestNothingIsDoneInADirectoryThatCannotBeListed(t *testing.T) {
	r := newRig(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(r.want(newPod("u1", claimVolume("files", "data"))))
	dir := r.path("u1/volumes/kubernetes.io~folder")
	must(os.Rename(dir, dir+"-aside"))
	must(os.Symlink(dir, dir))
	if err := r.manager.Release(t.Context(), "u1"); err == nil {
		t.Error("the volume is unmounted where nothing can be listed")
	}
	must(os.Remove(dir))
	must(os.Rename(dir+"-aside", dir))
	r.release("u1")
}
