package podresources_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/cpuset"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/services/syncloop/internal/api/podresources"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/allocation"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/claimbook"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/memory"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/numa"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a node that serves the API, with a client.
type rig struct {
	podresourcesv1.PodResourcesListerClient

	t       *testing.T
	root    string
	clock   *clocktesting.FakePassiveClock
	counted *prometheus.Registry

	mu   sync.Mutex
	pods []*v1.Pod
	err  error
}

func newRig(t *testing.T) *rig {
	t.Helper()
	root, err := os.MkdirTemp("", "podresources") // The path of a socket must be short.
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(root)) })
	r := &rig{t: t, root: root, clock: clocktesting.NewFakePassiveClock(time.Now()), counted: prometheus.NewRegistry()}
	r.connect()
	return r
}

// gpus are the devices of a node whose pod shop/web, with the UID web, has one.
type gpus struct{}

func (gpus) Held(pod types.UID, container string) map[string][]allocation.Device {
	if pod != "web" || container != "main" {
		return nil
	}
	return map[string][]allocation.Device{"example.com/gpu": {{ID: "a", NUMANodes: []int64{0, 1}}}, "example.com/nic": {{ID: "x"}}}
}

func (g gpus) Usable() map[string][]allocation.Device { return g.Held("web", "main") }

func (gpus) CPUs(pod types.UID, container string) cpuset.CPUSet {
	if pod != "web" || container != "main" {
		return cpuset.New()
	}
	return cpuset.New(3, 2)
}

func (gpus) Memory(pod types.UID, container string) []memory.Block {
	if pod != "web" || container != "main" {
		return nil
	}
	return []memory.Block{{Type: "memory", Size: 9, Nodes: numa.MaskOf(0, 1)}}
}

func (gpus) AllocatableMemory() []memory.Block {
	return []memory.Block{{Type: "memory", Size: 10, Nodes: numa.MaskOf(0)}, {Type: "hugepages-2Mi", Size: 2, Nodes: 2}}
}

// ofMemory is what the API says of a block.
func ofMemory(kind string, size uint64, nodes ...int64) *podresourcesv1.ContainerMemory {
	topology := &podresourcesv1.TopologyInfo{}
	for _, id := range nodes {
		topology.Nodes = append(topology.Nodes, &podresourcesv1.NUMANode{ID: id})
	}
	return &podresourcesv1.ContainerMemory{MemoryType: kind, Size: size, Topology: topology}
}

func (gpus) AllocatableCPUs() cpuset.CPUSet { return cpuset.New(1, 2, 3) }

// claimsOf returns the claim of the pod with the UID web.
func claimsOf(pod *v1.Pod, c *v1.Container) []claimbook.Claim {
	if pod.UID != "web" || c.Name != "main" {
		return nil
	}
	return []claimbook.Claim{{
		Name: types.NamespacedName{Namespace: "shop", Name: "data"},
		Drivers: map[string]claimbook.Driver{"gpu.example.com": {Devices: []claimbook.Device{
			{Pool: "node", Name: "0", CDI: []string{"example.com/gpu=0"}},
			{Pool: "node", Name: "1", CDI: []string{"example.com/gpu=1"}, ShareID: ptr.To(types.UID("half"))},
		}}},
	}}
}

// ofClaims is what the API says of it.
func ofClaims() []*podresourcesv1.DynamicResource {
	device := func(name string) *podresourcesv1.ClaimResource {
		return &podresourcesv1.ClaimResource{
			DriverName: "gpu.example.com", PoolName: "node", DeviceName: name,
			CdiDevices: []*podresourcesv1.CDIDevice{{Name: "example.com/gpu=" + name}},
		}
	}
	shared := device("1")
	shared.ShareId = ptr.To("half")
	return []*podresourcesv1.DynamicResource{{
		ClaimName: "data", ClaimNamespace: "shop", ClaimResources: []*podresourcesv1.ClaimResource{device("0"), shared},
	}}
}

