// Package service holds the common parts of the main functions of the four processes: signals, flags and configuration,
// telemetry, and the exit code.
package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/buildinfo"
	"github.com/quartet-node/quartet/internal/gosettings"
	"github.com/quartet-node/quartet/internal/logqueue"
	"github.com/quartet-node/quartet/internal/memory"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/processors"
	"github.com/quartet-node/quartet/internal/sockets"
	"github.com/quartet-node/quartet/internal/starting"
	"github.com/quartet-node/quartet/internal/systemd"
	"github.com/quartet-node/quartet/internal/telemetry"
)

// flushTimeout bounds the sending of the last traces when the process stops.
const flushTimeout = 2 * time.Second

// Run runs a service until ctx ends.
type Run func(ctx context.Context, cfg nodeconfig.Config, tel *telemetry.Telemetry) error

// ExitError ends a process with an exit code. It has told its reason already.
type ExitError struct{ Code int }

// Error implements error.
func (e *ExitError) Error() string { return fmt.Sprintf("exit code %d", e.Code) }

// Main runs a service until SIGINT or SIGTERM, notifies systemd when it is ready and when it stops, and exits: with 0
// after a signal or the help, with nodeconfig.ExitWrong if the configuration is invalid, and with 1 after any other
// error. The error is on standard error.
func Main(name nodeconfig.Service, run Run) {
	gosettings.Begin()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	notifier := systemd.Take() // before a child process could inherit the socket
	given := sockets.Take(notifier)
	code := Start(
		ctx,
		name,
		os.Args[1:],
		os.Stdout,
		os.Stderr,
		func(ctx context.Context, cfg nodeconfig.Config, tel *telemetry.Telemetry) error {
			tel.RouteLibraryLogs()
			if cfg.Nodes.Given() {
				processors.All()
			}
			if !cfg.Shadow.On {
				adjustOOMScore(oomScoreFile, *cfg.Kubelet.OOMScoreAdj, tel.Logger)
			}
			cfg.Systemd, cfg.Sockets = notifier, given
			// One that is stopped while it starts, or stands by, is replaced, too. When it serves, Watch reports.
			cfg.Starting.Report(func() { notifier.Alive(tel.Logger) })
			given.Keep(cfg.TCPSockets(name), tel.Logger)
			defer context.AfterFunc(ctx, func() { notifier.Stopping(tel.Logger) })()
			var background sync.WaitGroup
			defer background.Wait()
			ctx, end := context.WithCancel(ctx)
			defer end()
			background.Go(func() { memory.SmallAtRest(ctx, clock.RealClock{}) })
			return run(ctx, cfg, tel)
		},
	)
	stop()
	os.Exit(code)
}

// Start is Main without the globals of the process: it returns the exit code. If the first argument is "health", it
// queries the process that was started with the other arguments, and starts none. If it is "sockets", it prints those
// that the process would listen on. If it is "guard", it runs the process as a child.
func Start(ctx context.Context, name nodeconfig.Service, args []string, stdout, stderr io.Writer, run Run) int {
	if len(args) > 0 && args[0] == healthCommand {
		return health(ctx, name, args[1:], stdout, stderr)
	}
	if len(args) > 0 && args[0] == nodeconfig.SocketsCommand {
		return printSockets(name, args[1:], stdout, stderr)
	}
	if len(args) > 0 && args[0] == guardCommand {
		return guard(ctx, name, args[1:], stdout, stderr)
	}
	// A reader that stalls, such as journald or a container engine, must keep no service from its work or its end.
	log, queue := logqueue.May(stderr)
	if queue != nil {
		defer queue.Close()
	}
	err := start(ctx, name, args, stdout, queue, run)
	var exit *ExitError
	if errors.As(err, &exit) {
		return exit.Code
	}
	if err != nil && !errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintf(log, "%s: %v\n", name, err)
		if nodeconfig.IsWrong(err) {
			return nodeconfig.ExitWrong
		}
		return 1
	}
	return 0
}

// start runs the service, which logs to the queue, and to standard error without one.
func start(
	ctx context.Context, name nodeconfig.Service, args []string, stdout io.Writer, queue *logqueue.Queue, run Run,
) error {
	cfg, err := nodeconfig.Parse(name, args, stdout)
	if err != nil {
		return err
	}
	var output io.Writer
	if queue != nil {
		output = queue
	}
	tel, err := telemetry.Setup(ctx, telemetry.Config{
		Service: string(name),
		Version: buildinfo.Version(),
		Node:    cfg.NodeName,
		Logging: cfg.Logging(),
		Export:  exportOf(cfg),
		Output:  output,
	})
	if err != nil {
		return err
	}
	if queue != nil {
		queue.OnDropped(func(lines int) {
			tel.Logger.Warn("lines were dropped because the log of this process was not read", "lines", lines)
		})
	}
	defer func() {
		flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
		defer cancel()
		if lost := tel.Shutdown(flush); lost != nil {
			tel.Logger.Warn("the last traces are lost; check that the collector is running", telemetry.KeyError, lost)
		}
	}()
	cfg.Starting = starting.Watch(ctx, clock.RealClock{}, tel.Logger)
	defer cfg.Starting.Serving()
	return run(ctx, cfg, tel)
}

// exportOf returns the configured destination of traces; nil for none.
func exportOf(cfg nodeconfig.Config) *telemetry.Export {
	tracing := cfg.Kubelet.Tracing
	if tracing == nil {
		return nil
	}
	return &telemetry.Export{
		Endpoint: ptr.Deref(
			tracing.Endpoint,
			nodeconfig.DefaultTracingEndpoint,
		),
		SampledPerMillion: ptr.Deref(tracing.SamplingRatePerMillion, 0),
	}
}
