package oracle

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	"k8s.io/kubernetes/pkg/kubelet/cm/dra"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/services/syncloop/internal/devices/claimbook"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/claimcheckpoint"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/resourceclaims"
)

// QUARTET_HISTORIES=20000 compares as many histories as before a release.
const histories = 150

// shop is the namespace of all pods.
const shop = "shop"

func TestMain(m *testing.M) {
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	klog.InitFlags(flags)
	if err := flags.Parse([]string{"-logtostderr=false", "-alsologtostderr=false", "-stderrthreshold=FATAL"}); err != nil {
		panic(err)
	}
	klog.SetOutput(io.Discard)
	os.Exit(m.Run())
}

// side is one of the two managers.
type side struct {
	dir     string
	drivers map[string]*driver
	// stop ends the manager, and register registers a driver.
	stop             func()
	register         func(name string) error
	deregister       func(name string)
	prepare, release func(pod *v1.Pod) error
	devices          func(pod *v1.Pod) ([]string, error)
	holds            func(pod *v1.Pod) bool
}

// world is one history on both sides.
type world struct {
	t    *testing.T
	rand *rand.Rand
	api  *fake.Clientset
	// claims are those of the API server, by name.
	claims map[string]*resourceapi.ResourceClaim
	sides  [2]*side // the kubelet's and Quartet's
	pods   map[types.UID]*v1.Pod
	live   map[string]bool
	starts [2]func(w *world, s *side)
	steps  []string
	next   int
	// over is true after an error from which the two go on in different ways on purpose, see errorsOf.
	over bool
}

func (w *world) note(format string, args ...any) {
	w.steps = append(w.steps, fmt.Sprintf(format, args...))
}

func (w *world) fatalf(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("%s\nafter\n  %s", fmt.Sprintf(format, args...), strings.Join(w.steps, "\n  "))
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.fatalf("%v", err)
	}
}

// unready are sources that are not ready, so that the kubelet's manager releases nothing by itself.
type unready struct{}

func (unready) AddSource(string) {}
func (unready) AllReady() bool   { return false }

// startKubelet starts the kubelet's manager.
func startKubelet(w *world, s *side) {
	m, err := dra.NewManager(klog.Background(), w.api, s.dir)
	w.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	noNode := func(context.Context) (*v1.Node, error) {
		return nil, apierrors.NewNotFound(v1.Resource("nodes"), "node")
	}
	w.must(m.Start(ctx, func() []*v1.Pod { return nil }, noNode, unready{}))
	handler := m.GetWatcherHandler()
	s.stop = func() {
		cancel()
		m.Stop()
	}
	s.register = func(name string) error {
		return handler.RegisterPlugin(ctx, name, s.drivers[name].socket, []string{drav1.DRAPluginService}, nil)
	}
	s.deregister = func(name string) { handler.DeRegisterPlugin(ctx, name, s.drivers[name].socket) }
	s.prepare = func(pod *v1.Pod) error { return m.PrepareResources(ctx, pod) }
	s.release = func(pod *v1.Pod) error { return m.UnprepareResources(ctx, pod) }
	s.holds = func(pod *v1.Pod) bool { return m.PodMightNeedToUnprepareResources(pod.UID) }
	s.devices = func(pod *v1.Pod) ([]string, error) {
		info, err := m.GetResources(pod, &pod.Spec.Containers[0])
		if err != nil {
			return nil, err
		}
		var ids []string
		for _, d := range info.CDIDevices {
			ids = append(ids, d.Name)
		}
		return ids, nil
	}
}

// claims gets claims from the API server. Begun is called when the manager runs: it deletes the devices of an earlier
// boot.
type claims struct {
	api   *fake.Clientset
	begun func()
}

func (c claims) Claim(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
	return c.api.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
}

func (claims) SliceDrivers(context.Context) ([]string, error) { return nil, nil }

func (c claims) DeleteSlices(context.Context, string) error {
	c.begun()
	return nil
}

