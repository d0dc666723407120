package csidrivers_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/csidrivers"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/plugins"
	"github.com/quartet-node/quartet/test/eventually"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// served is a driver with a real socket.
type served struct {
	csi.UnimplementedNodeServer

	endpoint string

	mu    sync.Mutex
	info  *csi.NodeGetInfoResponse
	err   error
	calls int
	// hang, if not nil, delays NodeUnpublishVolume until it is closed.
	hang     chan struct{}
	hung     bool
	infoHang chan struct{}
}

func (s *served) NodeGetInfo(ctx context.Context, _ *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	s.mu.Lock()
	s.calls++
	info, err, hang := s.info, s.err, s.infoHang
	s.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
		}
	}
	return info, err
}

func (s *served) NodeUnpublishVolume(
	context.Context, *csi.NodeUnpublishVolumeRequest,
) (*csi.NodeUnpublishVolumeResponse, error) {
	s.mu.Lock()
	s.hung = true
	s.mu.Unlock()
	<-s.hang
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

func (s *served) set(info *csi.NodeGetInfoResponse, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.info, s.err = info, err
}

func (s *served) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

func info(id string, volumes int64, topology map[string]string) *csi.NodeGetInfoResponse {
	answer := &csi.NodeGetInfoResponse{NodeId: id, MaxVolumesPerNode: volumes}
	if topology != nil {
		answer.AccessibleTopology = &csi.Topology{Segments: topology}
	}
	return answer
}

func serve(t *testing.T, s *served) *served {
	t.Helper()
	dir, err := os.MkdirTemp("", "csi")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	s.endpoint = filepath.Join(dir, "csi.sock")
	listener, err := net.Listen("unix", s.endpoint)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	csi.RegisterNodeServer(server, s)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		server.Stop()
		serving.Wait()
	})
	return s
}

// rig has Drivers with a cluster that has some objects.
type rig struct {
	*csidrivers.Drivers

	mu      sync.Mutex
	objects map[string]*storagev1.CSIDriver
	changes int
}

func start(t *testing.T, clock clock.Clock) *rig {
	t.Helper()
	r := &rig{objects: map[string]*storagev1.CSIDriver{}}
	r.Drivers = csidrivers.New(csidrivers.Config{
		Object: func(_ context.Context, name string) (*storagev1.CSIDriver, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.objects[name], nil
		},
		Changed: func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.changes++
		},
		Clock: clock,
	})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		r.Close()
	})
	return r
}

func (r *rig) changed() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changes
}

func plugin(name, socket string, s *served, versions ...string) plugins.Plugin {
	if len(versions) == 0 {
		versions = []string{"1.0.0"}
	}
	return plugins.Plugin{Type: "CSIPlugin", Name: name, Endpoint: s.endpoint, Versions: versions, Socket: socket}
}

func (r *rig) add(t *testing.T, p plugins.Plugin) error {
	t.Helper()
	if err := r.Validate(t.Context(), p); err != nil {
		return err
	}
	return r.Register(t.Context(), p)
}

func TestADriverDescribesTheNode(t *testing.T) {
	r := start(t, clock.RealClock{})
	zoned := serve(t, &served{info: info("i-1", 25, map[string]string{"topology.example.com/zone": "z1"})})
	plain := serve(t, &served{info: info("n1", -3, nil)})
	for _, p := range []plugins.Plugin{plugin("zoned.example.com", "/r/a.sock", zoned), plugin("Plain", "/r/b.sock", plain)} {
		if err := r.add(t, p); err != nil {
			t.Fatal(err)
		}
	}
	want := []csidrivers.Node{
		{Driver: "Plain", ID: "n1"},
		{Driver: "zoned.example.com", ID: "i-1", Volumes: 25, Topology: map[string]string{"topology.example.com/zone": "z1"}},
	}
	if diff := cmp.Diff(want, r.Nodes()); diff != "" {
		t.Error(diff)
	}
	if r.changed() != 2 {
		t.Errorf("%d changes are notified, want 2", r.changed())
	}
	conn, err := r.Conn("Plain")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := csi.NewNodeClient(conn).NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{}); err != nil {
		t.Error(err)
	}
	r.Deregister(t.Context(), plugin("Plain", "/r/b.sock", plain))
	_, err = r.Conn("Plain")
	var missing *csidrivers.NotRegisteredError
	if !errors.As(err, &missing) || err.Error() != "driver name Plain not found in the list of registered CSI drivers" {
		t.Errorf("without the driver its connection is %v", err)
	}
	if len(r.Nodes()) != 1 {
		t.Errorf("after the deregistration there is %v", r.Nodes())
	}
	_, err = csi.NewNodeClient(conn).NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
	if status.Code(err) != codes.Unavailable {
		t.Errorf("a kept connection says %v, want Code %v", err, codes.Unavailable)
	}
}

