package chaos

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/quartet-node/quartet/test/eventually"
)

const (
	// device is the only device of the resource deviceResource.
	device, deviceResource = "the-device", "example.com/chaos"
	// deviceCheckpoint is the file with the devices of containers, below the state directory.
	deviceCheckpoint = "root/device-plugins/kubelet_internal_checkpoint"
)

// withDevice is a pod that has the device.
func withDevice() kind {
	return kind{name: "device", settles: true, spec: `
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: IMAGE
    args: [sleep]
    env: [{name: VERSION, value: "%s"}]
    resources: {limits: {` + deviceResource + `: 1}}
`}
}

// devicePlugin is a device plugin with one device.
type devicePlugin struct {
	pluginapi.UnimplementedDevicePluginServer
}

func (devicePlugin) GetDevicePluginOptions(
	context.Context, *pluginapi.Empty,
) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

func (devicePlugin) ListAndWatch(
	_ *pluginapi.Empty, out grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse],
) error {
	devices := []*pluginapi.Device{{ID: device, Health: pluginapi.Healthy}}
	if err := out.Send(&pluginapi.ListAndWatchResponse{Devices: devices}); err != nil {
		return err
	}
	<-out.Context().Done()
	return nil
}

func (devicePlugin) Allocate(context.Context, *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{{}}}, nil
}

// startDevicePlugin serves the device plugin until the test ends, and returns when the node knows its resource.
func startDevicePlugin(t *testing.T, n *testNode) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			servePlugin(ctx, filepath.Join(n.Layout.Root(), "device-plugins"))
		}
	}()
	t.Cleanup(func() { // before the node is removed
		cancel()
		<-ended
	})
	eventually.That(t, "the resource of the device plugin is in the checkpoint", func() bool {
		return strings.Contains(n.deviceCheckpoint(), deviceResource)
	})
}

// servePlugin registers the device plugin, and returns when syncloop has started again and removed its socket.
func servePlugin(ctx context.Context, dir string) {
	path := filepath.Join(dir, "chaos.sock")
	defer func() { // the pause before the next attempt
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}()
	listener, err := net.Listen("unix", path)
	if err != nil {
		_ = os.Remove(path) // of an attempt that has failed
		return
	}
	server := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(server, devicePlugin{})
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener) // ends with Stop
	}()
	defer func() {
		server.Stop()
		<-served
	}()
	if registerPlugin(ctx, dir) != nil {
		return // syncloop does not run
	}
	for ctx.Err() == nil {
		if _, err := os.Stat(path); err != nil {
			return
		}
		<-time.After(100 * time.Millisecond)
	}
}

func registerPlugin(ctx context.Context, dir string) error {
	conn, err := grpc.NewClient("unix://"+filepath.Join(dir, "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, &pluginapi.RegisterRequest{
		Version: pluginapi.Version, ResourceName: deviceResource, Endpoint: "chaos.sock",
	})
	return err
}

// deviceCheckpoint returns the content of the checkpoint; nothing if there is none.
func (n *testNode) deviceCheckpoint() string {
	content, err := os.ReadFile(filepath.Join(n.Layout.StateDir(), deviceCheckpoint))
	if err != nil {
		return ""
	}
	return string(content)
}

// keepsItsDevice returns what is wrong if no pod has the device any more.
func (n *testNode) keepsItsDevice() []string {
	if content := n.deviceCheckpoint(); !strings.Contains(content, device) {
		return []string{"the pod with the device has lost it; the checkpoint is " + content}
	}
	return nil
}
