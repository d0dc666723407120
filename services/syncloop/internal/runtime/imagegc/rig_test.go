package imagegc_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/imagegc"
	"github.com/quartet-node/quartet/test/fakecri"
	"github.com/quartet-node/quartet/test/harness"
	"github.com/quartet-node/quartet/test/logbuffer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testTimeout = time.Minute

// rig is a Collector on a runtime, with a disk and a clock that the test controls.
type rig struct {
	t        testing.TB
	ctx      context.Context
	clock    *clocktesting.FakeClock
	registry *prometheus.Registry
	runtime  internalapi.RuntimeService
	images   internalapi.ImageManagerService
	config   imagegc.Config
	log      logbuffer.Buffer

	*imagegc.Collector

	mu       sync.Mutex
	usage    imagegc.Usage
	fails    error
	used     map[string]time.Time
	recorded []string
	// onRetire is called before an image is retired.
	onRetire func(id string)
}

func newRig(t testing.TB, endpoint string, policy imagegc.Policy) *rig {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	runtime := harness.ConnectCRI(ctx, t, endpoint)
	r := &rig{
		t: t, ctx: ctx, clock: clocktesting.NewFakeClock(epoch), registry: prometheus.NewRegistry(),
		used: map[string]time.Time{}, usage: imagegc.Usage{Capacity: 1000, Available: 1000},
	}
	r.runtime, r.images = runtime.Runtime, runtime.Images
	tracer := telemetry.Off()
	r.config = imagegc.Config{
		Runtime: runtime.Client.Runtime, Images: runtime.Client.Images, Usage: r.diskUsage, Uses: r, Policy: policy,
		Clock: r.clock, Tracer: tracer, Calls: cri.NewCaller(tracer, endpoint),
		Logger: slog.New(slog.NewTextHandler(&r.log, nil)), Metrics: imagegc.NewMetrics(r.registry), Events: r,
	}
	r.Collector = imagegc.New(r.config)
	return r
}

// NodeWarning implements imagegc.Events.
func (r *rig) NodeWarning(_ context.Context, reason, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recorded = append(r.recorded, reason+": "+message)
}

// events returns the events since the last call.
func (r *rig) events() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	events := r.recorded
	r.recorded = nil
	return events
}

func (r *rig) diskUsage(string) (imagegc.Usage, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.usage, r.fails
}

// disk sets the available part of 1000 bytes.
func (r *rig) disk(available int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.usage.Available = available
}

// failDisk makes the usage of the file system fail.
func (r *rig) failDisk(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fails = err
}

// UsedAt and Retire replace those of images.Puller.
func (r *rig) UsedAt(id string) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.used[id]
}

func (r *rig) Retire(id string, since time.Time) bool {
	if r.onRetire != nil {
		r.onRetire(id)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.used[id].After(since)
}

func (r *rig) use(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used[id] = r.clock.Now()
}

// there returns the tags of the runtime's images.
func (r *rig) imageList() string {
	r.t.Helper()
	list, err := r.images.ListImages(r.ctx, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	var names []string
	for _, image := range list {
		names = append(names, strings.Join(image.GetRepoTags(), "+"))
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// round runs a round some minutes later, and compares the remaining images.
func (r *rig) round(minutes int, want string) {
	r.t.Helper()
	r.clock.Step(time.Duration(minutes) * time.Minute)
	r.Round(r.ctx)
	if got := r.imageList(); got != want {
		r.t.Errorf("after %s the images are %q, want %q\n%s", r.clock.Since(epoch), got, want, r.logged())
	}
}

// logged returns the log since the last call.
func (r *rig) logged() string {
	return r.log.Take()
}

// wantCount compares a counter.
func (r *rig) wantCount(name, reason string, want float64) {
	r.t.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	got := 0.0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && m.GetLabel()[0].GetValue() == reason {
				got = m.GetCounter().GetValue()
			}
		}
	}
	if got != want {
		r.t.Errorf("%s{reason=%q} is %v, want %v", name, reason, got, want)
	}
}

var kubelets = imagegc.Policy{HighPercent: 85, LowPercent: 80, MinAge: 2 * time.Minute}

// onFake returns a rig on a fake runtime with images of 100 bytes each.
func onFake(t *testing.T, policy imagegc.Policy, images ...string) (*rig, *fakecri.Server) {
	t.Helper()
	fake := fakecri.New(t)
	for _, name := range images {
		fake.AddImage(name, 100)
	}
	return newRig(t, fake.Endpoint(), policy), fake
}

// run starts a container of an image, and returns its ID and its sandbox's.
func (r *rig) run(image string, mounted ...string) (container, sandbox string) {
	r.t.Helper()
	config := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: image, Namespace: "ns", Uid: image},
	}
	sandbox, err := r.runtime.RunPodSandbox(r.ctx, config, "")
	if err != nil {
		r.t.Fatal(err)
	}
	container, err = r.runtime.CreateContainer(r.ctx, sandbox, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Image: &runtimeapi.ImageSpec{Image: image},
		Annotations: map[string]string{podlabels.ImageVolumes: strings.Join(mounted, ",")},
	}, config)
	if err != nil {
		r.t.Fatal(err)
	}
	return container, sandbox
}

func (r *rig) remove(container string) {
	r.t.Helper()
	if err := r.runtime.RemoveContainer(r.ctx, container); err != nil {
		r.t.Fatal(err)
	}
}

// id returns the fake runtime's ID of an image.
func id(name string) string { return "sha256:" + name }
