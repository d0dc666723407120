// Command syncloop runs pods: it takes what is wanted from configmux and what is observed from pleg, makes the container
// runtime match, and says how each pod is, as quartet.engine.v1 and as the kubelet's read-only HTTP API. It is the only
// process of a node that changes the runtime. It may be killed at any moment, and no pod stops for it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/telemetry"
)

// flushTimeout is how long the stop waits for traces that were not sent yet.
const flushTimeout = 2 * time.Second

func main() {
	if err := start(); err != nil && !errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "syncloop:", err)
		os.Exit(1)
	}
}

func start() (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	cfg, err := nodeconfig.Parse(nodeconfig.SyncLoop, os.Args[1:], os.Stdout)
	if err != nil {
		return err
	}
	tel, err := telemetry.Setup(ctx, string(nodeconfig.SyncLoop), cfg.Verbosity)
	if err != nil {
		return err
	}
	tel.RouteLibraryLogs()
	defer func() {
		flush, cancel := context.WithTimeout(context.Background(), flushTimeout)
		defer cancel()
		err = errors.Join(err, tel.Shutdown(flush))
	}()
	return run(ctx, cfg, tel)
}
