package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/gosettings"
	"github.com/quartet-node/quartet/internal/logqueue"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/watchdog"
)

const (
	// guardCommand is the sub-command that runs the service as a child process, and ends it when it stands still.
	guardCommand = "guard"
	// guardSeparator separates the flags that name the address to ask from those of the service.
	guardSeparator = "--"
	// guardGrace is the time between SIGTERM and SIGKILL. The services wait up to 5 s for calls in flight.
	guardGrace = 10 * time.Second
)

// guard runs the service of this program as a child process with the same flags, and returns its exit code. A child
// that stands still logs its goroutines and is ended; the result is then not 0, so that a restart policy applies. This
// is for containers, because a container engine restarts no container for a failed health check.
func guard(ctx context.Context, name nodeconfig.Service, args []string, stdout, stderr io.Writer) int {
	asking := args
	if i := slices.Index(args, guardSeparator); i >= 0 {
		asking, args = args[:i], args[i+1:]
	}
	cfg, err := nodeconfig.Parse(name, asking, stdout)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
		return nodeconfig.ExitWrong
	}
	// The child writes to the same standard error: a reader that stalls may be why it stands still.
	log := logqueue.New(stderr)
	defer log.Close()
	code, err := runGuarded(ctx, name, cfg.Listen, args, stdout, stderr, log)
	if err != nil {
		fmt.Fprintf(log, "%s: %v\n", name, err)
		return 1
	}
	return code
}

// runGuarded runs the child until it ends, and returns its exit code; 1 if a signal has ended it.
func runGuarded(
	ctx context.Context, name nodeconfig.Service, address string, args []string, stdout, stderr io.Writer,
	log *logqueue.Queue,
) (code int, err error) {
	asker, err := watchdog.NewAsker(address)
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, asker.Close()) }()
	self, err := os.Executable()
	if err != nil {
		return 1, fmt.Errorf("find the program of this process: %w", err)
	}
	// The kernel kills the child when the thread that started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, self, args...) //nolint:gosec // it is this program
	cmd.Env = gosettings.ChildEnv(os.Environ())
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = guardGrace
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return 1, fmt.Errorf("start %s: %w", self, err)
	}
	guardCtx, cancel := context.WithCancel(ctx)
	var watched sync.WaitGroup
	watched.Go(func() {
		(&watchdog.Guard{
			Name: string(name), Patience: watchdog.DefaultPatience, Clock: clock.RealClock{},
			Logger: slog.New(slog.NewTextHandler(log, nil)),
			Ask:    func(ctx context.Context) error { return asker.Ask(ctx, cmd.Process.Pid) },
			Signal: func(signal syscall.Signal) error { return cmd.Process.Signal(signal) },
		}).Run(guardCtx)
	})
	err = cmd.Wait()
	cancel()
	watched.Wait()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return 1, err
	}
	if code := cmd.ProcessState.ExitCode(); code >= 0 {
		return code, nil
	}
	return 1, nil
}
