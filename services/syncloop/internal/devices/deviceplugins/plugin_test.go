package deviceplugins_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/services/syncloop/internal/devices/allocation"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/deviceplugins"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podtest"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/logbuffer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const gpu = "example.com/gpu"

// plugin is a device plugin on a real socket.
type plugin struct {
	pluginapi.UnimplementedDevicePluginServer

	options pluginapi.DevicePluginOptions
	prefer  func(*pluginapi.ContainerPreferredAllocationRequest) []string
	// allocate replaces the response; nil is one with a variable.
	allocate func(ctx context.Context, ids []string) (*pluginapi.AllocateResponse, error)
	// silent, if it is not nil, holds back the list of devices until it is closed.
	silent chan struct{}

	mu      sync.Mutex
	devices []*pluginapi.Device
	changed chan struct{}
	fail    error
	calls   []string
	stop    func()
}

func (p *plugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &p.options, p.fail
}

func (p *plugin) ListAndWatch(
	_ *pluginapi.Empty, out grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse],
) error {
	if p.silent != nil {
		<-p.silent
	}
	for {
		p.mu.Lock()
		devices, changed, fail := p.devices, p.changed, p.fail
		p.mu.Unlock()
		if fail != nil {
			return fail
		}
		if err := out.Send(&pluginapi.ListAndWatchResponse{Devices: devices}); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-out.Context().Done():
			return nil
		}
	}
}

func (p *plugin) set(fail error, devices ...*pluginapi.Device) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.devices, p.fail = devices, fail
	if p.changed != nil {
		close(p.changed)
	}
	p.changed = make(chan struct{})
}

func (p *plugin) note(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, fmt.Sprintf(format, args...))
}

func (p *plugin) called() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.calls)
}

func (p *plugin) GetPreferredAllocation(
	_ context.Context, r *pluginapi.PreferredAllocationRequest,
) (*pluginapi.PreferredAllocationResponse, error) {
	asked := r.GetContainerRequests()[0]
	p.note("prefer %v %v %d", asked.GetAvailableDeviceIDs(), asked.GetMustIncludeDeviceIDs(), asked.GetAllocationSize())
	return &pluginapi.PreferredAllocationResponse{
		ContainerResponses: []*pluginapi.ContainerPreferredAllocationResponse{{DeviceIDs: p.prefer(asked)}},
	}, nil
}

func (p *plugin) Allocate(ctx context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	ids := r.GetContainerRequests()[0].GetDevicesIds()
	p.note("allocate %v", ids)
	if p.allocate != nil {
		return p.allocate(ctx, ids)
	}
	return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{
		{Envs: map[string]string{"GPUS": strings.Join(ids, ",")}},
	}}, nil
}

func (p *plugin) PreStartContainer(
	_ context.Context, r *pluginapi.PreStartContainerRequest,
) (*pluginapi.PreStartContainerResponse, error) {
	p.note("start %v", r.GetDevicesIds())
	return &pluginapi.PreStartContainerResponse{}, nil
}

func healthy(ids ...string) []*pluginapi.Device {
	var all []*pluginapi.Device
	for _, id := range ids {
		health, name := pluginapi.Healthy, id
		if sick, ok := strings.CutPrefix(id, "-"); ok {
			health, name = pluginapi.Unhealthy, sick
		}
		all = append(all, &pluginapi.Device{ID: name, Health: health})
	}
	return all
}

// rig is a node with a Manager and real sockets.
type rig struct {
	t     *testing.T
	root  string
	clock *clocktesting.FakeClock
	log   *logbuffer.Buffer
	*deviceplugins.Manager
	registry *prometheus.Registry
	stop     func()

	mu   sync.Mutex
	pods []types.UID
}

func newRig(t *testing.T) *rig {
	t.Helper()
	root, err := os.MkdirTemp("", "devices") // the path of a socket must be short
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(root)) })
	r := &rig{t: t, root: root, clock: clocktesting.NewFakeClock(time.Now()), log: &logbuffer.Buffer{}}
	r.start()
	r.Recover(nil, goesOn)
	return r
}

