package volumes_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/mount-utils"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testTimeout = 60 * time.Second

// rig is a volume manager with a fake clock and mounts in memory.
type rig struct {
	t       testing.TB
	dir     string
	clock   *clocktesting.FakeClock
	mounter *mount.FakeMounter
	plugin  *plugin
	events  *events
	spans   *tracetest.SpanRecorder
	tracer  trace.Tracer
	// registry has the metrics of the present process.
	registry *prometheus.Registry
	manager  *volumes.Manager
	stop     func()
}

func newRig(t testing.TB) *rig {
	t.Helper()
	r := &rig{
		t: t, dir: t.TempDir(), clock: clocktesting.NewFakeClock(time.Unix(1_700_000_000, 0)),
		mounter: mount.NewFakeMounter(nil), events: &events{},
	}
	r.plugin = &plugin{mounter: r.mounter, fail: map[string]error{}, hang: map[string]chan struct{}{}}
	r.spans = tracetest.NewSpanRecorder()
	r.tracer = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r.spans)).Tracer("test")
	r.start()
	t.Cleanup(func() { r.stop() })
	return r
}

// start starts a new process that knows only the disk and the mounts.
func (r *rig) start() {
	r.t.Helper()
	r.restart(r.plugin)
}

// restart is start with another plugin in the place of the rig's.
func (r *rig) restart(plugin volumes.Plugin) {
	r.t.Helper()
	r.registry = prometheus.NewRegistry()
	manager, err := volumes.New(volumes.Config{
		Metrics: volumes.NewMetrics(r.registry),
		PodsDir: r.dir, Clock: r.clock, Events: r.events, Tracer: r.tracer, Logger: slog.New(slog.DiscardHandler), Places: 4,
		Plugins: []volumes.Plugin{plugin, &volumes.EmptyDir{Mounter: r.mounter}, volumes.HostPath{}},
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
	r.stop = sync.OnceFunc(func() {
		cancel()
		for {
			select {
			case <-ended:
				return
			case <-time.After(time.Millisecond):
				// The manager waits for a hanging operation until the clock advances. A slow operation must end before the next
				// process starts, as it does at the end of a real process.
				if r.plugin.hangs() {
					r.clock.Step(time.Second)
				}
			}
		}
	})
}

func (r *rig) path(uid types.UID, plugin, name string) string {
	return filepath.Join(r.dir, string(uid), "volumes", plugin, name)
}

// want marks a pod as desired and waits for its volumes.
func (r *rig) want(pod *v1.Pod) error {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	r.manager.Want(ctx, pod)
	return r.manager.Wait(ctx, pod)
}

func (r *rig) release(uid types.UID) error {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	return r.manager.Release(ctx, uid)
}

// newPod returns a pod with mounted configMap volumes, which the rig's plugin implements.
func newPod(uid types.UID, names ...string) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pod-" + string(uid), UID: uid}}
	for _, name := range names {
		with(pod, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{}}})
	}
	return pod
}

// with adds a mounted volume to a pod.
func with(pod *v1.Pod, volume v1.Volume) *v1.Pod {
	pod.Spec.Volumes = append(pod.Spec.Volumes, volume)
	if len(pod.Spec.Containers) == 0 {
		pod.Spec.Containers = []v1.Container{{Name: "app"}}
	}
	c := &pod.Spec.Containers[0]
	c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: volume.Name, MountPath: "/" + volume.Name})
	return pod
}

// plugin is a fake kind of volume that is mounted and updated, and can fail and hang.
type plugin struct {
	mounter *mount.FakeMounter

	mu sync.Mutex
	// fail and hang have the error of SetUp and TearDown, and the channel that they wait for, by the name of the volume.
	fail map[string]error
	hang map[string]chan struct{}
	// asks is whom SetUp waits for; empty for nobody.
	asks string
	// fixed is true for a kind whose content never changes.
	fixed bool
	// log has the finished operations, as "setup NAME".
	log []string
	// side counts the operations in progress by path; most is the largest total.
	side map[string]int
	now  int
	most int
	// last is the last request of SetUp.
	last volumes.Request
}

func (p *plugin) Name() string                 { return "kubernetes.io~configmap" }
func (p *plugin) CanSupport(v *v1.Volume) bool { return v.ConfigMap != nil }
func (p *plugin) Refreshes() bool              { return !p.fixed }
func (p *plugin) Claim(string) volumes.Bound   { return volumes.Bound{Driver: "disks.example.com"} }

// attachError is the error of a volume that the cluster is attaching.
type attachError struct{ waitError }

func (attachError) IsRoutine() bool { return true }

// waitError is the error of a volume that waits for something.
type waitError string

func (e waitError) Error() string    { return "it waits for " + string(e) }
func (e waitError) WaitsFor() string { return string(e) }

func (p *plugin) SetUp(ctx context.Context, r volumes.Request) error {
	if p.asks != "" {
		defer volumes.Asking(ctx, p.asks)()
	}
	if err := p.enter("setup", r.Dir); err != nil {
		return err
	}
	defer p.leave(r.Dir)
	p.mu.Lock()
	p.last = r
	p.mu.Unlock()
	if err := os.MkdirAll(r.Dir, 0o750); err != nil {
		return err
	}
	if p.isMounted(r.Dir) {
		return nil
	}
	return p.mounter.Mount("tmpfs", r.Dir, "tmpfs", nil)
}

func (p *plugin) TearDown(_ context.Context, dir string) error {
	if err := p.enter("teardown", dir); err != nil {
		return err
	}
	defer p.leave(dir)
	if p.isMounted(dir) {
		if err := p.mounter.Unmount(dir); err != nil {
			return err
		}
	}
	return os.RemoveAll(dir)
}

func (p *plugin) isMounted(dir string) bool {
	points, _ := p.mounter.List()
	return slices.ContainsFunc(points, func(m mount.MountPoint) bool { return m.Path == dir })
}

func (p *plugin) enter(what, dir string) error {
	name := filepath.Base(dir)
	p.mu.Lock()
	p.log = append(p.log, what+" "+name)
	if p.side == nil {
		p.side = map[string]int{}
	}
	p.side[dir]++
	p.now++
	p.most = max(p.most, p.now)
	hang, err := p.hang[name], p.fail[name]
	twice := p.side[dir] > 1
	p.mu.Unlock()
	if twice {
		panic("two at a time at " + dir)
	}
	if hang != nil {
		<-hang
	}
	if err != nil {
		p.leave(dir)
	}
	return err
}

func (p *plugin) leave(dir string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.side[dir]--
	p.now--
}

// failing makes a volume fail from now on; nil makes it succeed.
func (p *plugin) failing(name string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fail[name] = err
}

// hanging makes a volume hang until release is called.
func (p *plugin) hanging(name string) (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := make(chan struct{})
	p.hang[name] = c
	return sync.OnceFunc(func() {
		p.mu.Lock()
		delete(p.hang, name)
		p.mu.Unlock()
		close(c)
	})
}

// hangs reports whether a volume hangs.
func (p *plugin) hangs() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.hang) > 0
}

func (p *plugin) lastRequest() volumes.Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}

func (p *plugin) count(what string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, one := range p.log {
		if one == what {
			n++
		}
	}
	return n
}

// events records events.
type events struct {
	mu     sync.Mutex
	events []string
}

func (e *events) Warning(_ context.Context, pod *v1.Pod, _, reason, message string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.events = append(e.events, pod.Name+" "+reason+" "+message)
}

func (e *events) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return strings.Join(e.events, "\n")
}