// ofGPUs is what the API says of them.
func ofGPUs() []*podresourcesv1.ContainerDevices {
	on := func(node int64) *podresourcesv1.ContainerDevices {
		return &podresourcesv1.ContainerDevices{
			ResourceName: "example.com/gpu", DeviceIds: []string{"a"},
			Topology: &podresourcesv1.TopologyInfo{Nodes: []*podresourcesv1.NUMANode{{ID: node}}},
		}
	}
	return []*podresourcesv1.ContainerDevices{on(0), on(1), {ResourceName: "example.com/nic", DeviceIds: []string{"x"}}}
}

// connect creates a client. After a restart of the server, an old client may lose a request before it notices.
func (r *rig) connect() {
	conn, err := grpc.NewClient("unix://"+podresources.Socket(r.root), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	must(r.t, err)
	r.t.Cleanup(func() { must(r.t, conn.Close()) })
	r.PodResourcesListerClient = podresourcesv1.NewPodResourcesListerClient(conn)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (r *rig) setPods(err error, pods ...*v1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pods, r.err = pods, err
}

// serve serves the API until stop is called.
func (r *rig) serve() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	cfg := podresources.Config{
		Path: podresources.Socket(r.root), Metrics: podresources.NewMetrics(r.counted), Logger: slog.New(slog.DiscardHandler),
		Clock: r.clock, Devices: gpus{}, Claims: claimsOf,
		Pods: func() ([]*v1.Pod, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.pods, r.err
		},
	}
	go func() { done <- podresources.Serve(ctx, cfg) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	})
	r.t.Cleanup(stop)
	return stop
}

func (r *rig) list() (*podresourcesv1.ListPodResourcesResponse, error) {
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	return r.List(ctx, &podresourcesv1.ListPodResourcesRequest{})
}

func (r *rig) get(namespace, name string) (*podresourcesv1.GetPodResourcesResponse, error) {
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	return r.Get(ctx, &podresourcesv1.GetPodResourcesRequest{PodNamespace: namespace, PodName: name})
}

// web returns a pod with an init container, a sidecar and two regular containers.
func web() *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "web"},
		Spec: v1.PodSpec{
			InitContainers: []v1.Container{{Name: "migrate"}, {Name: "proxy", RestartPolicy: ptr.To(v1.ContainerRestartPolicyAlways)}},
			Containers:     []v1.Container{{Name: "main"}, {Name: "cache"}},
		},
	}
}

func TestPodsAreListed(t *testing.T) {
	r := newRig(t)
	r.setPods(nil, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "web"}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "main"}}}}, web())
	r.serve()
	wanted := &podresourcesv1.PodResources{
		Namespace: "shop", Name: "web", Containers: []*podresourcesv1.ContainerResources{
			{Name: "proxy"},
			{Name: "main", Devices: ofGPUs(), CpuIds: []int64{2, 3}, DynamicResources: ofClaims(),
				Memory: []*podresourcesv1.ContainerMemory{ofMemory("memory", 9, 0, 1)}},
			{Name: "cache"},
		},
	}
	all, err := r.list()
	must(t, err)
	want := []*podresourcesv1.PodResources{{Namespace: "other", Name: "web", Containers: []*podresourcesv1.ContainerResources{{Name: "main"}}}, wanted}
	if diff := cmp.Diff(want, all.GetPodResources(), protocmp.Transform()); diff != "" {
		t.Errorf("all pods (-want +got):\n%s", diff)
	}
	one, err := r.get("shop", "web")
	must(t, err)
	if diff := cmp.Diff(wanted, one.GetPodResources(), protocmp.Transform()); diff != "" {
		t.Errorf("one pod (-want +got):\n%s", diff)
	}
	if _, err := r.get("shop", "db"); status.Code(err) != codes.NotFound || status.Convert(err).Message() != "pod db in namespace shop not found" {
		t.Errorf("of a pod that is not there: %v", err)
	}
	free, err := r.GetAllocatableResources(t.Context(), &podresourcesv1.AllocatableResourcesRequest{})
	must(t, err)
	allocatable := &podresourcesv1.AllocatableResourcesResponse{Devices: ofGPUs(), CpuIds: []int64{1, 2, 3},
		Memory: []*podresourcesv1.ContainerMemory{ofMemory("memory", 10, 0), ofMemory("hugepages-2Mi", 2, 1)}}
	if diff := cmp.Diff(allocatable, free, protocmp.Transform()); diff != "" {
		t.Errorf("allocatable (-want +got):\n%s", diff)
	}
	for name, want := range map[string]float64{"requests_total": 4, "requests_list": 1, "requests_get": 2, "requests_get_allocatable": 1, "errors_list": 0, "errors_get": 1, "errors_get_allocatable": 0} {
		metricstest.Want(t, r.counted, want, "kubelet_pod_resources_endpoint_"+name, "server_api_version", "v1")
	}
}