// goesOn is for pods whose containers may be started again.
func goesOn(types.UID) bool { return true }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (r *rig) dir() string { return filepath.Join(r.root, "device-plugins") }

// start starts a process that does not know yet what runs; restart ends it, and starts another one that does.
func (r *rig) start() {
	r.t.Helper()
	r.registry = prometheus.NewRegistry()
	manager, err := deviceplugins.New(deviceplugins.Config{
		Root: r.root, Clock: r.clock, Changed: func() {}, Metrics: deviceplugins.NewMetrics(r.registry),
		PodChanged: func(uid types.UID) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.pods = append(r.pods, uid)
		},
		Logger: slog.New(slog.NewTextHandler(r.log, nil)),
	})
	must(r.t, err)
	r.Manager = manager
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- manager.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			r.t.Error(err)
		}
	})
	r.t.Cleanup(r.stop)
}

func (r *rig) restart() {
	r.t.Helper()
	r.stop()
	r.start()
	r.Recover(nil, goesOn)
}

// serve serves a plugin on a socket in the folder, until stop is called or the test ends.
func (r *rig) serve(p pluginapi.DevicePluginServer, socket string) (stop func()) {
	r.t.Helper()
	path := filepath.Join(r.dir(), socket)
	listener, err := net.Listen("unix", path)
	must(r.t, err)
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	pluginapi.RegisterDevicePluginServer(server, p)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	stop = sync.OnceFunc(func() {
		server.Stop()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	})
	r.t.Cleanup(stop)
	return stop
}

// register registers a plugin on the kubelet's socket.
func (r *rig) register(resource, socket, version string) error {
	r.t.Helper()
	conn, err := grpc.NewClient("unix://"+filepath.Join(r.dir(), "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(r.t, err)
	defer func() { must(r.t, conn.Close()) }()
	_, err = pluginapi.NewRegistrationClient(conn).Register(r.t.Context(), &pluginapi.RegisterRequest{
		Version: version, ResourceName: resource, Endpoint: socket,
	}, grpc.WaitForReady(true))
	return err
}

// plug serves and registers a plugin with devices.
func (r *rig) plug(p *plugin, resource, socket string, ids ...string) *plugin {
	r.t.Helper()
	p.set(nil, healthy(ids...)...)
	p.stop = r.serve(p, socket)
	must(r.t, r.register(resource, socket, pluginapi.Version))
	usable := int64(0)
	for _, id := range ids {
		if !strings.HasPrefix(id, "-") {
			usable++
		}
	}
	r.amounts(resource, int64(len(ids)), usable)
	return p
}

// amounts waits for the amounts of a resource.
func (r *rig) amounts(resource string, capacity, allocatable int64) {
	r.t.Helper()
	want := allocation.Amounts{Capacity: capacity, Allocatable: allocatable}
	eventually.That(r.t, fmt.Sprintf("the amounts of %s are %v", resource, want), func() bool {
		got, ok := r.Amounts()[resource]
		return ok && got == want
	})
}

func pod(uid string, count string, inits ...v1.Container) *v1.Pod {
	p := podtest.Pod(uid, podtest.Container(nil, podtest.List(gpu, count)))
	p.Spec.InitContainers = inits
	return p
}

func (r *rig) devices(uid types.UID) string {
	var ids []string
	for _, d := range r.Held(uid, "main")[gpu] {
		ids = append(ids, d.ID)
	}
	return strings.Join(ids, " ")
}

func (r *rig) env(p *v1.Pod) string {
	r.t.Helper()
	given, err := r.Give(r.t.Context(), p, &p.Spec.Containers[0])
	must(r.t, err)
	var all []string
	for _, e := range given.Envs {
		all = append(all, e.Name+"="+e.Value)
	}
	return strings.Join(all, " ")
}

// Allocate allocates the devices of all containers of a pod.
func (r *rig) Allocate(ctx context.Context, p *v1.Pod) error {
	for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			if err := r.Manager.Allocate(ctx, p, &list[i], 0); err != nil {
				return err
			}
		}
	}
	return nil
}
