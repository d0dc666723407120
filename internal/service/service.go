// Package service is what the main functions of the four processes have in common: signals, flags and configuration,
// telemetry, and the exit code.
package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/buildinfo"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/sockets"
	"github.com/quartet-node/quartet/internal/systemd"
	"github.com/quartet-node/quartet/internal/telemetry"
)

// flushTimeout is how long the stop waits for traces that were not sent yet.
const flushTimeout = 2 * time.Second

// Run is the work of a process, until ctx ends.
type Run func(ctx context.Context, cfg nodeconfig.Config, tel *telemetry.Telemetry) error

// Main runs a process until SIGINT or SIGTERM, tells the systemd that has started it when it serves and when it ends, and exits: with 0 when it was told to stop or printed its help, with
// nodeconfig.ExitWrong when its configuration is wrong, and with 1 when it could not start or had to give up for another reason. The
// reason is on the standard error stream.
func Main(name nodeconfig.Service, run Run) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	notifier := systemd.Take() // before any process is started that would inherit it
	given := sockets.Take(notifier)
	code := Start(ctx, name, os.Args[1:], os.Stdout, os.Stderr, func(ctx context.Context, cfg nodeconfig.Config, tel *telemetry.Telemetry) error {
		tel.RouteLibraryLogs()
		adjustOOMScore(oomScoreFile, *cfg.Kubelet.OOMScoreAdj, tel.Logger)
		cfg.Systemd, cfg.Sockets = notifier, given
		given.Keep(cfg.TCPSockets(name), tel.Logger)
		defer context.AfterFunc(ctx, func() { notifier.Stopping(tel.Logger) })()
		return run(ctx, cfg, tel)
	})
	stop()
	os.Exit(code)
}

// Start is Main without the process's globals: it returns the exit code. With the first argument "health" it asks the
// process that was started with the other arguments, and starts none.
func Start(ctx context.Context, name nodeconfig.Service, args []string, stdout, stderr io.Writer, run Run) int {
	if len(args) > 0 && args[0] == healthCommand {
		return health(ctx, name, args[1:], stdout, stderr)
	}
	err := start(ctx, name, args, stdout, run)
	if err != nil && !errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
		if nodeconfig.IsWrong(err) {
			return nodeconfig.ExitWrong
		}
		return 1
	}
	return 0
}

func start(ctx context.Context, name nodeconfig.Service, args []string, stdout io.Writer, run Run) error {
	cfg, err := nodeconfig.Parse(name, args, stdout)
	if err != nil {
		return err
	}
	tel, err := telemetry.Setup(ctx, telemetry.Config{
		Service: string(name), Version: buildinfo.Version(), Node: cfg.NodeName, Logging: cfg.Logging(), Export: exportOf(cfg),
	})
	if err != nil {
		return err
	}
	defer func() {
		flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
		defer cancel()
		if lost := tel.Shutdown(flush); lost != nil {
			tel.Logger.Warn("the last traces are lost; see that the collector is there", telemetry.KeyError, lost)
		}
	}()
	return run(ctx, cfg, tel)
}

// exportOf returns where the configuration sends traces; nil for nowhere.
func exportOf(cfg nodeconfig.Config) *telemetry.Export {
	tracing := cfg.Kubelet.Tracing
	if tracing == nil {
		return nil
	}
	return &telemetry.Export{
		Endpoint: ptr.Deref(tracing.Endpoint, nodeconfig.DefaultTracingEndpoint), SampledPerMillion: ptr.Deref(tracing.SamplingRatePerMillion, 0),
	}
}