// TestUnknownPodsAreAnErrorAndNoEmptyList checks that the API returns an error, and not an empty list,
// while syncloop is starting.
func TestUnknownPodsAreAnErrorAndNoEmptyList(t *testing.T) {
	r := newRig(t)
	r.setPods(errors.New("the pods are not known yet: pleg does not answer"))
	r.serve()
	for what, ask := range map[string]func() error{
		"list": func() error { _, err := r.list(); return err },
		"get":  func() error { _, err := r.get("shop", "web"); return err },
	} {
		if err := ask(); status.Code(err) != codes.Unavailable ||
			status.Convert(err).Message() != "the pods are not known yet: pleg does not answer" {
			t.Errorf("%s: ask() error = %v, want Code %v and status.Convert(err).Message %q",
				what, err, codes.Unavailable, "the pods are not known yet: pleg does not answer")
		}
	}
	r.setPods(nil)
	if all, err := r.list(); err != nil || len(all.GetPodResources()) != 0 {
		t.Errorf("a node without pods: %v, %v", all, err)
	}
}

func TestRequestsAreLimited(t *testing.T) {
	r := newRig(t)
	r.serve()
	for range 10 {
		_, err := r.list()
		must(t, err)
	}
	if _, err := r.list(); status.Code(err) != codes.ResourceExhausted ||
		status.Convert(err).Message() != "rejected by rate limit" {
		t.Errorf("the eleventh at once: %v, want Code %v and status.Convert(err).Message %q",
			err, codes.ResourceExhausted, "rejected by rate limit")
	}
	r.clock.SetTime(r.clock.Now().Add(11 * time.Millisecond))
	_, err := r.list()
	must(t, err)
}

// TestTheSocketIsRootsAloneAndOutlivesAKill checks the mode of the socket, and that the socket of a killed process is
// replaced.
func TestTheSocketIsRootsAloneAndOutlivesAKill(t *testing.T) {
	r := newRig(t)
	path := podresources.Socket(r.root)
	must(t, os.Mkdir(filepath.Dir(path), 0o750))
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must(t, err)
	left.SetUnlinkOnClose(false)
	must(t, left.Close())
	for range 2 {
		stop := r.serve()
		r.counted = prometheus.NewRegistry()
		r.connect()
		_, err := r.list()
		must(t, err)
		if info, err := os.Stat(path); err != nil || info.Mode() != os.ModeSocket|0o600 {
			t.Errorf("the socket is %v, %v, want %v", info.Mode(), err, os.ModeSocket|0o600)
		}
		stop()
	}
	if info, err := os.Stat(filepath.Dir(path)); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("its directory is %v, %v, want Perm 0o750", info.Mode(), err)
	}
}

func TestWhyItIsNotServed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	err := podresources.Serve(t.Context(), podresources.Config{Path: podresources.Socket(file)})
	if err == nil || !errors.Is(err, os.ErrExist) && !errors.As(err, new(*os.PathError)) {
		t.Errorf("Serve() error = %v, want one because a file is in the place of the directory", err)
	}
}
