package podcgroups_test

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	testclock "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podtest"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/podcgroups"
	"github.com/quartet-node/quartet/test/eventually"
)

func TestMain(m *testing.M) {
	// The library keeps one connection to systemd for the life of the process.
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("github.com/godbus/dbus/v5.newConn.func1"),
		goleak.IgnoreAnyFunction("github.com/godbus/dbus/v5.(*Conn).inWorker"),
		goleak.IgnoreTopFunction("github.com/coreos/go-systemd/v22/dbus.(*Conn).dispatch.func1"),
	)
}

// memory holds cgroups in memory.
type memory struct {
	mu   sync.Mutex
	have map[string]resources.Resources
	sets int
	// fails holds the errors of cgroups that cannot be written.
	fails map[string]error
	// uses holds the memory usage of cgroups: a limit below it is rejected.
	uses map[string]uint64
}

func (m *memory) Has(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.have[name]
	return ok
}

func (m *memory) Set(name string, r resources.Resources) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.fails[name]; err != nil {
		return err
	}
	if r.Memory > 0 && uint64(r.Memory) < m.uses[name] {
		return errors.New("device or resource busy")
	}
	m.have[name] = r
	m.sets++
	return nil
}

// Limit changes the values that r sets.
func (m *memory) Limit(name string, r resources.Resources) error {
	has := m.get(name)
	if r.CPUShares > 0 {
		has.CPUShares = r.CPUShares
	}
	if r.CPUQuota != 0 {
		has.CPUQuota, has.CPUPeriod = r.CPUQuota, r.CPUPeriod
	}
	if r.Memory != 0 {
		has.Memory = r.Memory
	}
	if r.PIDs != 0 {
		has.PIDs = r.PIDs
	}
	if r.HugePages != nil {
		has.HugePages = r.HugePages
	}
	return m.Set(name, has)
}

func (m *memory) Usage(name string) (podcgroups.Usage, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return podcgroups.Usage{MemoryBytes: m.uses[name]}, nil
}

func (m *memory) Given(name string) (resources.Resources, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	given, found := m.have[name]
	if !found {
		return resources.Resources{}, fs.ErrNotExist
	}
	return given, nil
}

func (m *memory) Remove(_ context.Context, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.have, name)
	return m.fails[name]
}

func (m *memory) fail(name string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fails[name] = err
}

func (m *memory) get(name string) resources.Resources {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.have[name]
}

func (m *memory) names() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.have))
}

// tree is a tree on cgroups in memory. The Node is not known at first.
type tree struct {
	*podcgroups.Tree
	t       *testing.T
	cgroups *memory
	clock   *testclock.FakeClock
	mu      sync.Mutex
	pods    []*v1.Pod
	node    *v1.Node
	waiting string
	events  []string
}

// NodeNormal implements Events.
func (r *tree) NodeNormal(_ context.Context, reason, message string) {
	r.record("Normal", reason, message)
}

// NodeWarning implements Events.
func (r *tree) NodeWarning(_ context.Context, reason, message string) {
	r.record("Warning", reason, message)
}

func (r *tree) record(event ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, strings.Join(event, " "))
}

func (r *tree) recorded() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

func newTree(t *testing.T, change ...func(*podcgroups.Config)) *tree {
	t.Helper()
	r := &tree{
		t: t, clock: testclock.NewFakeClock(time.Unix(1, 0)),
		cgroups: &memory{have: map[string]resources.Resources{}, fails: map[string]error{}, uses: map[string]uint64{}},
	}
	cfg := podcgroups.Config{
		Events:  r,
		Cgroups: r.cgroups, Names: podcgroups.NewNames("cgroupfs", "/"), Limits: resources.Limits{CPUQuota: true}, Clock: r.clock,
		Reserved: []v1.ResourceList{podtest.List("memory", "1Gi")}, PIDs: func() int64 { return 500 }, Logger: slog.New(slog.DiscardHandler),
		Pods: func() ([]*v1.Pod, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.pods, nil
		},
		Node: func(context.Context) (*v1.Node, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.node == nil {
				return nil, errors.New("nodestatus is away")
			}
			return r.node, nil
		},
		Waiting: func(what, why string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			if what == "cgroups" {
				r.waiting = why
			}
		},
	}
	for _, f := range change {
		f(&cfg)
	}
	r.Tree = podcgroups.New(cfg)
	return r
}

