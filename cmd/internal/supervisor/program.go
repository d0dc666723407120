package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/internal/gosettings"
	"github.com/quartet-node/quartet/internal/logqueue"
	"github.com/quartet-node/quartet/internal/sockets"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/systemd"
)

const (
	// Program is the name of the program that only runs a Plan. It is a tenth of the program that makes the plan, and
	// needs a third of its memory.
	Program = "quartet-supervisor"
	// variable has the number of the descriptor with the inheritance.
	variable = "QUARTET_PLAN"

	usage = `quartet-supervisor starts the services of a node, restarts what ends, and ends what stands still.

"quartet node" and "quartet kubelet" become this program once they have read and checked their configuration. It has no
flags, and cannot be started by itself: run "quartet node --help".
`
)

// inheritance is what a process passes to the program that replaces it.
type inheritance struct {
	Plan Plan
	// Lock is the descriptor of the lock of the node.
	Lock int
}

// Become replaces this process by the program at a path, which is Program, to run the plan. The process keeps its ID,
// its arguments, its standard streams, what systemd has passed to it, and the lock of the node. Everything else of it
// ends. It returns only if that fails, or without an error if ctx has ended.
func (p Plan) Become(ctx context.Context, path string, lock *statedir.Held) error {
	fd, err := lock.Pass()
	if err != nil {
		return err
	}
	file, err := memoryFile(inheritance{Plan: p, Lock: fd})
	if err != nil {
		return fmt.Errorf("passing the plan of the node: %w", err)
	}
	// From now on a signal ends the process. There is nothing to stop before the program has started.
	signal.Reset(syscall.SIGINT, syscall.SIGTERM)
	if ctx.Err() != nil {
		return unix.Close(file)
	}
	env := append(gosettings.ChildEnv(os.Environ()), variable+"="+strconv.Itoa(file))
	err = syscall.Exec(path, os.Args, env) //nolint:gosec // it is a program of this build
	return errors.Join(fmt.Errorf("running %s: %w", path, err), unix.Close(file))
}

// memoryFile returns a descriptor, which execve(2) does not close, with a value as JSON.
func memoryFile(value any) (fd int, err error) {
	data, err := json.Marshal(value)
	if err != nil {
		return -1, err
	}
	fd, err = unix.MemfdCreate("plan", unix.MFD_NOEXEC_SEAL) // sysctl vm.memfd_noexec may require it
	if errors.Is(err, unix.EINVAL) {                         // before Linux 6.3
		fd, err = unix.MemfdCreate("plan", 0)
	}
	if err != nil {
		return -1, err
	}
	for written := 0; written < len(data); {
		n, err := unix.Pwrite(fd, data[written:], int64(written))
		if err != nil {
			return -1, errors.Join(err, unix.Close(fd))
		}
		written += n
	}
	return fd, nil
}

// Main runs the plan that this process has inherited until SIGINT or SIGTERM, and exits: with 1 after an error, which
// is on standard error.
func Main() {
	gosettings.Begin()
	if len(os.Args) > 1 && (os.Args[1] == "--help" || os.Args[1] == "-h") && os.Getenv(variable) == "" {
		fmt.Print(usage)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := runInherited(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(os.Args[0]), err)
		os.Exit(1)
	}
}

func runInherited(ctx context.Context) (err error) {
	notifier := systemd.Take() // before the services are started, which would inherit it
	host := Host{Systemd: notifier, Sockets: sockets.Take(notifier)}
	plan, lock, err := inherited()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	host.Log = logqueue.New(os.Stderr)
	defer host.Log.Close()
	return plan.Run(ctx, host)
}

// inherited returns the plan, and the lock of the node, which no child inherits.
func inherited() (Plan, *statedir.Held, error) {
	fd, err := strconv.Atoi(os.Getenv(variable))
	if err != nil {
		return Plan{}, nil, errors.New(`there is no plan of a node: run "quartet node", which becomes this program`)
	}
	if err := os.Unsetenv(variable); err != nil {
		return Plan{}, nil, err
	}
	file := os.NewFile(uintptr(fd), "plan")
	data, err := io.ReadAll(file)
	if err := errors.Join(err, file.Close()); err != nil {
		return Plan{}, nil, fmt.Errorf("reading the plan of the node: %w", err)
	}
	var all inheritance
	if err := json.Unmarshal(data, &all); err != nil {
		return Plan{}, nil, fmt.Errorf("the plan of the node is of another version: install quartet and %s together: %w",
			Program, err)
	}
	lock, err := statedir.Passed(all.Lock)
	return all.Plan, lock, err
}
