package nodeclaims

import (
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const namespace = "shop"

// away is why no claim is known while configmux is away.
const away = "configmux is away"

// documents are the claims that configmux knows.
type documents struct {
	mu     sync.Mutex
	claims map[string]*v1.PersistentVolumeClaim
	// unread is why nothing is certain; empty if everything is.
	unread string
	// hidden is true while no claim is known.
	hidden bool
}

// Claim implements Documents.
func (d *documents) Claim(in, name string) (*v1.PersistentVolumeClaim, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch claim := d.claims[name]; {
	case claim != nil && in == namespace && !d.hidden:
		return claim, nil
	case d.unread != "":
		return nil, errors.New(d.unread)
	default:
		return nil, apierrors.NewNotFound(v1.Resource("persistentvolumeclaim"), name)
	}
}

// Claims implements Documents.
func (d *documents) Claims() (all []*v1.PersistentVolumeClaim) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(d.claims)) {
		if !d.hidden {
			all = append(all, d.claims[name])
		}
	}
	return all
}

// StorageClass implements Documents: the class "soon" binds at once, the others wait for a pod.
func (*documents) StorageClass(name string) (*storagev1.StorageClass, error) {
	mode := storagev1.VolumeBindingWaitForFirstConsumer
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, VolumeBindingMode: &mode}
	if name == "soon" {
		class.VolumeBindingMode = nil
	}
	return class, nil
}

// Unread implements Documents.
func (d *documents) Unread() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.unread
}

// set changes the claim of a name; an empty UID deletes it.
func (d *documents) set(name, uid, size string, modes ...v1.PersistentVolumeAccessMode) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.claims, name)
	if uid == "" {
		return
	}
	if modes == nil {
		modes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	}
	d.claims[name] = &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(uid)},
		Spec: v1.PersistentVolumeClaimSpec{AccessModes: modes, Resources: v1.VolumeResourceRequirements{
			Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)},
		}},
	}
}

func (d *documents) setUnread(why string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unread, d.hidden = why, why == away
}

// rig is the claims of a node whose process can be replaced.
type rig struct {
	t interface {
		Helper()
		Fatal(...any)
		Errorf(string, ...any)
	}
	*Claims

	documents *documents
	dir, pods string
	quotas    quotas
	clock     *testingclock.FakeClock
	mu        sync.Mutex
	told      []types.UID
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{
		t: t, dir: filepath.Join(t.TempDir(), "claims"), pods: filepath.Join(t.TempDir(), "pods"),
		documents: &documents{claims: map[string]*v1.PersistentVolumeClaim{}},
		clock:     testingclock.NewFakeClock(time.Unix(1_700_000_000, 0)),
		quotas:    &memoryQuotas{off: errors.New("there are no quotas")},
	}
	r.next(nil)
	return r
}

// folder returns the real disk.
func (r *rig) folder() disk {
	return folder{dir: r.dir, quotas: r.quotas, logger: slog.New(slog.DiscardHandler)}
}

// next replaces the process; the disk is a real one if it is nil.
func (r *rig) next(disk disk) {
	cfg := Config{
		Dir: r.dir, PodsDir: r.pods, Clock: r.clock, Logger: slog.New(slog.DiscardHandler),
		Changed: func(uid types.UID) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.told = append(r.told, uid)
		},
	}
	if disk == nil {
		disk = r.folder()
	}
	r.Claims = newClaims(cfg, disk)
	r.Claims.documents = r.documents
}

// loaded loads the records, for a process without Run.
func (r *rig) loaded() *rig {
	r.t.Helper()
	if !r.load() {
		r.t.Fatal("the records cannot be read")
	}
	return r
}

// isTold reports whether a pod was notified since the last call.
func (r *rig) isTold(uid types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	told := slices.Contains(r.told, uid)
	r.told = nil
	return told
}

// pod returns a pod that names a claim.
func pod(uid, claim string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "pod-" + uid, UID: types.UID(uid)}}
	p.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{
		PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}}}
	return p
}

// ephemeral returns a pod with a generic ephemeral volume.
func ephemeral(uid string) *v1.Pod {
	p := pod(uid, "")
	p.Name = "pod"
	p.Spec.Volumes[0].VolumeSource = v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{
		VolumeClaimTemplate: &v1.PersistentVolumeClaimTemplate{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}},
			Spec: v1.PersistentVolumeClaimSpec{
				AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod},
				Resources: v1.VolumeResourceRequirements{
					Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Mi")},
				},
			},
		},
	}}
	return p
}

// ask asks for the claim of a registered pod, for a process without Run.
func (r *rig) ask(p *v1.Pod) (*v1.PersistentVolumeClaim, *v1.PersistentVolume, error) {
	r.Use(p)
	a := r.serve(request{pod: p, volume: &p.Spec.Volumes[0]}, true)
	return a.claim, a.pv, a.err
}

// volume returns the directory of a pod for a persistent volume, as package persistentvolumes makes it.
func (r *rig) volume(uid types.UID, pv *v1.PersistentVolume) string {
	return filepath.Join(r.pods, string(uid), localVolumes, pv.Name)
}

// mount asks for the claim, and makes the pod's directory for it. It returns the claim's directory.
func (r *rig) mount(p *v1.Pod) (dir string) {
	r.t.Helper()
	_, pv, err := r.ask(p)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := os.MkdirAll(r.volume(p.UID, pv), 0o750); err != nil {
		r.t.Fatal(err)
	}
	return pv.Spec.Local.Path
}

// end removes what there is of a pod.
func (r *rig) end(uid types.UID) {
	r.t.Helper()
	if err := os.RemoveAll(filepath.Join(r.pods, string(uid))); err != nil {
		r.t.Fatal(err)
	}
	r.Forget(uid)
}

// names returns what is in the directory of the namespace, without the dots of records.
func (r *rig) names() []string {
	r.t.Helper()
	entries, err := os.ReadDir(filepath.Join(r.dir, namespace))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		r.t.Fatal(err)
	}
	names := []string{}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}
