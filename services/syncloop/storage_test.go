package syncloop

import (
	"cmp"
	"context"
	"maps"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	registrationv1 "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	clocktesting "k8s.io/utils/clock/testing"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
	"github.com/quartet-node/quartet/test/eventually"
)

// csiDriver is a CSI driver with its registrar, on real sockets.
type csiDriver struct {
	registrationv1.UnimplementedRegistrationServer
	csi.UnimplementedNodeServer

	endpoint string
	// name is that of the driver; testDriver if empty.
	name string
}

func (d *csiDriver) GetInfo(context.Context, *registrationv1.InfoRequest) (*registrationv1.PluginInfo, error) {
	return &registrationv1.PluginInfo{
		Type: registrationv1.CSIPlugin, Name: cmp.Or(d.name, testDriver), Endpoint: d.endpoint,
		SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (*csiDriver) NotifyRegistrationStatus(
	context.Context, *registrationv1.RegistrationStatus,
) (*registrationv1.RegistrationStatusResponse, error) {
	return &registrationv1.RegistrationStatusResponse{}, nil
}

func (*csiDriver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{
		NodeId: "machine-1", MaxVolumesPerNode: 12,
		AccessibleTopology: &csi.Topology{Segments: map[string]string{"example.com/rack": "r1"}},
	}, nil
}

// serveOn serves on a socket until stop is called.
func serveOn(t *testing.T, path string, register func(*grpc.Server)) (stop func()) {
	t.Helper()
	noError(t, os.MkdirAll(filepath.Dir(path), 0o750))
	listener, err := net.Listen("unix", path)
	noError(t, err)
	server := grpc.NewServer()
	register(server)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	stop = sync.OnceFunc(func() {
		server.Stop()
		serving.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// storageOf returns the stream of a syncloop.
func storageOf(conn grpc.ClientConnInterface) stream.Source[*enginev1.StorageItem] {
	client := enginev1.NewEngineServiceClient(conn)
	return streamrpc.NewSource(func(ctx context.Context, token []byte) (streamrpc.Receive[*enginev1.StorageItem], error) {
		watch, err := client.WatchStorage(ctx, &enginev1.WatchStorageRequest{ResumeToken: token}, grpc.WaitForReady(true))
		if err != nil {
			return nil, err
		}
		return func() (*streamv1.Frame, *enginev1.StorageItem, error) {
			m, err := watch.Recv()
			return m.GetFrame(), m.GetItem(), err
		}, nil
	})
}

// storage follows the stream of storage until the test ends, and returns a function that returns its items.
func (m *machine) storage() func() map[string]*enginev1.StorageItem {
	m.t.Helper()
	conn, err := rpc.Dial(m.cfg.Listen)
	noError(m.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var mu sync.Mutex
	told := map[string]*enginev1.StorageItem{}
	var following sync.WaitGroup
	following.Go(func() {
		_ = stream.Follow(ctx, stream.FollowConfig[*enginev1.StorageItem]{
			Source: storageOf(conn), Handle: func(c stream.Change[*enginev1.StorageItem]) {
				mu.Lock()
				defer mu.Unlock()
				if c.Op == stream.OpRemove {
					delete(told, c.Key)
					return
				}
				told[c.Key] = c.New
			},
		})
	})
	m.t.Cleanup(func() {
		cancel()
		following.Wait()
		noError(m.t, conn.Close())
	})
	return func() map[string]*enginev1.StorageItem {
		mu.Lock()
		defer mu.Unlock()
		return maps.Clone(told)
	}
}

// TestCSIDriversAreReportedToTheNode checks that each syncloop streams the drivers whose sockets are in the folder.
func TestCSIDriversAreReportedToTheNode(t *testing.T) {
	m := newMachine(t)
	m.configmux.speak()
	driver := &csiDriver{endpoint: filepath.Join(m.cfg.RootDir, "plugins", "test", "csi.sock")}
	serveOn(t, driver.endpoint, func(s *grpc.Server) { csi.RegisterNodeServer(s, driver) })
	registrar := filepath.Join(m.cfg.RootDir, "plugins_registry", "test-reg.sock")
	withdraw := serveOn(t, registrar, func(s *grpc.Server) { registrationv1.RegisterRegistrationServer(s, driver) })
	stop := m.start()
	has := m.storage()
	for range 2 {
		eventually.That(t, "the driver is told", func() bool {
			d := has()["driver/test.csi.example.com"].GetDriver()
			return d.GetNodeId() == "machine-1" && d.GetAllocatableVolumes() == 12 && d.GetTopology()["example.com/rack"] == "r1"
		})
		stop()
		stop = m.start()
	}
	withdraw()
	eventually.That(t, "the driver is withdrawn", func() bool { return len(has()) == 0 })
	stop()
}

// TestAVolumeIsMountedWhenTheNodeHasItAsInUseAndAttached also checks the kubelet's words for a cluster that is late.
func TestAVolumeIsMountedWhenTheNodeHasItAsInUseAndAttached(t *testing.T) {
	const name = "kubernetes.io/csi/test.csi.example.com^vol-1"
	now := clocktesting.NewFakeClock(time.Unix(1_700_000_000, 0))
	inUse := []v1.UniqueVolumeName{"other", "detached", name}
	attached := []v1.AttachedVolume{{Name: "unused"}, {Name: name}}
	for _, test := range []struct {
		name, says   string
		nodes        []v1.NodeStatus
		noController bool
	}{
		{name: name, nodes: []v1.NodeStatus{
			{}, {VolumesInUse: inUse}, {VolumesAttached: attached}, {VolumesInUse: inUse, VolumesAttached: attached},
		}},
		{name: name, nodes: []v1.NodeStatus{{}, {VolumesInUse: inUse}}, noController: true},
		{
			name: "unused", nodes: []v1.NodeStatus{{VolumesInUse: inUse, VolumesAttached: attached}},
			says: "Volume has not been added to the list of VolumesInUse in the node's volume status",
		},
		{
			name: "detached", nodes: []v1.NodeStatus{{VolumesInUse: inUse, VolumesAttached: attached}},
			says: "Volume not attached according to node status",
		},
	} {
		asked := 0
		ask := func(context.Context) (*v1.Node, error) {
			asked++
			return &v1.Node{Status: test.nodes[min(asked, len(test.nodes))-1]}, nil
		}
		result := make(chan error)
		attached := newAttachedVolumes(ask, !test.noController, now)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = attached.Run(ctx) })
		go func() { result <- attached.Await(ctx, test.name) }()
		err, ended := error(nil), false
		for !ended {
			select {
			case err = <-result:
				ended = true
			case <-time.After(time.Millisecond):
				now.Step(reportInterval)
			}
		}
		cancel()
		running.Wait()
		switch {
		case test.says == "" && (err != nil || asked != len(test.nodes)):
			t.Errorf("%s: asked %d times, %v; want %d times without an error", test.name, asked, err, len(test.nodes))
		case test.says != "" && (err == nil || err.Error() != test.says):
			t.Errorf("%s: %v, want the kubelet's words", test.name, err)
		}
	}
}