func TestRefusedDriversHaveAReason(t *testing.T) {
	r := start(t, clock.RealClock{})
	good := serve(t, &served{info: info("n1", 0, nil)})
	gone := &served{endpoint: "/nowhere/csi.sock"}
	for _, tt := range []struct {
		plugin plugins.Plugin
		answer *csi.NodeGetInfoResponse
		err    error
		want   string
	}{
		{plugin("", "/r/a.sock", good), nil, nil, "the name of the driver is empty"},
		{plugin("a/../b", "/r/a.sock", good), nil, nil, `the name of the driver "a/../b" is invalid`},
		{plugin(strings.Repeat("a", 64), "/r/a.sock", good), nil, nil, "longer than 63 characters"},
		{plugin("d", "/r/a.sock", good, "0.3.0"), nil, nil, "None of the versions specified"},
		{plugin("d", "/r/a.sock", good, "2.0.0"), nil, nil, "None of the versions specified"},
		{plugin("d", "/r/a.sock", good, "tea"), nil, nil, "None of the versions specified"},
		{
			plugins.Plugin{Name: "d", Socket: "/r/a.sock", Endpoint: good.endpoint}, nil, nil,
			"Plugin returned an empty list for supported versions",
		},
		{plugin("d", "/r/a.sock", gone), nil, nil, "dial unix /nowhere/csi.sock: connect: no such file or directory"},
		{plugin("d", "/r/a.sock", good), nil, status.Error(codes.Internal, "out of tea"), "out of tea"},
		{plugin("d", "/r/a.sock", good), info("", 0, nil), nil, "driverNodeID must not be empty"},
		{plugin("d", "/r/a.sock", good), info("n", 0, map[string]string{"no label!": "x"}), nil, "is no label of a Node"},
		{plugin("d", "/r/a.sock", good), info("n", 0, map[string]string{"a": "b c"}), nil, "is no label of a Node"},
	} {
		good.set(tt.answer, tt.err)
		err := r.add(t, tt.plugin)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("got %v, want %q", err, tt.want)
		}
	}
	if len(r.Nodes()) > 0 || r.changed() > 0 {
		t.Errorf("there is %v after %d changes", r.Nodes(), r.changed())
	}
	good.set(info("n1", 0, nil), nil)
	if err := r.add(t, plugin("d", "/r/a.sock", good)); err != nil {
		t.Errorf("after its failures a driver is not accepted: %v", err)
	}
}

// TestTheFirstOfTwoWithOneNameStays, unless the second one has a higher version.
func TestTheFirstOfTwoWithOneNameStays(t *testing.T) {
	r := start(t, clock.RealClock{})
	first, second := serve(t, &served{info: info("first", 0, nil)}), serve(t, &served{info: info("second", 0, nil)})
	if err := r.add(t, plugin("d", "/r/a.sock", first)); err != nil {
		t.Fatal(err)
	}
	err := r.add(t, plugin("d", "/r/b.sock", second))
	if err == nil || !strings.Contains(err.Error(), "Another driver with the same name is already registered with a higher "+
		`supported version: "1.0.0"`) {
		t.Errorf("the second one gets %v", err)
	}
	r.Deregister(t.Context(), plugin("d", "/r/b.sock", second))
	if nodes := r.Nodes(); len(nodes) != 1 || nodes[0].ID != "first" {
		t.Errorf("the end of the refused one leaves %v, want exactly one and nodes[0].ID %q", nodes, "first")
	}
	second.set(nil, status.Error(codes.Internal, "not yet"))
	if err := r.add(t, plugin("d", "/r/b.sock", second, "1.1.0")); err == nil {
		t.Error("a driver that does not answer is registered")
	}
	if nodes := r.Nodes(); len(nodes) != 1 || nodes[0].ID != "first" {
		t.Errorf("a failed successor leaves %v", nodes)
	}
	second.set(info("second", 0, nil), nil)
	if err := r.add(t, plugin("d", "/r/b.sock", second, "1.1.0")); err != nil {
		t.Fatal(err)
	}
	r.Deregister(t.Context(), plugin("d", "/r/a.sock", first))
	if nodes := r.Nodes(); len(nodes) != 1 || nodes[0].ID != "second" {
		t.Errorf("the end of the replaced one leaves %v, want exactly one and nodes[0].ID %q", nodes, "second")
	}
}

