package resourceclaims_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
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
	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	drahealthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drahealthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	drav1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/services/syncloop/internal/devices/resourceclaims"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/logbuffer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const gpus = "gpu.example.com"

// plugin is a plugin of a DRA driver on a real socket.
type plugin struct {
	drav1.UnimplementedDRAPluginServer

	// gate holds back every call until it is closed; nil holds back none.
	gate chan struct{}
	// reports are sent about the health of devices.
	reports chan *drahealthv1.NodeWatchResourcesResponse

	mu     sync.Mutex
	calls  []string
	answer func(c *drav1.Claim) *drav1.NodePrepareResourceResponse
	// fails are the errors of the next calls of NodeUnprepareResources.
	fails []string
	// holds are the claims that are prepared. At is called before and after each change of them.
	holds map[string]bool
	at    func()
	stop  func()
}

// hold changes which claims are prepared. The caller holds mu.
func (p *plugin) hold(claims []*drav1.Claim, prepared bool) {
	if p.at == nil {
		return
	}
	p.at()
	for _, c := range claims {
		delete(p.holds, c.GetUid())
		if prepared {
			p.holds[c.GetUid()] = true
		}
	}
	p.at()
}

func (p *plugin) note(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, fmt.Sprintf(format, args...))
}

// called returns the calls since the last time.
func (p *plugin) called() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := strings.Join(p.calls, "; ")
	p.calls = nil
	return text
}

func namesOf(claims []*drav1.Claim) string {
	var names []string
	for _, c := range claims {
		names = append(names, c.GetNamespace()+"/"+c.GetName()+"="+c.GetUid())
	}
	return strings.Join(names, ",")
}

func (p *plugin) wait(ctx context.Context) error {
	if p.gate == nil {
		return nil
	}
	select {
	case <-p.gate:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *plugin) NodePrepareResources(
	ctx context.Context, r *drav1.NodePrepareResourcesRequest,
) (*drav1.NodePrepareResourcesResponse, error) {
	p.note("prepare %s", namesOf(r.GetClaims()))
	if err := p.wait(ctx); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	out := &drav1.NodePrepareResourcesResponse{Claims: map[string]*drav1.NodePrepareResourceResponse{}}
	for _, c := range r.GetClaims() {
		out.Claims[c.GetUid()] = &drav1.NodePrepareResourceResponse{Devices: []*drav1.Device{{
			PoolName: "node", DeviceName: "dev-" + c.GetName(), RequestNames: []string{"one"},
			CdiDeviceIds: []string{"example.com/gpu=" + c.GetName()},
		}}}
		if p.answer != nil {
			out.Claims[c.GetUid()] = p.answer(c)
		}
	}
	p.hold(r.GetClaims(), true)
	maps.DeleteFunc(out.Claims, func(_ string, r *drav1.NodePrepareResourceResponse) bool { return r == nil })
	return out, nil
}

func (p *plugin) NodeUnprepareResources(
	ctx context.Context, r *drav1.NodeUnprepareResourcesRequest,
) (*drav1.NodeUnprepareResourcesResponse, error) {
	p.note("unprepare %s", namesOf(r.GetClaims()))
	if err := p.wait(ctx); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	failure := ""
	if len(p.fails) > 0 {
		failure, p.fails = p.fails[0], p.fails[1:]
	}
	out := &drav1.NodeUnprepareResourcesResponse{Claims: map[string]*drav1.NodeUnprepareResourceResponse{}}
	for _, c := range r.GetClaims() {
		out.Claims[c.GetUid()] = &drav1.NodeUnprepareResourceResponse{Error: failure}
	}
	p.hold(r.GetClaims(), false)
	if failure == "silent" {
		out.Claims = nil
	}
	return out, nil
}

// health is the second service of a plugin.
type health struct {
	drahealthv1.UnimplementedDRAResourceHealthServer

	reports chan *drahealthv1.NodeWatchResourcesResponse
}

func (h health) NodeWatchResources(
	_ *drahealthv1.NodeWatchResourcesRequest, out grpc.ServerStreamingServer[drahealthv1.NodeWatchResourcesResponse],
) error {
	for {
		select {
		case <-out.Context().Done():
			return nil
		case report := <-h.reports:
			if report == nil {
				return errors.New("no more")
			}
			if err := out.Send(report); err != nil {
				return err
			}
		}
	}
}

// api is an API server with claims and published devices.
type api struct {
	mu      sync.Mutex
	claims  map[string]*resourceapi.ResourceClaim
	slices  map[string]bool
	err     error
	deleted []string
}

func (a *api) Claim(_ context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.claims[namespace+"/"+name]; c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("resourceclaims %q not found", name)
}

func (a *api) SliceDrivers(context.Context) ([]string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Sorted(maps.Keys(a.slices)), a.err
}

func (a *api) DeleteSlices(_ context.Context, driver string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.deleted = append(a.deleted, driver)
	if a.err == nil {
		maps.DeleteFunc(a.slices, func(name string, _ bool) bool { return driver == "" || name == driver })
	}
	return a.err
}

func (a *api) published() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return strings.Join(slices.Sorted(maps.Keys(a.slices)), " ")
}

