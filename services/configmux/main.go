// Command configmux decides what this node is to run: it merges the pods of all sources and serves the outcome as
// quartet.config.v1. It needs to read the manifests, and neither root nor the container runtime.
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
		fmt.Fprintln(os.Stderr, "configmux:", err)
		os.Exit(1)
	}
}

func start() (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	cfg, err := nodeconfig.Parse(nodeconfig.ConfigMux, os.Args[1:], os.Stdout)
	if err != nil {
		return err
	}
	tel, err := telemetry.Setup(ctx, string(nodeconfig.ConfigMux), cfg.Verbosity)
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
