package supervisor

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/quartet-node/quartet/internal/sockets"
)

// Process is a child process as a Service.
type Process struct {
	// Name is its name in the log, and the prefix of its output.
	Name string
	// Path is the program, and Args its arguments without its name.
	Path string
	Args []string
	// Env is its environment; that of this process when nil.
	Env []string
	// Output receives its standard output and standard error.
	Output *Output
	// PIDFile is the path of its PID file; empty for none. It is for people: without it the process runs.
	PIDFile string
	// Logger logs what concerns the PID file; nil logs nothing.
	Logger *slog.Logger
	// Grace is the time between SIGTERM and SIGKILL.
	Grace time.Duration
	// Sockets returns the listening sockets to pass to the process. It is called before each start; nil for none.
	Sockets func(ctx context.Context) []sockets.Held
	// Guard ends the process when it stands still. It returns when ctx ends, which is when the process has
	// ended. nil for none.
	Guard func(ctx context.Context, process *os.Process)
	// FinalExit is the exit code that means that a restart is pointless: Serve then fails with a FinalError. 0 means none.
	FinalExit int

	turn turn
}

// FinalError is the error of a process that must not be restarted.
type FinalError struct {
	// Name is the name of the process.
	Name string
	// Reason is the last words of the process; empty if there are none.
	Reason string
}

func (e *FinalError) Error() string {
	if e.Reason == "" {
		return e.Name + ": it cannot work with its configuration, and does not say why"
	}
	return e.Name + ": " + e.Reason
}

// String is the process's name.
func (p *Process) String() string { return p.Name }

// Serve runs the process once. When the context ends, it sends SIGTERM, and SIGKILL after the grace period. It returns
// when the process has ended, always with the reason.
func (p *Process) Serve(ctx context.Context) error {
	// The kernel kills the child when the thread that started it ends, so that no child outlives a killed parent. This
	// goroutine therefore keeps its thread until the child has ended.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	p.turn.await(ctx)
	defer p.turn.end()
	out := p.Output.Prefixed(p.Name)
	cmd := exec.CommandContext(ctx, p.Path, p.Args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = p.Env, out, out
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = p.Grace
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGTERM,
		// The child has its own process group, so that the terminal's Ctrl-C reaches only the parent, which stops the
		// children in order.
		Setpgid: true,
	}
	if p.Sockets != nil {
		sockets.Give(cmd, p.Sockets(ctx))
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", p.Name, err)
	}
	p.turn.end()
	unguard := p.guard(ctx, cmd.Process)
	if err := p.writePID(cmd.Process.Pid); err != nil && p.Logger != nil {
		p.Logger.Warn("cannot write a PID file", "process", p.Name, "error", err)
	}
	p.turn.awaitAll(ctx)
	err := cmd.Wait()
	unguard()
	out.Flush()
	if err := p.removePID(); err != nil && p.Logger != nil {
		p.Logger.Warn("cannot remove a PID file", "process", p.Name, "error", err)
	}
	if p.FinalExit != 0 && cmd.ProcessState.ExitCode() == p.FinalExit {
		return &FinalError{Name: p.Name, Reason: out.Reason()}
	}
	return ended(cmd, err)
}

// guard runs Guard, and returns the function that ends it.
func (p *Process) guard(ctx context.Context, process *os.Process) (end func()) {
	if p.Guard == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var guard sync.WaitGroup
	guard.Go(func() { p.Guard(ctx, process) })
	return func() {
		cancel()
		guard.Wait()
	}
}

// ended returns how a process has ended; never nil, because a process of the node does not end by itself.
func ended(cmd *exec.Cmd, err error) error {
	switch {
	case err != nil:
		return fmt.Errorf("pid %d: %w", cmd.Process.Pid, err)
	default:
		return fmt.Errorf("pid %d: exit status 0", cmd.Process.Pid)
	}
}

func (p *Process) writePID(pid int) error {
	if p.PIDFile == "" {
		return nil
	}
	return writePID(p.PIDFile, pid)
}

func (p *Process) removePID() error {
	if p.PIDFile == "" {
		return nil
	}
	return removePID(p.PIDFile)
}

// NewOutput returns an Output for the named processes.
func NewOutput(w io.Writer, names ...string) *Output {
	width := 0
	for _, name := range names {
		width = max(width, len(name))
	}
	return &Output{w: w, width: width}
}
