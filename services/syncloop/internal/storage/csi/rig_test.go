package csi_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/csi"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/csidrivers"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/persistentvolumes"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/selinux"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
	"github.com/quartet-node/quartet/test/csidriver"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/require"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	driverName = "disks.example.com"
	canStage   = csispec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME
	secretText = "open sesame"
)

// drivers is the list of registered drivers.
type drivers struct {
	mu    sync.Mutex
	conns map[string]*grpc.ClientConn
}

func (d *drivers) Conn(name string) (grpc.ClientConnInterface, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conns[name] == nil {
		return nil, &csidrivers.NotRegisteredError{Driver: name}
	}
	return d.conns[name], nil
}

// register connects to a socket; an empty one unregisters the driver.
func (d *drivers) register(t testing.TB, name, socket string) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if conn := d.conns[name]; conn != nil {
		_ = conn.Close()
		delete(d.conns, name)
	}
	if socket == "" {
		return
	}
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	d.conns[name] = conn
}

// cluster has the objects of the cluster.
type cluster struct {
	mu       sync.Mutex
	drivers  map[string]*storagev1.CSIDriver
	attached map[string]map[string]string
	// detaching has the volumes whose attachment is being deleted. What is known of it is old.
	detaching map[string]bool
	secrets   map[string]*v1.Secret
	// refused has the secrets whose change a pod waits for: "UID NAMESPACE/NAME".
	refused map[string]bool
	// slow delays the answers about secrets and tokens until it is closed; nil for no delay.
	slow chan struct{}
	// log has events, and what is recorded in claims.
	log []string
}

func (c *cluster) Driver(_ context.Context, name string) (*storagev1.CSIDriver, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.drivers[name], nil
}

func (c *cluster) Attachment(_ context.Context, _, handle string) (map[string]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	values, ok := c.attached[handle]
	if !ok {
		return nil, errors.New("the volume is not attached")
	}
	return values, nil
}

func (c *cluster) AttachmentNow(ctx context.Context, driver, handle string) (map[string]string, error) {
	c.mu.Lock()
	detaching := c.detaching[handle]
	c.mu.Unlock()
	if detaching {
		return nil, errors.New("volume attachment is being deleted")
	}
	return c.Attachment(ctx, driver, handle)
}

func (c *cluster) Secret(_ context.Context, namespace, name string) (*v1.Secret, error) {
	if c.slow != nil {
		<-c.slow
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.secrets[namespace+"/"+name]; s != nil {
		return s, nil
	}
	return nil, fmt.Errorf("secrets %q not found", name)
}

func (c *cluster) Refused(pod types.UID, secret *v1.Secret) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refused == nil {
		c.refused = map[string]bool{}
	}
	c.refused[string(pod)+" "+secret.Namespace+"/"+secret.Name] = true
}

func (c *cluster) Accepted(pod types.UID, namespace, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.refused, string(pod)+" "+namespace+"/"+name)
}

// Token returns a token for every audience.
func (c *cluster) Token(_ context.Context, pod *v1.Pod, audience string, seconds int64) (string, error) {
	if c.slow != nil {
		<-c.slow
	}
	return fmt.Sprintf("token-of-%s-for-%s-%d", pod.Name, audience, seconds), nil
}

// rig is a plugin with a driver that really mounts.
type rig struct {
	t       testing.TB
	root    string
	driver  *csidriver.Driver
	drivers *drivers
	// calls times the calls of drivers; nil for none.
	calls   *csi.Metrics
	cluster *cluster
	plugin  *csi.Plugin
	timeout time.Duration
	tracer  trace.Tracer
	// boot is that of the next process; "boot-1" if empty.
	boot string
	// node returns why the Node's status does not have a volume as attached; nil as long as it is not asked for.
	node func(name string) error
	// selinux is that of the machine of the next process.
	selinux selinux.Host
	// freed returns the pods that were woken because they may get a volume.
	freed func() []types.UID
	// measured returns the measured operations: plugin, name and whether it has succeeded.
	measured func() []string
	// clock is the clock of retries.
	clock clock.WithTicker
	// changes counts the changes of the volumes in use.
	changes func() int
	stop    func()
}