func (r *tree) want(pods ...*v1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pods = pods
}

func (r *tree) setNode(node *v1.Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.node = node
}

func (r *tree) waits() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waiting
}

func (r *tree) ensure(pod *v1.Pod, want string) {
	r.t.Helper()
	if name, err := r.Ensure(r.t.Context(), pod); err != nil || name != want {
		r.t.Fatalf("Ensure: %s, %v, want %s", name, err, want)
	}
}

// run runs the tree until the test ends.
func (r *tree) run() {
	ctx, cancel := context.WithCancel(r.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	r.t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			r.t.Errorf("Run: %v, want %v", err, context.Canceled)
		}
	})
	r.turned()
}

// turned waits until Run waits for its timer.
func (r *tree) turned() {
	eventually.That(r.t, "Run waits for its next turn", r.clock.HasWaiters)
}

func TestAPodsCgroupIsMadeWithThoseAboveIt(t *testing.T) {
	r := newTree(t)
	pod := podtest.Pod("u1", podtest.Container(podtest.List("cpu", "500m"), podtest.List("cpu", "1", "memory", "64Mi")))
	r.want(pod, podtest.Pod("u2", podtest.Container(podtest.List("cpu", "500m"), nil)))
	r.ensure(pod, "/kubepods/burstable/podu1")
	if got, want := r.cgroups.names(), []string{"/kubepods", "/kubepods/besteffort", "/kubepods/burstable", "/kubepods/burstable/podu1"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	wanted := resources.ForPod(pod, resources.Limits{CPUQuota: true})
	if diff := cmp.Diff(wanted, r.cgroups.get("/kubepods/burstable/podu1")); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if got := r.cgroups.get("/kubepods/burstable").CPUShares; got != 1024 {
		t.Errorf("burstable has %d shares, want 1024, those of both pods", got)
	}
	if got := r.cgroups.get("/kubepods/besteffort").CPUShares; got != 2 {
		t.Errorf("besteffort has %d shares, want the least, 2", got)
	}

	before := r.cgroups.sets
	r.ensure(pod, "/kubepods/burstable/podu1")
	if r.cgroups.sets != before {
		t.Error("an unchanged file was written again")
	}
	changed := pod.DeepCopy()
	changed.Spec.Containers[0].Resources.Limits = podtest.List("cpu", "1", "memory", "128Mi")
	r.ensure(changed, "/kubepods/burstable/podu1")
	if got := r.cgroups.get("/kubepods/burstable/podu1").Memory; got != 128<<20 {
		t.Errorf("the changed pod has %d bytes of memory, want %d", got, 128<<20)
	}
	// Another program has removed it.
	if err := r.cgroups.Remove(t.Context(), "/kubepods/burstable/podu1"); err != nil {
		t.Fatal(err)
	}
	r.ensure(changed, "/kubepods/burstable/podu1")
	if !r.cgroups.Has("/kubepods/burstable/podu1") {
		t.Error("a removed cgroup was not recreated")
	}
}

func TestAPodsCgroupIsRemovedWhateverItsClassWas(t *testing.T) {
	r := newTree(t)
	pod := podtest.Pod("u1", podtest.Container(nil, nil))
	r.ensure(pod, "/kubepods/besteffort/podu1")
	pod.Spec.Containers[0].Resources.Requests = podtest.List("cpu", "1")
	r.ensure(pod, "/kubepods/burstable/podu1")
	r.ensure(podtest.Pod("u2", podtest.Container(nil, nil)), "/kubepods/besteffort/podu2")
	if err := r.Remove(t.Context(), "u1"); err != nil {
		t.Fatal(err)
	}
	if got, want := r.cgroups.names(), []string{"/kubepods", "/kubepods/besteffort", "/kubepods/besteffort/podu2", "/kubepods/burstable"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	r.cgroups.fail("/kubepods/burstable/podu1", errors.New("device or resource busy"))
	if err := r.Remove(t.Context(), "u1"); err == nil {
		t.Error("Remove of a cgroup that cannot be removed succeeds")
	}
}

// TestAPodWaitsForItsOwnCgroupAndNoOther lets the kernel reject values of the cgroups above.
func TestAPodWaitsForItsOwnCgroupAndNoOther(t *testing.T) {
	r := newTree(t)
	r.cgroups.fail("/kubepods", errors.New("memory.limit_in_bytes: device or resource busy"))
	r.ensure(podtest.Pod("u1", podtest.Container(nil, nil)), "/kubepods/besteffort/podu1")
	if !r.cgroups.Has("/kubepods/besteffort") {
		t.Error("the class of the pod is not limited")
	}
	r.cgroups.fail("/kubepods/besteffort/podu2", errors.New("read-only file system"))
	if _, err := r.Ensure(t.Context(), podtest.Pod("u2", podtest.Container(nil, nil))); err == nil || !strings.Contains(err.Error(), "read-only file system") {
		t.Errorf("a pod whose cgroup cannot be created: %v", err)
	}
	r.ensure(podtest.Pod("u3", podtest.Container(nil, nil)), "/kubepods/besteffort/podu3")
}

func TestAllPodsAreLimitedOnceTheNodeIsKnown(t *testing.T) {
	r := newTree(t)
	r.run()
	if got := r.cgroups.get("/kubepods"); got.Memory != 0 || !r.cgroups.Has("/kubepods/burstable") {
		t.Errorf("before the Node is known: %+v in %v", got, r.cgroups.names())
	}
	r.setNode(&v1.Node{Status: v1.NodeStatus{Capacity: podtest.List("cpu", "2", "memory", "4Gi"), Allocatable: podtest.List("cpu", "1", "memory", "1Mi")}})
	r.clock.Step(5 * time.Second)
	want := resources.Resources{
		CPUShares: 2048, Memory: 3 << 30, PIDs: 500, HugePages: map[int64]int64{},
		Unified: map[string]string{"memory.min": "0", "memory.low": "0"}, // takes back what an earlier process protected
	}
	eventually.That(t, "all pods have the machine less what is reserved", func() bool { return cmp.Equal(want, r.cgroups.get("/kubepods")) })

	r.turned()
	r.want(podtest.Pod("u1", podtest.Container(podtest.List("cpu", "3"), nil)))
	r.clock.Step(time.Minute)
	eventually.That(t, "a minute later the weight of burstable pods is that of those that there are now", func() bool {
		return r.cgroups.get("/kubepods/burstable").CPUShares == 3072
	})
}

func TestTheHealthSaysThatCgroupsCannotBeMade(t *testing.T) {
	r := newTree(t)
	r.cgroups.fail("/kubepods/burstable", errors.New("controller cpu: read-only file system"))
	r.run()
	eventually.That(t, "the health says it", func() bool { return strings.Contains(r.waits(), "read-only file system") })
	r.cgroups.fail("/kubepods/burstable", nil)
	r.turned()
	r.clock.Step(5 * time.Second)
	eventually.That(t, "the health says nothing any more", func() bool { return r.waits() == "" })
}

// TestChangesOfTheLimitOfAllPodsAreEvents checks that changes are recorded as events, and none before the Node is
// known.
func TestChangesOfTheLimitOfAllPodsAreEvents(t *testing.T) {
	r := newTree(t)
	r.run()
	want := []string{}
	next := func(what string, after time.Duration, events ...string) {
		t.Helper()
		r.turned()
		r.clock.Step(after)
		want = append(want, events...)
		eventually.That(t, what, func() bool { return r.clock.HasWaiters() && len(r.recorded()) >= len(want) })
		if diff := cmp.Diff(want, r.recorded()); diff != "" {
			t.Errorf("%s: -want +got\n%s", what, diff)
		}
	}
	if recorded := r.recorded(); len(recorded) > 0 {
		t.Errorf("before the Node is known: %q", recorded)
	}
	const yes = "Normal NodeAllocatableEnforced Updated Node Allocatable limit across pods"
	const no = `Warning FailedNodeAllocatableEnforcement Failed to update Node Allocatable Limits "/kubepods": cgroupsPerQOS: device or resource busy`
	r.setNode(&v1.Node{Status: v1.NodeStatus{Capacity: podtest.List("cpu", "2", "memory", "4Gi")}})
	next("they are", 5*time.Second, yes)
	next("nothing has changed", time.Minute)
	r.cgroups.fail("/kubepods", errors.New("device or resource busy"))
	r.setNode(&v1.Node{Status: v1.NodeStatus{Capacity: podtest.List("cpu", "2", "memory", "8Gi")}})
	next("they cannot be", time.Minute, no)
	next("they still cannot be", time.Minute)
	r.cgroups.fail("/kubepods", nil)
	next("they are again", time.Minute, yes)
}
