package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/quartet-node/quartet/internal/sockets"
	"github.com/quartet-node/quartet/internal/statedir"
)

// pidFileMode lets anyone read a process id.
const pidFileMode = 0o644

// Process is a child process as a Service.
type Process struct {
	// Name is the prefix of its output and its name in the log.
	Name string
	// Path is the program, Args its arguments without its name.
	Path string
	Args []string
	// Output gets the lines of its standard output and error, prefixed.
	Output *Output
	// PIDFile is written with its process id at each start and removed at its end; empty for none.
	PIDFile string
	// Grace is how long it may take from SIGTERM until it is killed.
	Grace time.Duration
	// Sockets returns the listening sockets to pass to the process. It is called before each start; nil for none.
	Sockets func(ctx context.Context) []sockets.Held
	// FinalExit is the exit code by which the process says that another start is in vain: Serve fails with a FinalError then. 0 is none.
	FinalExit int
}

// FinalError is the end of a process that is not to be started again.
type FinalError struct {
	// Name is the name of the process.
	Name string
	// Reason is what the process has said at its end; empty when it said nothing.
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

// Serve runs the process once. When the context ends the process is asked to end by SIGTERM, and killed when it does not;
// Serve returns when it has ended, always with the reason.
func (p *Process) Serve(ctx context.Context) error {
	// The kernel ends the child when the thread that started it ends, so that no child outlives a killed parent. The
	// thread must therefore be this goroutine's own until the child has ended.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	out := p.Output.Prefixed(p.Name)
	cmd := exec.CommandContext(ctx, p.Path, p.Args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = p.Grace
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGTERM,
		// A group of its own: the terminal's Ctrl-C reaches only the parent, which then stops the children in order.
		Setpgid: true,
	}
	if p.Sockets != nil {
		sockets.Give(cmd, p.Sockets(ctx))
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", p.Name, err)
	}
	writeErr := p.writePID(cmd.Process.Pid)
	err := cmd.Wait()
	out.Flush()
	if p.FinalExit != 0 && cmd.ProcessState.ExitCode() == p.FinalExit {
		return errors.Join(&FinalError{Name: p.Name, Reason: out.Reason()}, p.removePID())
	}
	return errors.Join(ended(cmd, err), writeErr, p.removePID())
}

// ended says how a process has ended; never nil, for a process of the node never ends by itself in peace.
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
	return statedir.WriteFileAtomic(p.PIDFile, fmt.Appendf(nil, "%d\n", pid), pidFileMode)
}

func (p *Process) removePID() error {
	if p.PIDFile == "" {
		return nil
	}
	if err := os.Remove(p.PIDFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// NewOutput makes the place where all processes write.
func NewOutput(w io.Writer, names ...string) *Output {
	width := 0
	for _, name := range names {
		width = max(width, len(name))
	}
	return &Output{w: w, width: width}
}