// claim answers a request for a claim. The tracker of the fake clientset is not used, because it makes a REST mapper
// for each write, which took half of the time of the test.
func (w *world) claim(action clienttesting.Action) (handled bool, found apiruntime.Object, err error) {
	name := action.(clienttesting.GetAction).GetName()
	if c := w.claims[name]; c != nil {
		return true, c.DeepCopy(), nil
	}
	return true, nil, apierrors.NewNotFound(resourceapi.Resource("resourceclaims"), name)
}

// startQuartet starts Quartet's manager.
func startQuartet(w *world, s *side) {
	begun := make(chan struct{})
	m, err := resourceclaims.New(resourceclaims.Config{
		Root: s.dir, API: claims{api: w.api, begun: sync.OnceFunc(func() { close(begun) })},
		Boot: fmt.Sprint("boot", len(w.steps)), BootFile: filepath.Join(s.dir, "boot"),
		PodChanged: func(types.UID) {}, Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler),
	})
	w.must(err)
	m.Recover(nil)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	s.stop = func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			w.fatalf("%v", err)
		}
	}
	s.register = func(name string) error {
		<-begun
		return m.Register(name, s.drivers[name].socket, []string{drav1.DRAPluginService})
	}
	s.deregister = func(name string) { m.Deregister(ctx, name, s.drivers[name].socket) }
	s.prepare = func(pod *v1.Pod) error { return m.Prepare(ctx, pod) }
	s.release = func(pod *v1.Pod) error { return m.Release(ctx, pod.UID) }
	s.holds = func(pod *v1.Pod) bool { return m.Uses(pod.UID) }
	s.devices = func(pod *v1.Pod) ([]string, error) { return m.Devices(pod, &pod.Spec.Containers[0]) }
}

// restart replaces both managers by those of the next process.
func (w *world) restart() {
	w.note("restart")
	for i, s := range w.sides {
		if s.stop != nil {
			s.stop()
		}
		w.starts[i](w, s)
		for name := range w.live {
			w.must(s.register(name))
		}
	}
}

// toggle registers or deregisters a driver.
func (w *world) toggle() {
	name := driverNames[w.rand.IntN(len(driverNames))]
	w.note("registered: %v", w.live)
	for _, s := range w.sides {
		if w.live[name] {
			s.deregister(name)
		} else {
			w.must(s.register(name))
		}
	}
	if w.live[name] {
		delete(w.live, name)
	} else {
		w.live[name] = true
	}
}

// put creates a claim, or replaces it by another one of the same name.
func (w *world) put(name string) {
	w.next++
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: shop, Name: name, UID: types.UID(fmt.Sprint(name, "-", w.next)),
	}}
	if w.rand.IntN(20) > 0 {
		claim.Status.Allocation = &resourceapi.AllocationResult{}
		for i := range 1 + w.rand.IntN(2) {
			claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results,
				resourceapi.DeviceRequestAllocationResult{Driver: driverNames[w.rand.IntN(len(driverNames))], Request: requests[i]})
		}
	}
	w.note("claim %s with %v", claim.UID, claim.Status.Allocation)
	w.claims[name] = claim
}

var (
	driverNames = []string{"gpu.example.com", "nic.example.com"}
	requests    = []string{"one", "two"}
	claimNames  = []string{"a", "b", "c"}
)