// put adds the allocated claim shop/NAME, with NAME as its UID, that is reserved for pods.
func (a *api) put(name string, drivers []string, pods ...types.UID) *resourceapi.ResourceClaim {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)},
		Status:     resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{}},
	}
	for _, driver := range drivers {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourceapi.DeviceRequestAllocationResult{Driver: driver, Request: "one", Pool: "node", Device: "dev-" + name})
	}
	for _, uid := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{
			Resource: "pods", Name: string(uid), UID: uid,
		})
	}
	a.claims["shop/"+name] = c
	return c
}

// rig is a node with a manager.
type rig struct {
	*resourceclaims.Manager

	t       *testing.T
	root    string
	api     *api
	clock   *clocktesting.FakeClock
	log     *logbuffer.Buffer
	metrics *prometheus.Registry
	changed chan types.UID
	end     func()
}

func newRig(t *testing.T) *rig {
	t.Helper()
	root, err := os.MkdirTemp("", "claims") // the path of a socket must be short
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(root)) })
	r := &rig{
		t: t, root: root, clock: clocktesting.NewFakeClock(time.Now()), changed: make(chan types.UID, 100),
		api: &api{claims: map[string]*resourceapi.ResourceClaim{}, slices: map[string]bool{}},
	}
	r.restart()
	t.Cleanup(func() { r.end() })
	return r
}

// restart replaces the manager by that of the next process, to which nothing is in the runtime.
func (r *rig) restart() {
	r.t.Helper()
	r.begin()
	r.Recover(nil)
}

// begin replaces the manager by that of the next process, which does not know yet what is in the runtime.
func (r *rig) begin() {
	r.t.Helper()
	if r.end != nil {
		r.end()
	}
	r.log, r.metrics = &logbuffer.Buffer{}, prometheus.NewRegistry()
	m, err := resourceclaims.New(resourceclaims.Config{
		Root: r.root, API: r.api, Boot: "boot", BootFile: filepath.Join(r.root, "boot"), Health: true, Messages: true,
		PodChanged: func(uid types.UID) { r.changed <- uid }, Clock: r.clock,
		Metrics: resourceclaims.NewMetrics(r.metrics), Logger: slog.New(slog.NewTextHandler(r.log, nil)),
	})
	must(r.t, err)
	r.Manager = m
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	r.end = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			r.t.Error(err)
		}
	})
}

// serve serves a plugin on a socket, with the services, and registers it when the manager runs.
func (r *rig) serve(driver, socket string, p *plugin, services ...string) *plugin {
	r.t.Helper()
	p.listen(r.t, filepath.Join(r.root, socket), services)
	r.register(driver, socket, services...)
	return p
}

func (p *plugin) listen(t *testing.T, path string, services []string) {
	t.Helper()
	listener, err := net.Listen("unix", path)
	must(t, err)
	server := grpc.NewServer()
	for _, service := range services {
		switch service {
		case drav1.DRAPluginService:
			drav1.RegisterDRAPluginServer(server, p)
		case drav1beta1.DRAPluginService:
			drav1beta1.RegisterDRAPluginServer(server, drav1beta1.V1ServerWrapper{DRAPluginServer: p})
		case drahealthv1.DRAResourceHealthService:
			drahealthv1.RegisterDRAResourceHealthServer(server, health{reports: p.reports})
		case drahealthv1alpha1.DRAResourceHealthService:
			drahealthv1alpha1.RegisterDRAResourceHealthServer(server, drahealthv1.V1ServerWrapper{
				Server: health{reports: p.reports},
			})
		}
	}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	p.stop = sync.OnceFunc(func() {
		server.Stop()
		serving.Wait()
	})
	t.Cleanup(p.stop)
}

// register registers a driver when the manager runs.
func (r *rig) register(driver, socket string, services ...string) {
	r.t.Helper()
	eventually.That(r.t, "the driver is registered", func() bool {
		err := r.Register(driver, filepath.Join(r.root, socket), services)
		return err == nil
	})
}

// named returns a pod of the namespace shop whose container uses claims as a whole.
func named(uid types.UID, claims ...string) *v1.Pod {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: string(uid), UID: uid},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "main"}}},
	}
	for _, name := range claims {
		reference := v1.PodResourceClaim{Name: "my-" + name, ResourceClaimName: &name}
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, reference)
		pod.Spec.Containers[0].Resources.Claims = append(pod.Spec.Containers[0].Resources.Claims,
			v1.ResourceClaim{Name: "my-" + name})
	}
	return pod
}

func (r *rig) prepare(pod *v1.Pod) {
	r.t.Helper()
	must(r.t, r.Prepare(r.t.Context(), pod))
}

// refuse checks the error of a pod.
func (r *rig) refuse(pod *v1.Pod, want string) {
	r.t.Helper()
	err := r.Prepare(r.t.Context(), pod)
	if want = "prepare dynamic resources: " + want; err == nil || err.Error() != want {
		r.t.Errorf("got %v\nwant %s", err, want)
	}
}

func (r *rig) devices(pod *v1.Pod) string {
	r.t.Helper()
	ids, err := r.Devices(pod, &pod.Spec.Containers[0])
	must(r.t, err)
	return strings.Join(ids, " ")
}

func want(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
