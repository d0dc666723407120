// Command pleg says what runs on this node. It lists and inspects the pods of the container runtime, listens to the
// runtime's events as hints of what to look at, and serves what it has observed, and what has happened, as
// quartet.lifecycle.v1. It only reads: syncloop is who changes the runtime.
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
		fmt.Fprintln(os.Stderr, "pleg:", err)
		os.Exit(1)
	}
}

func start() (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	cfg, err := nodeconfig.Parse(nodeconfig.PLEG, os.Args[1:], os.Stdout)
	if err != nil {
		return err
	}
	tel, err := telemetry.Setup(ctx, string(nodeconfig.PLEG), cfg.Verbosity)
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
