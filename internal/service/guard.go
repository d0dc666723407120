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

	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/gosettings"
	"github.com/quartet-node/quartet/internal/logging"
	"github.com/quartet-node/quartet/internal/logqueue"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/systemd"
	"github.com/quartet-node/quartet/internal/watchdog"
)

const (
	// guardCommand is the sub-command that runs the service as a child process, and ends it when it stands still.
	guardCommand = "guard"
	// guardSeparator is before the flags of the service. Earlier versions had flags of their own before it.
	guardSeparator = "--"
	// guardGrace is the time between SIGTERM and SIGKILL. The services wait up to 5 s for calls in flight.
	guardGrace = 10 * time.Second
)

// guard runs the service of this program as a child process with the same flags, and returns its exit code. A child
// that stands still logs its goroutines and is ended; the result is then not 0, so that a restart policy applies. This
// is for containers, because a container engine restarts no container for a failed health check.
func guard(ctx context.Context, name nodeconfig.Service, args []string, stdout, stderr io.Writer) int {
	// The child writes to the same standard error: a reader that stalls may be why it stands still.
	log := logqueue.New(stderr)
	defer log.Close()
	logger := slog.New(slog.NewTextHandler(log, nil))
	if i := slices.Index(args, guardSeparator); i >= 0 {
		if i > 0 {
			logger.Warn("these flags have no effect: leave out what is before "+guardSeparator, "flags", args[:i])
		}
		args = args[i+1:]
	}
	code, err := runGuarded(ctx, name, args, stdout, stderr, logger)
	if err != nil {
		fmt.Fprintf(log, "%s: %v\n", name, err)
		return 1
	}
	return code
}

// runGuarded runs the child until it ends, and returns its exit code; 1 if a signal has ended it.
func runGuarded(
	ctx context.Context, name nodeconfig.Service, args []string, stdout, stderr io.Writer, logger *slog.Logger,
) (code int, err error) {
	self, err := os.Executable()
	if err != nil {
		return 1, fmt.Errorf("find the program of this process: %w", err)
	}
	listener, err := systemd.Listen(watchdog.DefaultPatience, clock.RealClock{})
	if err != nil {
		return 1, err
	}
	background, end := context.WithCancel(context.WithoutCancel(ctx)) // until the child has ended
	var watched sync.WaitGroup
	defer watched.Wait()
	defer end()
	watched.Go(func() {
		if err := listener.Run(background); err != nil {
			logger.Error("this process is not watched", logging.KeyError, err)
		}
	})
	// The kernel kills the child when the thread that started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, self, args...) //nolint:gosec // it is this program
	cmd.Env = append(gosettings.ChildEnv(os.Environ()), listener.Env()...)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = guardGrace
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return 1, fmt.Errorf("start %s: %w", self, err)
	}
	listener.Started(cmd.Process.Pid)
	watched.Go(func() {
		(&watchdog.Guard{
			Name: string(name), Patience: watchdog.DefaultPatience, Clock: clock.RealClock{}, Logger: logger,
			Ask:    func(context.Context) error { return listener.Stands(cmd.Process.Pid) },
			Signal: func(signal syscall.Signal) error { return cmd.Process.Signal(signal) },
		}).Run(background)
	})
	err = cmd.Wait()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return 1, err
	}
	if code := cmd.ProcessState.ExitCode(); code >= 0 {
		return code, nil
	}
	return 1, nil
}
