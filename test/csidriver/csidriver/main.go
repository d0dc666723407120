// Command csidriver runs the CSI driver of the tests: on a node with -registry, beside the controllers of a cluster
// without it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/quartet-node/quartet/test/csidriver"
)

func main() {
	name := flag.String("name", "dirs.quartet.test", "`NAME` of the driver")
	node := flag.String("node", "", "`NAME` of the node")
	volumes := flag.String("volumes", "/volumes", "`DIR` of the volumes, the same for all processes of the driver")
	socket := flag.String("socket", "/csi/csi.sock", "`PATH` of the driver's socket")
	registry := flag.String("registry", "", "`DIR` of the node agent's plugins; empty for a controller")
	endpoint := flag.String("endpoint", "", "`PATH` of the socket on the node")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *name, *node, *volumes, *socket, *registry, *endpoint); err != nil {
		fmt.Fprintln(os.Stderr, "csidriver:", err)
		os.Exit(1) //nolint:gocritic // nothing is left to stop
	}
}

func run(ctx context.Context, name, node, volumes, socket, registry, endpoint string) error {
	plugin := csidriver.NewPlugin(name, node, volumes, socket)
	if err := plugin.Serve(); err != nil {
		return err
	}
	defer plugin.Stop()
	if registry != "" {
		return csidriver.Register(ctx, registry, name, endpoint)
	}
	<-ctx.Done()
	return nil
}
