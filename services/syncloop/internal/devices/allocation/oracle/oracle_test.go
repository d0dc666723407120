package oracle

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	_ "unsafe" // for go:linkname

	cadvisorapi "github.com/google/cadvisor/lib/model"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	v1helper "k8s.io/kubernetes/pkg/apis/core/v1/helper"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/resourcename"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/allocation"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/checkpoint"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/numa"
)

// QUARTET_HISTORIES=20000 compares as many histories as before a release.
const histories = 2000

func TestMain(m *testing.M) {
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	klog.InitFlags(flags)
	if err := flags.Parse([]string{"-logtostderr=false", "-alsologtostderr=false", "-stderrthreshold=FATAL"}); err != nil {
		panic(err)
	}
	klog.SetOutput(io.Discard)
	os.Exit(m.Run())
}

// newManager is the kubelet's constructor with the path of its socket, which the exported one does not take.
//
//go:linkname newManager k8s.io/kubernetes/pkg/kubelet/cm/devicemanager.newManagerImpl
func newManager(
	logger klog.Logger, socketPath string, topology []cadvisorapi.Node, store topologymanager.Store,
) (*devicemanager.ManagerImpl, error)

// plugin is a plugin in this process that prefers the first devices by ID.
type plugin struct {
	pluginapi.DevicePluginClient

	resource, socket string
	fails            func() bool
}

func (p *plugin) API() pluginapi.DevicePluginClient { return p }
func (p *plugin) Resource() string                  { return p.resource }
func (p *plugin) SocketPath() string                { return p.socket }

func (*plugin) GetDevicePluginOptions(
	context.Context, *pluginapi.Empty, ...grpc.CallOption,
) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: true}, nil
}

func (*plugin) GetPreferredAllocation(
	_ context.Context, r *pluginapi.PreferredAllocationRequest, _ ...grpc.CallOption,
) (*pluginapi.PreferredAllocationResponse, error) {
	asked := r.GetContainerRequests()[0]
	return &pluginapi.PreferredAllocationResponse{ContainerResponses: []*pluginapi.ContainerPreferredAllocationResponse{
		{DeviceIDs: preferred(
			asked.GetAvailableDeviceIDs(), asked.GetMustIncludeDeviceIDs(), int(asked.GetAllocationSize()),
		)},
	}}, nil
}

// preferred returns the required devices and the last ones of the others, so that it is never what is taken anyway.
func preferred(available, required []string, size int) []string {
	chosen := slices.Clone(required)
	rest := slices.Clone(available)
	slices.Sort(rest)
	slices.Reverse(rest)
	for _, id := range rest {
		if len(chosen) < size && !slices.Contains(chosen, id) {
			chosen = append(chosen, id)
		}
	}
	return chosen
}

var errPlugin = errors.New("the plugin fails")

func (p *plugin) Allocate(
	_ context.Context, r *pluginapi.AllocateRequest, _ ...grpc.CallOption,
) (*pluginapi.AllocateResponse, error) {
	if p.fails() {
		return nil, errPlugin
	}
	return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{
		{Envs: map[string]string{"N": fmt.Sprint(len(r.GetContainerRequests()[0].GetDevicesIds()))}},
	}}, nil
}

// ready is true from the first history on: sources are ready.
type ready struct{}

func (ready) AddSource(string) {}
func (ready) AllReady() bool   { return true }

// world is one history on both sides.
type world struct {
	t      *testing.T
	rand   *rand.Rand
	theirs *devicemanager.ManagerImpl
	ours   *allocation.Book
	dir    string
	pods   map[types.UID]*v1.Pod
	// connected are the plugins by resource, and failing is true for a call of Allocate that fails.
	connected map[string]*plugin
	failing   bool
	// affinity are the NUMA nodes that the topology manager has chosen for all containers; none if any will do.
	affinity numa.Mask
	steps    []string
	next     int
}

var resources = []string{"example.com/gpu", "example.com/nic"}

func newWorld(t *testing.T, seed uint64, dir string) *world {
	t.Helper()
	w := &world{
		t: t, rand: rand.New(rand.NewPCG(seed, 1)), ours: allocation.New(), dir: dir, pods: map[types.UID]*v1.Pod{},
		connected: map[string]*plugin{},
	}
	logger := klog.Background()
	w.affinity = numa.MaskOf([]int{-1, 0, 1, 2}[w.rand.IntN(4)], []int{-1, 0, 1, 2}[w.rand.IntN(4)])
	w.note("the affinity is %v", w.affinity.Nodes())
	theirs, err := newManager(logger, filepath.Join(dir, "kubelet.sock"), machine, w.store())
	if err != nil {
		t.Fatal(err)
	}
	w.theirs = theirs
	active := func() []*v1.Pod { return slices.Collect(maps.Values(w.pods)) }
	if err := theirs.Start(logger, active, ready{}, containermap.NewContainerMap(), nil); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) note(format string, args ...any) {
	w.steps = append(w.steps, fmt.Sprintf(format, args...))
}

func (w *world) fatalf(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("%s\nafter\n  %s", fmt.Sprintf(format, args...), strings.Join(w.steps, "\n  "))
}