// newRig returns a rig with a driver without attachment.
func newRig(t testing.TB, can ...csispec.NodeServiceCapability_RPC_Type) *rig {
	t.Helper()
	require.Root(t, "mounting")
	dir, err := os.MkdirTemp("", "csi") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unmountAll(t, dir)
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Mkdir(filepath.Join(dir, "driver"), 0o700); err != nil {
		t.Fatal(err)
	}
	r := &rig{
		t: t, root: filepath.Join(dir, "root"), driver: csidriver.New(filepath.Join(dir, "driver"), can...),
		drivers: &drivers{conns: map[string]*grpc.ClientConn{}},
		cluster: &cluster{drivers: map[string]*storagev1.CSIDriver{}, attached: map[string]map[string]string{},
			detaching: map[string]bool{}, secrets: map[string]*v1.Secret{}},
		timeout: 30 * time.Second, clock: clock.RealClock{},
	}
	r.cluster.drivers[driverName] = newObject()
	r.serve()
	t.Cleanup(func() { r.driver.Stop() })
	r.drivers.register(t, driverName, r.driver.Socket())
	t.Cleanup(func() { r.drivers.register(t, driverName, "") })
	r.start()
	t.Cleanup(func() { r.stop() })
	return r
}

// newObject returns the CSIDriver of a driver without attachment, with the API server's defaults.
func newObject() *storagev1.CSIDriver {
	return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}, Spec: storagev1.CSIDriverSpec{
		AttachRequired: ptr.To(false), FSGroupPolicy: ptr.To(storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy),
		VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent},
	}}
}

func (r *rig) serve() {
	r.t.Helper()
	if err := r.driver.Serve(); err != nil {
		r.t.Fatal(err)
	}
}

// start starts a process, which knows only the disk.
func (r *rig) start() {
	r.t.Helper()
	var mu sync.Mutex
	changes := 0
	r.changes = func() int {
		mu.Lock()
		defer mu.Unlock()
		return changes
	}
	var freed []types.UID
	r.freed = func() []types.UID {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(freed)
	}
	var measured []string
	r.measured = func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(measured)
	}
	registered := csi.Drivers(r.drivers)
	if r.calls != nil {
		registered = timed{r.drivers, r.calls}
	}
	plugin, err := csi.New(csi.Config{
		Measured: func(plugin, operation string, _ bool, _ time.Duration, err error) {
			mu.Lock()
			defer mu.Unlock()
			measured = append(measured, fmt.Sprint(plugin, " ", operation, " ", err == nil))
		},
		SELinux: r.selinux,
		Freed: func(pod types.UID) {
			mu.Lock()
			defer mu.Unlock()
			freed = append(freed, pod)
		},
		Root: r.root, Boot: cmp.Or(r.boot, "boot-1"), NodeName: "node-1", Drivers: registered, Cluster: r.cluster, Claims: r.cluster, Events: r.cluster, Tokens: r.cluster,
		InUseChanged: func() {
			mu.Lock()
			defer mu.Unlock()
			changes++
		},
		Mounts: volumes.Machine{}, Clock: r.clock, Logger: slog.New(slog.DiscardHandler), Timeout: r.timeout,
		Tracer: r.tracer,
		Attached: func(_ context.Context, name string) error {
			if r.node == nil {
				return nil
			}
			return r.node(name)
		},
	})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = plugin.Run(ctx)
	}()
	r.plugin = plugin
	r.stop = func() {
		cancel()
		<-ended
	}
}

func newPod(uid types.UID) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pod-" + string(uid), UID: uid},
		Spec:       v1.PodSpec{ServiceAccountName: "clerk"},
	}
}

// newPV returns a persistent volume of the driver.
func newPV(name, handle string) *v1.PersistentVolume {
	return &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PersistentVolumeSpec{
		AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
		PersistentVolumeSource: v1.PersistentVolumeSource{
			CSI: &v1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: handle},
		},
	}}
}

