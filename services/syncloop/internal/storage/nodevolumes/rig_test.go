package nodevolumes

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/csidrivers"
	"github.com/quartet-node/quartet/test/csidriver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const driverName = "dirs.example.com"

// world is what is outside of the process: configmux's objects, the driver, and which volumes are in use.
type world struct {
	mu      sync.Mutex
	classes map[string]*storagev1.StorageClass
	secrets map[string]*v1.Secret
	used    map[string]bool
	away    bool
	told    []string
	conn    *grpc.ClientConn
}

// StorageClass implements Objects.
func (w *world) StorageClass(name string) (*storagev1.StorageClass, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if class := w.classes[name]; class != nil {
		return class, nil
	}
	return nil, apierrors.NewNotFound(storagev1.Resource("storageclass"), name)
}

// Secret implements Objects.
func (w *world) Secret(_ context.Context, namespace, name string) (*v1.Secret, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if secret := w.secrets[namespace+"/"+name]; secret != nil {
		return secret, nil
	}
	return nil, apierrors.NewNotFound(v1.Resource("secret"), name)
}

// Conn implements Drivers.
func (w *world) Conn(name string) (grpc.ClientConnInterface, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.away || name != driverName {
		return nil, &csidrivers.NotRegisteredError{Driver: name}
	}
	return w.conn, nil
}

// Nodes implements Drivers.
func (w *world) Nodes() []csidrivers.Node {
	return []csidrivers.Node{{Driver: driverName, ID: "machine-1", Topology: map[string]string{"zone": "a"}}}
}

// uses reports whether a volume is in use.
func (w *world) uses(_, handle string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.used[handle]
}

// set changes the world.
func (w *world) set(change func(w *world)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(w)
}

// rig is the volumes of a node whose process can be replaced.
type rig struct {
	t *testing.T
	*Volumes
	*world
	driver *csidriver.Plugin
	dir    string
	cfg    Config
	stop   func()
}

func newRig(t *testing.T) *rig {
	t.Helper()
	root, err := os.MkdirTemp("", "nv") // the path of a socket is short
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(root)) })
	r := &rig{t: t, dir: filepath.Join(root, "state"), world: &world{
		classes: map[string]*storagev1.StorageClass{}, secrets: map[string]*v1.Secret{}, used: map[string]bool{},
	}}
	r.driver = csidriver.NewPlugin(driverName, "machine-1", root, filepath.Join(root, "csi.sock"))
	must(t, r.driver.Serve())
	t.Cleanup(r.driver.Stop)
	_, err = r.driver.NodeGetInfo(t.Context(), nil) // as when a driver is registered
	must(t, err)
	r.conn, err = grpc.NewClient("unix://"+r.driver.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	t.Cleanup(func() { must(t, r.conn.Close()) })
	r.addClass(func(*storagev1.StorageClass) {})
	r.cfg = Config{
		Dir: r.dir, Objects: r.world, Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler),
		Timeout: 30 * time.Second,
		Changed: func(namespace, name string) { r.set(func(w *world) { w.told = append(w.told, namespace+"/"+name) }) },
	}
	r.next(nil)
	return r
}

// addClass adds the class "fast".
func (r *rig) addClass(change func(*storagev1.StorageClass)) {
	class := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: driverName, AllowVolumeExpansion: ptr.To(true),
		Parameters: map[string]string{"kind": "ssd", fsTypeParameter: "xfs"}, MountOptions: []string{"noatime"},
	}
	change(class)
	r.set(func(w *world) { w.classes["fast"] = class })
}

// next replaces the process, which does not run; the disk is a real one if it is nil.
func (r *rig) next(d disk) {
	r.t.Helper()
	if d == nil {
		d = folder{dir: r.dir, logger: r.cfg.Logger}
	}
	v := newVolumes(r.cfg, d)
	v.Connect(r.world, r.world.uses)
	r.Volumes = v
}

// run lets the process run until the end of the test, or until stop is called.
func (r *rig) run() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	var once sync.Once
	r.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				r.t.Errorf("Run returned %v", err)
			}
		})
	}
	r.t.Cleanup(r.stop)
}

// steps takes the steps that are due, without Run, until there is none, and returns the first failure.
func (r *rig) steps() error {
	for {
		due := r.due()
		if len(due) == 0 {
			return nil
		}
		for e, s := range due {
			if err := r.take(r.t.Context(), e, s); err != nil {
				return err
			}
		}
	}
}

// use marks a volume as in use, or as not in use.
func (r *rig) use(pv *v1.PersistentVolume, is bool) {
	r.set(func(w *world) { w.used[pv.Spec.CSI.VolumeHandle] = is })
	r.Check()
}

// provide returns the volume of a claim that can be had.
func (r *rig) provide(claim *v1.PersistentVolumeClaim) Volume {
	r.t.Helper()
	volume, err := r.Provide(r.t.Context(), claim)
	must(r.t, err)
	return volume
}

// inDriver returns the volumes that the driver has.
func (r *rig) inDriver() []string {
	r.t.Helper()
	files, err := filepath.Glob(r.driver.Volume("*.json"))
	must(r.t, err)
	for i, file := range files {
		files[i] = filepath.Base(file[:len(file)-len(".json")])
	}
	return files
}

// onDisk returns the files of the records.
func (r *rig) onDisk() []string {
	r.t.Helper()
	entries, err := os.ReadDir(r.dir)
	must(r.t, err)
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// calls returns how often the driver was asked.
func (r *rig) calls(method string) int { return len(r.driver.Calls(method)) }

// called returns the last request of a method.
func called[R any](r *rig, method string) R {
	r.t.Helper()
	all := r.driver.Calls(method)
	if len(all) == 0 {
		r.t.Fatalf("%s was not called", method)
	}
	return all[len(all)-1].Request.(R) //nolint:forcetypeassert // the method has it
}

func claim(uid, size string, changes ...func(*v1.PersistentVolumeClaim)) *v1.PersistentVolumeClaim {
	c := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data", UID: types.UID(uid)},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, StorageClassName: ptr.To("fast"),
			Resources: v1.VolumeResourceRequirements{
				Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)},
			},
		},
	}
	for _, change := range changes {
		change(c)
	}
	return c
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}
