// Command mockdriver runs upstream's mock driver on a node, in the place of the CSI driver of the tests, whose flags it
// has. It writes the name of each call that changes something into the file "calls" in the directory of the volumes.
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
	"syscall"

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
	_ = flag.String("node", "", "`NAME` of the node; the driver has one of its own")
	volumes := flag.String("volumes", "/volumes", "`DIR` of the file of calls")
	socket := flag.String("socket", "/csi/csi.sock", "`PATH` of the driver's socket")
	registry := flag.String("registry", "", "`DIR` of the node agent's plugins")
	endpoint := flag.String("endpoint", "", "`PATH` of the socket on the node")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *name, *volumes, *socket, *registry, *endpoint); err != nil {
		fmt.Fprintln(os.Stderr, "mockdriver:", err)
		os.Exit(1) //nolint:gocritic // nothing is left to stop
	}
}

func run(ctx context.Context, name, volumes, socket, registry, endpoint string) error {
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
	if err := server.Start(listener, record(calls)); err != nil {
		return err
	}
	defer server.Stop()
	return csidriver.Register(ctx, registry, name, endpoint)
}

// record returns an interceptor that records calls, except those that only ask. A call that a file "refuse-METHOD" in
// the same directory names is refused, and makes a file "refused-METHOD" instead.
func record(calls *os.File) grpc.UnaryServerInterceptor {
	dir := filepath.Dir(calls.Name())
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		method := path.Base(info.FullMethod)
		if _, err := os.Stat(filepath.Join(dir, "refuse-"+method)); err == nil {
			if err := os.WriteFile(filepath.Join(dir, "refused-"+method), nil, fileMode); err != nil {
				return nil, err
			}
			return nil, status.Error(codes.Internal, "refused by the test")
		}
		if method != "Probe" && !strings.Contains(method, "Get") {
			if _, err := fmt.Fprintln(calls, method); err != nil {
				return nil, err
			}
		}
		return handle(ctx, request)
	}
}
