package bundle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/quartet-node/quartet/internal/logfile"
	"github.com/quartet-node/quartet/internal/process"
	"github.com/quartet-node/quartet/internal/statedir"
)

const (
	// startTimeout is how long containerd may take until it serves CRI; it takes about half a second.
	startTimeout = 60 * time.Second
	// stopTimeout is how long it may take to end before it is killed.
	stopTimeout = 10 * time.Second
	// pollInterval is the time between two looks at something that tells nobody when it is done.
	pollInterval = 20 * time.Millisecond
	// logTail is how much of containerd's log an error quotes, in bytes.
	logTail = 2048
)

// Start sees to it that the runtime runs and serves CRI: it starts containerd, or finds the one that runs already for
// this state directory. Prepare must have been called. A context that ends ends the waiting, not containerd.
func (b *Bundle) Start(ctx context.Context) error {
	if b.PID() == 0 {
		if err := b.spawn(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := b.waitServing(ctx); err != nil {
		return fmt.Errorf("waiting for containerd: %w; the end of %s:\n%s", err, b.logFile(), b.tailLog())
	}
	return nil
}

// spawn starts containerd as the leader of a session of its own, with its output in a file, so that nothing that ends
// this process reaches it.
func (b *Bundle) spawn() error {
	log, err := logfile.Open(b.logFile())
	if err != nil {
		return err
	}
	cmd := exec.Command(b.binary("containerd"), "--config", b.configFile())
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = "/"
	cmd.Env = b.environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	startErr := cmd.Start()
	if err := errors.Join(startErr, log.Close()); err != nil {
		return fmt.Errorf("starting containerd: %w", err)
	}
	// Reaped when it ends, so that it is seen to have ended; the goroutine lives as long as containerd.
	go func() {
		err := cmd.Wait()
		b.cfg.Logger.Debug("containerd has ended", "pid", cmd.Process.Pid, "error", err)
	}()
	return statedir.WriteFileAtomic(b.pidFile(), fmt.Appendf(nil, "%d\n", cmd.Process.Pid), fileMode)
}

// environment is this process's, with the bundled binaries first in the path and without what is about this process
// alone: a supervisor's notification socket, and its name in traces.
func (b *Bundle) environment() []string {
	env := append([]string{"PATH=" + b.binDir() + ":" + os.Getenv("PATH")}, tracing(os.Getenv)...)
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if name == "PATH" || name == "NOTIFY_SOCKET" || slices.ContainsFunc(env, func(own string) bool { return strings.HasPrefix(own, name+"=") }) {
			continue
		}
		env = append(env, kv)
	}
	return env
}

// tracing lets containerd's own spans join those of the services: under its own name, by the services' protocol, and only
// for calls that belong to a trace, since pleg asks it all day on no pod's behalf.
func tracing(getenv func(string) string) []string {
	if getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
		return nil
	}
	return []string{
		"OTEL_SERVICE_NAME=containerd", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=grpc",
		"OTEL_TRACES_SAMPLER=parentbased_always_off",
	}
}

// PID is the process id of the containerd that runs for this state directory; 0 when none does.
func (b *Bundle) PID() int {
	content, err := os.ReadFile(b.pidFile())
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil || !b.isOurs(pid) {
		return 0
	}
	return pid
}

// isOurs tells a process from one that got the same number later: its command line names our configuration. A zombie has
// no command line and does not count.
func (b *Bundle) isOurs(pid int) bool {
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && bytes.Contains(cmdline, []byte(b.configFile()+"\x00"))
}

// Wait returns when containerd has ended, with an error that says so, or when the context ends, with nil. containerd need
// not be a child of this process.
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

// Stop ends containerd and the shims that are left; whatever runs in them ends too. RemovePods comes before it when the
// pods should end in peace.
func (b *Bundle) Stop(ctx context.Context) error {
	if pid := b.PID(); pid != 0 {
		if err := process.End(ctx, pid, stopTimeout); err != nil {
			return fmt.Errorf("stopping containerd: %w", err)
		}
	}
	return b.killShims(ctx)
}

// killShims ends the shims of this runtime and the containers that they held.
func (b *Bundle) killShims(ctx context.Context) error {
	left, err := b.leftovers()
	if err != nil {
		return err
	}
	var errs []error
	for _, pid := range left {
		b.cfg.Logger.Warn("killing what a pod left behind", "pid", pid)
		errs = append(errs, process.Kill(ctx, pid))
	}
	return errors.Join(errs...)
}

// Running is true when containerd or anything of a pod runs.
func (b *Bundle) Running() (bool, error) {
	if b.PID() != 0 {
		return true, nil
	}
	left, err := b.leftovers()
	return len(left) > 0, err
}

// leftovers are the shims of this runtime, told by the address of containerd in their command lines, and the containers
// that they hold: a container's first process has its shim as parent.
func (b *Bundle) leftovers() ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("looking for what pods left behind: %w", err)
	}
	address := []byte("\x00" + b.cfg.Layout.RuntimeSocket() + "\x00")
	shims := map[int]bool{}
	parents := map[int]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		parents[pid] = parentOf(pid)
		cmdline, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && bytes.HasPrefix(cmdline, []byte(b.binary("containerd-shim-runc-v2"))) && bytes.Contains(cmdline, address) {
			shims[pid] = true
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

// parentOf reads the fourth field of stat; the second, in brackets, may have spaces.
func parentOf(pid int) int {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 2 {
		return 0
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return 0
	}
	return parent
}

// tailLog is the end of containerd's log, for an error.
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