// request returns the request for a pod's volume, as the plugin for claims makes it.
func (r *rig) request(pod *v1.Pod, pv *v1.PersistentVolume) persistentvolumes.Request {
	return persistentvolumes.Request{
		Pod: pod, PV: pv, Volume: &v1.Volume{Name: "files"}, Dir: r.dir(pod.UID, pv.Name),
	}
}

func (r *rig) dir(uid types.UID, name string) string {
	return filepath.Join(r.root, "pods", string(uid), "volumes/kubernetes.io~csi", name)
}

// mount mounts a volume and checks that it is there.
func (r *rig) mount(request persistentvolumes.Request) {
	r.t.Helper()
	path, err := r.plugin.Mount(r.t.Context(), request)
	if err != nil {
		r.t.Fatal(err)
	}
	if is, err := (volumes.Machine{}).IsMountPoint(path); err != nil || !is {
		r.t.Fatalf("%s is mounted: %t, %v", path, is, err)
	}
}

// unmount unmounts a volume and checks that nothing of it is left.
func (r *rig) unmount(dir string) {
	r.t.Helper()
	eventually.That(r.t, "it is unmounted", func() bool {
		err := r.plugin.Unmount(r.t.Context(), dir)
		if err != nil && !errors.Is(err, unix.EBUSY) { // another process may look at a loop device at this moment
			r.t.Fatal(err)
		}
		return err == nil
	})
	if _, err := os.Lstat(dir); !os.IsNotExist(err) {
		r.t.Errorf("%s is left: %v", dir, err)
	}
}

// ends waits until nothing is staged, and checks that nothing is left and that nothing went wrong.
func (r *rig) ends() {
	r.t.Helper()
	defer func() {
		if left := r.left(); len(left) > 0 {
			r.t.Errorf("left are %v; calls: %v", left, r.driver.Calls(""))
		}
	}()
	eventually.That(r.t, "nothing is left", func() bool { return len(r.left()) == 0 })
	for _, wrong := range r.driver.Wrong() {
		r.t.Error(wrong)
	}
	if at := mountsBelow(r.t, r.root); len(at) > 0 {
		r.t.Errorf("mounted: %v, want none", at)
	}
}

// left returns the files and links below the root, and the directories of volumes.
func (r *rig) left() (paths []string) {
	_ = filepath.WalkDir(r.root, func(path string, entry fs.DirEntry, err error) error {
		depth := strings.Count(strings.TrimPrefix(path, r.root), "/")
		if name := entry.Name(); err == nil && (!entry.IsDir() || depth == 5 && name != "publish" && name != "staging") {
			paths = append(paths, path)
		}
		return nil
	})
	return paths
}

func mountsBelow(t testing.TB, dir string) (at []string) {
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

func unmountAll(t testing.TB, dir string) {
	t.Helper()
	at := mountsBelow(t, dir)
	for i := len(at) - 1; i >= 0; i-- {
		_ = unix.Unmount(at[i], unix.MNT_DETACH)
	}
}

// last returns the last call of a method.
func last[T any](r *rig, method string) T {
	r.t.Helper()
	calls := r.driver.Calls(method)
	if len(calls) == 0 {
		r.t.Fatalf("no call of %s", method)
	}
	return calls[len(calls)-1].Request.(T) //nolint:forcetypeassert // the method determines it
}

// groupOf returns the group of a directory.
func groupOf(t *testing.T, dir string) uint32 {
	t.Helper()
	var stat unix.Stat_t
	if err := unix.Stat(dir, &stat); err != nil {
		t.Fatal(err)
	}
	return stat.Gid
}

// Claim implements persistentvolumes.Claims.
func (c claims) Claim(
	_ context.Context, _ *v1.Pod, v *v1.Volume,
) (*v1.PersistentVolumeClaim, *v1.PersistentVolume, error) {
	name := v.PersistentVolumeClaim.ClaimName
	return &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}}, c[name], nil
}

// run runs a function until stop is called.
func run(t *testing.T, f func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = f(ctx)
	}()
	return func() {
		cancel()
		<-ended
	}
}
