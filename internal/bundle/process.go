package bundle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"

	"github.com/quartet-node/quartet/internal/logfile"
	"github.com/quartet-node/quartet/internal/process"
	"github.com/quartet-node/quartet/internal/statedir"
)

const (
	// startTimeout bounds the time until containerd serves the CRI, which usually takes about half a second.
	startTimeout = 60 * time.Second
	// stopTimeout is the time after which a containerd that does not end is killed.
	stopTimeout = 10 * time.Second
	// pollInterval is the polling interval for conditions without a notification.
	pollInterval = 20 * time.Millisecond
	// logTail is the number of bytes of containerd's log in an error.
	logTail = 2048
)

// Start ensures that the runtime runs and serves the CRI. It starts containerd, or finds the running containerd of this
// state directory. Prepare must have been called. The end of ctx ends the wait, not containerd.
func (b *Bundle) Start(ctx context.Context) error {
	runs := func() bool { return b.PID() != 0 }
	switch pid := b.PID(); pid {
	case 0:
		ended, err := b.spawn()
		if err != nil {
			return err
		}
		// It has no command line while the kernel loads its program, so it is not searched for.
		runs = func() bool { return !isClosed(ended) }
	case b.savedPID():
	default: // the file was damaged or lost
		b.savePID(pid)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := b.waitServing(ctx, runs); err != nil {
		return fmt.Errorf("waiting for containerd: %w; the end of %s:\n%s", err, b.logFile(), b.tailLog())
	}
	return nil
}

func isClosed(channel <-chan struct{}) bool {
	select {
	case <-channel:
		return true
	default:
		return false
	}
}

// spawn starts containerd as a session leader with its output in a file, so that the end of this process does not
// affect it. The channel is closed when containerd has ended.
func (b *Bundle) spawn() (<-chan struct{}, error) {
	log, err := logfile.Open(b.logFile())
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(b.binary("containerd"), "--config", b.configFile())
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = "/"
	cmd.Env = b.environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	startErr := cmd.Start()
	if err := errors.Join(startErr, log.Close()); err != nil {
		return nil, fmt.Errorf("starting containerd: %w", err)
	}
	// Wait reaps containerd, so that its end is visible. The goroutine lives as long as containerd.
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err := cmd.Wait()
		b.cfg.Logger.Debug("containerd has ended", "pid", cmd.Process.Pid, "error", err)
	}()
	b.savePID(cmd.Process.Pid)
	return ended, nil
}

// savePID writes the PID file. It only makes the process easier to find, see PID, so a failure is logged.
func (b *Bundle) savePID(pid int) {
	if err := statedir.WriteFileAtomic(b.pidFile(), fmt.Appendf(nil, "%d\n", pid), fileMode); err != nil {
		b.cfg.Logger.Warn("cannot write the PID file of containerd", "error", err)
	}
}

// environment returns this process's environment with the bundled binaries first in PATH. It removes variables that
// concern only this process: a supervisor's notification socket, and the service name in traces.
func (b *Bundle) environment() []string {
	env := append([]string{"PATH=" + b.binDir() + ":" + os.Getenv("PATH")}, tracing(os.Getenv)...)
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if name == "PATH" || name == "NOTIFY_SOCKET" ||
			slices.ContainsFunc(env, func(own string) bool { return strings.HasPrefix(own, name+"=") }) {
			continue
		}
		env = append(env, kv)
	}
	return env
}

// tracing configures containerd to export its spans under its own name and by the services' protocol. It samples only
// calls that belong to a trace, because pleg polls it all day.
func tracing(getenv func(string) string) []string {
	if getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
		return nil
	}
	return []string{
		"OTEL_SERVICE_NAME=containerd", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=grpc",
		"OTEL_TRACES_SAMPLER=parentbased_always_off",
	}
}

// PID returns the process ID of the containerd of this state directory; 0 if none runs. It does not depend on the PID
// file, because two containerds of one directory would harm each other.
func (b *Bundle) PID() int {
	if saved, err := procfs.NewProc(b.savedPID()); err == nil && b.isOurs(saved) {
		return saved.PID
	}
	all, err := procfs.AllProcs()
	if err != nil {
		return 0
	}
	for _, proc := range all {
		if b.isOurs(proc) {
			return proc.PID
		}
	}
	return 0
}

// savedPID returns the content of the PID file; 0 without a valid one.
func (b *Bundle) savedPID() int {
	content, err := os.ReadFile(b.pidFile())
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		return 0
	}
	return pid
}