func (w *world) pick() string { return resources[w.rand.IntN(len(resources))] }

// report connects the plugin of a resource, if it is not, and reports random devices.
func (w *world) report() {
	name := w.pick()
	if w.connected[name] == nil {
		w.next++
		p := &plugin{resource: name, socket: fmt.Sprint(w.next), fails: func() bool { return w.failing }}
		if err := w.theirs.PluginConnected(w.t.Context(), name, p); err != nil {
			w.t.Fatal(err)
		}
		w.connected[name] = p
	}
	var theirs []*pluginapi.Device
	var ours []allocation.Device
	for i := range w.rand.IntN(9) {
		id, health := fmt.Sprint("d", i), pluginapi.Healthy
		if w.rand.IntN(6) == 0 {
			health = pluginapi.Unhealthy
		}
		their := &pluginapi.Device{ID: id, Health: health}
		our := allocation.Device{ID: id, Healthy: health == pluginapi.Healthy}
		for range w.rand.IntN(3) {
			node := int64(w.rand.IntN(4)) // the machine has no node 3
			if their.Topology == nil {
				their.Topology = &pluginapi.TopologyInfo{}
			}
			their.Topology.Nodes = append(their.Topology.Nodes, &pluginapi.NUMANode{ID: node})
			our.NUMANodes = append(our.NUMANodes, node)
		}
		theirs, ours = append(theirs, their), append(ours, our)
	}
	w.note("%s reports %v", name, ours)
	w.theirs.PluginListAndWatchReceiver(klog.Background(), name, &pluginapi.ListAndWatchResponse{Devices: theirs})
	w.ours.Update(name, ours)
}

func (w *world) disconnect() {
	name := w.pick()
	p := w.connected[name]
	if p == nil {
		return
	}
	w.note("%s goes", name)
	delete(w.connected, name)
	w.theirs.PluginDisconnected(klog.Background(), name, p.socket)
	w.ours.Lose(name)
}

func (w *world) draw() *v1.Pod {
	w.next++
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: types.UID(fmt.Sprint("pod", w.next))}}
	add := func(list *[]v1.Container, name string) {
		c := v1.Container{Name: name, Resources: v1.ResourceRequirements{Limits: v1.ResourceList{}}}
		// One resource for each container: the kubelet takes several in no order, and stops at the first that fails.
		c.Resources.Limits[v1.ResourceName(w.pick())] = *resource.NewQuantity(int64(w.rand.IntN(4)), resource.DecimalSI)
		*list = append(*list, c)
	}
	for i := range w.rand.IntN(3) {
		add(&pod.Spec.InitContainers, fmt.Sprint("init", i))
		if w.rand.IntN(3) == 0 {
			pod.Spec.InitContainers[i].RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
		}
	}
	for i := range 1 + w.rand.IntN(2) {
		add(&pod.Spec.Containers, fmt.Sprint("main", i))
	}
	return pod
}

// admit admits a new pod, or a pod again as after a restart, on both sides.
func (w *world) admit(pod *v1.Pod) {
	w.failing = w.rand.IntN(12) == 0
	w.note("%s asks for %s, the plugin fails: %v", pod.UID, describe(pod), w.failing)
	w.hinted(pod)
	w.pods[pod.UID] = pod
	var theirs error
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if theirs == nil {
				theirs = w.theirs.Allocate(w.t.Context(), pod, &list[i], lifecycle.AddOperation)
			}
		}
	}
	ours := w.allocate(pod)
	if text(theirs) != text(ours) {
		w.fatalf("the kubelet answers %q, Quartet %q", text(theirs), text(ours))
	}
	if theirs != nil {
		delete(w.pods, pod.UID) // it is Failed, and both free what it has
		w.ours.Release(pod.UID)
	}
}