// create creates a pod with random claims, for most of which it is reserved.
func (w *world) create() {
	w.next++
	uid := types.UID(fmt.Sprint("pod", w.next))
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: string(uid), UID: uid},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "main"}}},
	}
	for _, i := range w.rand.Perm(len(claimNames))[:w.rand.IntN(len(claimNames)+1)] {
		name := claimNames[i]
		reference := v1.PodResourceClaim{Name: "my-" + name, ResourceClaimName: &name}
		switch w.rand.IntN(12) {
		case 0:
			reference = v1.PodResourceClaim{Name: "my-" + name, ResourceClaimTemplateName: &name}
		case 1: // one that is not needed, or not the pod's
			reference = v1.PodResourceClaim{Name: "my-" + name, ResourceClaimTemplateName: &name}
			status := v1.PodResourceClaimStatus{Name: reference.Name}
			if w.rand.IntN(2) == 0 {
				status.ResourceClaimName = &name
			}
			pod.Status.ResourceClaimStatuses = append(pod.Status.ResourceClaimStatuses, status)
		}
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, reference)
		if w.rand.IntN(5) > 0 {
			used := v1.ResourceClaim{Name: reference.Name}
			if w.rand.IntN(2) == 0 {
				used.Request = requests[w.rand.IntN(len(requests))]
			}
			pod.Spec.Containers[0].Resources.Claims = append(pod.Spec.Containers[0].Resources.Claims, used)
		}
		w.reserve(name, uid)
	}
	w.note("%s uses %v in %v", uid, pod.Spec.ResourceClaims, pod.Spec.Containers[0].Resources.Claims)
	w.pods[uid] = pod
}

// reserve reserves a claim for a pod, mostly.
func (w *world) reserve(name string, pod types.UID) {
	claim := w.claims[name]
	if w.rand.IntN(20) == 0 {
		return
	}
	claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{
		Resource: "pods", Name: string(pod), UID: pod,
	})
}

// notCreated is the error with which the kubelet does not release a pod that was never prepared, because it looks for
// its claims. Quartet knows that it has none.
const notCreated = "ResourceClaim not created yet"

// act prepares or releases a random pod, with drivers that may fail.
func (w *world) act() {
	if len(w.pods) == 0 {
		return
	}
	all := slices.Sorted(maps.Keys(w.pods))
	pod := w.pods[all[w.rand.IntN(len(all))]]
	broken := ""
	if w.rand.IntN(6) == 0 {
		broken = claimNames[w.rand.IntN(len(claimNames))]
	}
	for _, s := range w.sides {
		for _, d := range s.drivers {
			d.set(broken)
		}
	}
	what, do := "release", func(s *side) error { return s.release(pod) }
	if w.rand.IntN(3) > 0 {
		what, do = "prepare", func(s *side) error { return s.prepare(pod) }
	}
	w.note("%s %s, and %q is broken", what, pod.UID, broken)
	theirs, ours := do(w.sides[0]), do(w.sides[1])
	if what == "release" && ours == nil && theirs != nil && strings.HasSuffix(theirs.Error(), notCreated) {
		theirs = nil
	}
	if (theirs == nil) != (ours == nil) {
		w.fatalf("the kubelet says %v, Quartet %v", theirs, ours)
	}
	if theirs != nil {
		w.failed(pod, theirs.Error(), ours.Error())
		return
	}
	for _, name := range driverNames {
		if diff := cmp.Diff(w.sides[0].drivers[name].called(), w.sides[1].drivers[name].called()); diff != "" {
			w.fatalf("the calls of %s (-kubelet +Quartet):\n%s", name, diff)
		}
	}
	if what == "release" {
		delete(w.pods, pod.UID)
	}
}

// failed compares the errors of a pod. The kubelet stops at the first claim or driver that fails, in a random order,
// and keeps what it has done until then. Quartet looks at everything before it begins, and asks the other drivers to
// unprepare all the same. Therefore a history ends with the failure of a pod of several claims or drivers.
func (w *world) failed(pod *v1.Pod, theirs, ours string) {
	if len(pod.Spec.ResourceClaims) > 1 {
		w.over = true
		return
	}
	claim := w.claims[strings.TrimPrefix(pod.Spec.ResourceClaims[0].Name, "my-")]
	if a := claim.Status.Allocation; a != nil && len(a.Devices.Results) > 1 {
		w.over = true
		return
	}
	if theirs != ours {
		w.fatalf("the kubelet says %s\nQuartet %s", theirs, ours)
	}
	for _, s := range w.sides {
		for _, d := range s.drivers {
			d.called()
		}
	}
}

