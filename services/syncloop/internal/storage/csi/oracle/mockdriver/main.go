// Command mockdriver runs upstream's mock driver in the place of the CSI driver of the tests, whose flags it has: on a
// node with -registry, beside the controllers of a cluster without it. It writes each call that changes something into
// the file "calls" in the directory of the volumes, which all processes of the driver share: "NODE METHOD VOLUME".
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/driver"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/mock/service"

	"github.com/quartet-node/quartet/test/csidriver"
)

// fileMode is that of the file of calls.
const fileMode = 0o600

func main() {
	name := flag.String("name", "dirs.quartet.test", "`NAME` of the driver")
	node := flag.String("node", "controller", "`NAME` of the process in the file of calls; the driver names all nodes alike")
	volumes := flag.String("volumes", "/volumes", "`DIR` of the file of calls")
	socket := flag.String("socket", "/csi/csi.sock", "`PATH` of the driver's socket")
	registry := flag.String("registry", "", "`DIR` of the node agent's plugins; empty for a controller")
	endpoint := flag.String("endpoint", "", "`PATH` of the socket on the node")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *name, *node, *volumes, *socket, *registry, *endpoint); err != nil {
		fmt.Fprintln(os.Stderr, "mockdriver:", err)
		os.Exit(1) //nolint:gocritic // nothing is left to stop
	}
}

func run(ctx context.Context, name, node, volumes, socket, registry, endpoint string) error {
	calls, err := os.OpenFile(filepath.Join(volumes, "calls"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, fileMode)
	if err != nil {
		return err
	}
	mocked := service.New(service.Config{DriverName: name, NodeExpansionRequired: true})
	server := driver.NewCSIDriver(&driver.CSIDriverServers{Controller: mocked, Identity: mocked, Node: mocked})
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	calling := &recorder{calls: calls, node: node, driver: mocked}
	if err := server.Start(listener, calling.intercept); err != nil {
		return err
	}
	defer server.Stop()
	if registry != "" {
		return csidriver.Register(ctx, registry, name, endpoint)
	}
	<-ctx.Done()
	return nil
}

// mostVolumes bounds the volumes that the driver of a node makes for itself.
const mostVolumes = 100

// recorder records calls, except those that only ask. A call that a file "refuse-METHOD" beside the file of calls names
// is refused, and makes a file "refused-METHOD-NODE" instead.
type recorder struct {
	calls  *os.File
	node   string
	driver service.Service

	mu   sync.Mutex
	made int
}

func (r *recorder) intercept(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler,
) (any, error) {
	dir, method := filepath.Dir(r.calls.Name()), path.Base(info.FullMethod)
	if _, err := os.Stat(filepath.Join(dir, "refuse-"+method)); err == nil {
		if err := os.WriteFile(filepath.Join(dir, "refused-"+method+"-"+r.node), nil, fileMode); err != nil {
			return nil, err
		}
		return nil, status.Error(codes.Internal, "refused by the test")
	}
	volume := ""
	if of, ok := request.(interface{ GetVolumeId() string }); ok {
		volume = of.GetVolumeId()
	}
	if volume != "" && strings.HasPrefix(method, "Node") {
		if err := r.learn(ctx, volume); err != nil {
			return nil, err
		}
	}
	answer, err := handle(ctx, request)
	if made, ok := answer.(*csi.CreateVolumeResponse); ok && err == nil {
		volume = made.GetVolume().GetVolumeId()
	}
	if method != "Probe" && !strings.Contains(method, "Get") {
		if _, err := fmt.Fprintln(r.calls, r.node, method, volume); err != nil {
			return nil, err
		}
	}
	return answer, err
}

// learn makes a volume that the driver of this node does not know, because a controller has made it: the mock driver
// keeps its volumes in memory, and numbers them.
func (r *recorder) learn(ctx context.Context, volume string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.made < mostVolumes {
		if _, err := r.driver.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: volume}); err == nil {
			return nil
		}
		r.made++
		_, err := r.driver.CreateVolume(ctx, &csi.CreateVolumeRequest{
			Name: fmt.Sprint("volume ", r.made), VolumeCapabilities: []*csi.VolumeCapability{{}},
		})
		if err != nil {
			return err
		}
	}
	return nil // it answers that there is none
}