func describe(pod *v1.Pod) string {
	var all []string
	for _, c := range append(slices.Clone(pod.Spec.InitContainers), pod.Spec.Containers...) {
		for name, count := range c.Resources.Limits {
			all = append(all, fmt.Sprintf("%s:%s=%s,sidecar=%v", c.Name, name, count.String(), c.RestartPolicy != nil))
		}
	}
	return strings.Join(all, " ")
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// allocate does what deviceplugins does with the book, without its calls.
func (w *world) allocate(pod *v1.Pod) error {
	for _, need := range w.ours.Needs(pod) {
		need.Affinity = w.affinity
		question, ask, err := w.ours.Ask(pod, need)
		if err != nil {
			return err
		}
		var prefers []string
		if ask {
			prefers = preferred(question.Available, question.Required, question.Size)
		}
		ids, err := w.ours.Reserve(pod, need, prefers)
		if err != nil {
			return err
		}
		if len(ids) == 0 {
			continue
		}
		if w.failing {
			w.ours.Drop(need.Container, need.Resource)
			return errPlugin
		}
		grant := w.ours.Held(need.Container)[need.Resource]
		grant.Response = &pluginapi.ContainerAllocateResponse{}
		w.ours.Put(need.Container, need.Resource, grant)
	}
	return nil
}

func (w *world) remove() {
	for _, uid := range slices.Sorted(maps.Keys(w.pods)) {
		if w.rand.IntN(3) == 0 {
			w.note("%s ends", uid)
			delete(w.pods, uid)
			w.ours.Release(uid)
			return
		}
	}
}

// compare compares the amounts, and the devices of each pod. The kubelet takes reused devices in no order, so that
// those of a container can only be counted.
func (w *world) compare() {
	w.theirs.UpdateAllocatedDevices(klog.Background())
	capacity, allocatable, _ := w.theirs.GetCapacity(klog.Background())
	amounts := w.ours.Amounts()
	for _, name := range resources {
		all, free := capacity[v1.ResourceName(name)], allocatable[v1.ResourceName(name)]
		theirs := allocation.Amounts{Capacity: all.Value(), Allocatable: free.Value()}
		if amounts[name] != theirs {
			w.fatalf("%s: the kubelet has %v, Quartet %v", name, theirs, amounts[name])
		}
	}
	for uid, pod := range w.pods {
		theirs, ours := map[string]bool{}, map[string]bool{}
		for _, c := range append(slices.Clone(pod.Spec.InitContainers), pod.Spec.Containers...) {
			held := w.theirs.GetDevices(string(uid), c.Name)
			mine := w.ours.Held(allocation.Container{Pod: uid, Name: c.Name})
			for _, name := range resources {
				if len(held[name]) != len(mine[name].Devices) {
					w.fatalf("%s %s: the kubelet gives %v, Quartet %v", uid, c.Name, held[name], mine[name].IDs())
				}
				for id := range held[name] {
					theirs[name+"/"+id] = true
				}
				for _, id := range mine[name].IDs() {
					ours[name+"/"+id] = true
				}
			}
		}
		if !maps.Equal(theirs, ours) {
			w.fatalf("%s: the kubelet gives %v, Quartet %v", uid, theirs, ours)
		}
	}
}

// TestHistoriesOfAllocations compares errors, amounts and devices after each step of random histories.
func TestHistoriesOfAllocations(t *testing.T) {
	count := uint64(histories)
	if text := os.Getenv("QUARTET_HISTORIES"); text != "" {
		if _, err := fmt.Sscan(text, &count); err != nil {
			t.Fatal(err)
		}
	}
	for seed := range count {
		dir, err := os.MkdirTemp("/dev/shm", "oracle")
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld(t, seed, dir)
		for range 12 {
			switch n := w.rand.IntN(10); {
			case n < 3:
				w.report()
			case n < 4:
				w.disconnect()
			case n < 6:
				w.remove()
			default:
				w.admit(w.draw())
			}
			w.compare()
		}
		w.compareCheckpoint()
		if err := errors.Join(w.theirs.Stop(klog.Background()), os.RemoveAll(dir)); err != nil {
			t.Fatal(err)
		}
	}
}

// compareCheckpoint checks that Quartet reads the kubelet's checkpoint, and that the kubelet reads Quartet's.
func (w *world) compareCheckpoint() {
	content, err := checkpoint.Read(w.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return // the kubelet has not written one, because it has allocated nothing and has had no device
	}
	if err != nil {
		w.fatalf("Quartet does not read the kubelet's checkpoint: %v", err)
	}
	if err := checkpoint.Write(w.dir, content); err != nil {
		w.t.Fatal(err)
	}
	logger := klog.Background()
	next, err := newManager(logger, filepath.Join(w.dir, "kubelet.sock"), nil, topologymanager.NewFakeManager(logger))
	if err != nil {
		w.t.Fatal(err)
	}
	noPods := func() []*v1.Pod { return nil }
	if err := next.Start(logger, noPods, ready{}, containermap.NewContainerMap(), nil); err != nil {
		w.t.Fatal(err)
	}
	defer next.Stop(logger) //nolint:errcheck // its socket is removed with its folder
	for _, entry := range content.Entries {
		held := next.GetDevices(entry.PodUID, entry.ContainerName)
		for _, id := range slices.Concat(slices.Collect(maps.Values(entry.DeviceIDs))...) {
			if _, ok := held[entry.ResourceName][id]; !ok {
				data, _ := json.Marshal(content)
				w.fatalf("the kubelet does not find %s of %v in Quartet's checkpoint %s", id, entry, data)
			}
		}
	}
}

func TestNamesOfResources(t *testing.T) {
	for _, name := range []string{
		"example.com/gpu", "cpu", "kubernetes.io/gpu", "x.kubernetes.io/gpu", "requests.example.com/gpu", "example.com/", "/gpu",
		"", "example.com/a/b", "Example.com/gpu", "example.com/gpu-", "a/b", "example.com/" + strings.Repeat("x", 64),
		strings.Repeat("x", 63) + ".com/gpu", strings.Repeat("x.", 122) + "com/gpu", "example.com/g pu", "example.com/g\npu",
	} {
		if theirs := v1helper.IsExtendedResourceName(v1.ResourceName(name)); resourcename.IsExtended(name) != theirs {
			t.Errorf("IsExtended(%q) = %v, a kubelet says %v", name, !theirs, theirs)
		}
	}
}