// compare compares what the two know.
func (w *world) compare() {
	var known [2][]claimbook.Entry
	for i, s := range w.sides {
		var err error
		known[i], err = claimcheckpoint.Read(s.dir)
		if !errors.Is(err, fs.ErrNotExist) { // Quartet writes the first one in the background
			w.must(err)
		}
		sortEntries(known[i])
	}
	if diff := cmp.Diff(known[0], known[1]); diff != "" && len(known[0])+len(known[1]) > 0 {
		w.fatalf("the checkpoints (-kubelet +Quartet):\n%s", diff)
	}
	for _, pod := range w.pods {
		var holds [2]bool
		var devices [2][]string
		var fails [2]bool
		for i, s := range w.sides {
			ids, err := s.devices(pod)
			slices.Sort(ids)
			holds[i], devices[i], fails[i] = s.holds(pod), slices.Compact(ids), err != nil
		}
		if holds[0] != holds[1] || fails[0] != fails[1] || !slices.Equal(devices[0], devices[1]) {
			w.fatalf("%s has claims: %v; devices: %v; an error: %v (kubelet, Quartet)", pod.UID, holds, devices, fails)
		}
	}
}

func sortEntries(entries []claimbook.Entry) {
	slices.SortFunc(entries, func(a, b claimbook.Entry) int { return strings.Compare(a.Name.Name, b.Name.Name) })
	for _, e := range entries {
		slices.Sort(e.Pods)
	}
}

// TestClaimsAreThoseOfTheKubelet compares random histories: the calls of drivers, errors, devices and the checkpoint.
func TestClaimsAreThoseOfTheKubelet(t *testing.T) {
	count := histories
	if text := os.Getenv("QUARTET_HISTORIES"); text != "" {
		var err error
		if count, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	// Most of the time is spent waiting for sockets, so there are more shards than CPUs.
	shards := 2 * runtime.GOMAXPROCS(0)
	for shard := range shards {
		t.Run(fmt.Sprint("shard", shard), func(t *testing.T) {
			t.Parallel()
			drivers := [2]map[string]*driver{}
			for i := range drivers {
				drivers[i] = map[string]*driver{}
				for _, name := range driverNames {
					drivers[i][name] = serve(t, name)
				}
			}
			root := tempDir(t)
			for seed := shard; seed < count; seed += shards {
				history(t, uint64(seed), filepath.Join(root, fmt.Sprint(seed)), drivers)
			}
		})
	}
}

// tempDir returns a directory that the test removes: in memory, where the machine has that, because the two sides wait
// for the disk after each change.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "dra")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func history(t *testing.T, seed uint64, root string, drivers [2]map[string]*driver) {
	t.Helper()
	const length = 25
	w := &world{
		t: t, rand: rand.New(rand.NewPCG(seed, 1)), api: fake.NewClientset(), pods: map[types.UID]*v1.Pod{},
		claims: map[string]*resourceapi.ResourceClaim{},
		live:   map[string]bool{driverNames[0]: true, driverNames[1]: true},
		starts: [2]func(*world, *side){startKubelet, startQuartet},
	}
	w.api.PrependReactor("get", "resourceclaims", w.claim)
	for i := range w.sides {
		w.sides[i] = &side{dir: filepath.Join(root, fmt.Sprint(i)), drivers: drivers[i]}
		w.must(os.MkdirAll(w.sides[i].dir, 0o700))
		for _, d := range drivers[i] {
			d.called()
		}
	}
	for _, name := range claimNames {
		w.put(name)
	}
	w.restart()
	for step := 0; step < length && !w.over; step++ {
		switch n := w.rand.IntN(20); {
		case n < 6:
			w.create()
		case n < 16:
			w.act()
		case n < 17:
			w.toggle()
		case n < 18:
			w.put(claimNames[w.rand.IntN(len(claimNames))])
		case n < 19:
			w.restart()
		}
		if !w.over {
			w.compare()
		}
	}
	for _, s := range w.sides {
		s.stop()
	}
	w.must(os.RemoveAll(root))
}