// isOurs reports whether a process is our containerd and not one that reused the number: its command line has our
// program and our configuration, and it is in our PID namespace, unlike that of a node in a container. A zombie has no
// command line and does not count.
func (b *Bundle) isOurs(proc procfs.Proc) bool {
	args, err := proc.CmdLine()
	return err == nil && len(args) > 0 && args[0] == b.binary("containerd") && slices.Contains(args, b.configFile()) &&
		process.Local(proc.PID) == nil
}

// Wait returns an error when containerd has ended, or nil when ctx ends. containerd need not be a child of this
// process.
func (b *Bundle) Wait(ctx context.Context) error {
	pid := b.PID()
	if pid == 0 {
		return errors.New("containerd does not run")
	}
	if err := process.Wait(ctx, pid); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("containerd (pid %d) has ended; its log is %s", pid, b.logFile())
}

// Stop ends containerd, the remaining shims and their containers. Call RemovePods before it to end the pods gracefully.
func (b *Bundle) Stop(ctx context.Context) error {
	if pid := b.PID(); pid != 0 {
		containerd, err := process.Open(pid, func() error { return b.proveOurs(pid) })
		switch {
		case err == nil:
			err = errors.Join(containerd.End(ctx, stopTimeout), containerd.Close())
		case errors.Is(err, process.ErrEnded):
			err = nil
		}
		if err != nil {
			return fmt.Errorf("stopping containerd: %w", err)
		}
	}
	return b.killShims(ctx)
}

// killShims kills the shims of this runtime and their containers.
func (b *Bundle) killShims(ctx context.Context) error {
	left, err := b.leftovers()
	if err != nil {
		return err
	}
	// All are opened before any is killed: the parent of an orphan is no shim.
	var opened []*process.Process
	var errs []error
	for _, pid := range left {
		one, err := process.Open(pid, func() error { return b.proveLeftover(pid) })
		switch {
		case err == nil:
			opened = append(opened, one)
		case !errors.Is(err, process.ErrEnded):
			errs = append(errs, err)
		}
	}
	for _, one := range opened {
		b.cfg.Logger.Warn("killing the remaining processes of a pod", "pid", one.PID())
		errs = append(errs, one.Kill(ctx), one.Close())
	}
	return errors.Join(errs...)
}

// proveOurs fails with process.ErrEnded if a number is no longer that of our containerd.
func (b *Bundle) proveOurs(pid int) error {
	if proc, err := procfs.NewProc(pid); err != nil || !b.isOurs(proc) {
		return process.ErrEnded
	}
	return nil
}

// proveLeftover fails with process.ErrEnded if a number is no longer that of a shim or of a child of one.
func (b *Bundle) proveLeftover(pid int) error {
	proc, err := procfs.NewProc(pid)
	if err != nil {
		return process.ErrEnded
	}
	stat, err := proc.Stat()
	if err != nil {
		return process.ErrEnded
	}
	for _, pid := range []int{pid, stat.PPID} {
		if proc, err := procfs.NewProc(pid); err == nil && b.isOurShim(proc) {
			return nil
		}
	}
	return process.ErrEnded
}

// Running reports whether containerd, or any process of a pod, runs.
func (b *Bundle) Running() (bool, error) {
	if b.PID() != 0 {
		return true, nil
	}
	left, err := b.leftovers()
	return len(left) > 0, err
}

// leftovers returns the shims of this runtime, identified by containerd's address in their command lines, and their
// containers, whose first process has the shim as parent.
func (b *Bundle) leftovers() ([]int, error) {
	all, err := procfs.AllProcs()
	if err != nil {
		return nil, fmt.Errorf("looking for remaining processes of pods: %w", err)
	}
	shims := map[int]bool{}
	parents := map[int]int{}
	for _, proc := range all {
		// A process that cannot be read has ended.
		if stat, err := proc.Stat(); err == nil {
			parents[proc.PID] = stat.PPID
		}
		if b.isOurShim(proc) {
			shims[proc.PID] = true
		}
	}
	var left []int
	for pid, parent := range parents {
		if shims[pid] || shims[parent] {
			left = append(left, pid)
		}
	}
	return left, nil
}

// isOurShim reports whether a process is a shim of this runtime, in our PID namespace.
func (b *Bundle) isOurShim(proc procfs.Proc) bool {
	args, err := proc.CmdLine()
	return err == nil && len(args) > 0 && args[0] == b.binary("containerd-shim-runc-v2") &&
		slices.Contains(args, b.cfg.Layout.RuntimeSocket()) && process.Local(proc.PID) == nil
}

// tailLog returns the end of containerd's log, for an error.
func (b *Bundle) tailLog() string {
	content, err := os.ReadFile(b.logFile())
	if err != nil {
		return err.Error()
	}
	if len(content) > logTail {
		content = content[len(content)-logTail:]
	}
	return string(content)
}