func TestTwoAtOnceWithOneNameAreNotBothRegistered(t *testing.T) {
	r := start(t, clock.RealClock{})
	slow := serve(t, &served{info: info("slow", 0, nil), infoHang: make(chan struct{})})
	done := make(chan error, 1)
	go func() { done <- r.Register(context.WithoutCancel(t.Context()), plugin("d", "/r/a.sock", slow)) }()
	eventually.That(t, "it is asked", func() bool { return slow.count() > 0 })
	err := r.add(t, plugin("d", "/r/b.sock", slow, "1.5.0"))
	if err == nil || !strings.Contains(err.Error(), "is being registered by the socket /r/a.sock") {
		t.Errorf("the second one gets %v", err)
	}
	close(slow.infoHang)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestDeregistrationDoesNotInterruptACall(t *testing.T) {
	r := start(t, clock.RealClock{})
	driver := serve(t, &served{info: info("n", 0, nil), hang: make(chan struct{})})
	if err := r.add(t, plugin("d", "/r/a.sock", driver)); err != nil {
		t.Fatal(err)
	}
	conn, err := r.Conn("d")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := csi.NewNodeClient(conn).NodeUnpublishVolume(context.WithoutCancel(t.Context()),
			&csi.NodeUnpublishVolumeRequest{VolumeId: "v"})
		done <- err
	}()
	eventually.That(t, "the call is in progress", func() bool {
		driver.mu.Lock()
		defer driver.mu.Unlock()
		return driver.hung
	})
	r.Deregister(t.Context(), plugin("d", "/r/a.sock", driver))
	close(driver.hang)
	if err := <-done; err != nil {
		t.Errorf("the call ends with %v", err)
	}
}

func TestTheDescriptionIsRefreshedByThePeriodOfTheObject(t *testing.T) {
	fake := clocktesting.NewFakeClock(time.Unix(1, 0))
	r := start(t, fake)
	driver := serve(t, &served{info: info("n", 10, nil)})
	if err := r.add(t, plugin("d", "/r/a.sock", driver)); err != nil {
		t.Fatal(err)
	}
	step := func(d time.Duration) {
		eventually.That(t, "the timer is armed", fake.HasWaiters)
		fake.Step(d)
	}
	volumes := func() int64 { return r.Nodes()[0].Volumes }
	driver.set(info("n", 7, nil), nil)
	for range 5 {
		step(10 * time.Second)
	}
	if driver.count() != 1 || volumes() != 10 {
		t.Errorf("without an object it is asked %d times and has %d volumes", driver.count(), volumes())
	}
	r.mu.Lock()
	r.objects["d"] = &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: "d"},
		Spec:       storagev1.CSIDriverSpec{NodeAllocatableUpdatePeriodSeconds: ptr.To(int64(20))},
	}
	r.mu.Unlock()
	step(10 * time.Second)
	eventually.That(t, "it is refreshed", func() bool { return volumes() == 7 })
	driver.set(nil, status.Error(codes.Internal, "not now"))
	calls := driver.count()
	for range 2 {
		step(10 * time.Second)
	}
	eventually.That(t, "it is asked again", func() bool { return driver.count() > calls })
	if volumes() != 7 {
		t.Errorf("a failed refresh leaves %d volumes", volumes())
	}
	driver.set(info("n", 3, nil), nil)
	r.Refresh("d")
	r.Refresh("unknown")
	eventually.That(t, "it is refreshed on request", func() bool { return volumes() == 3 })
}
