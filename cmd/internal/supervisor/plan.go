package supervisor

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/gosettings"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/logging"
	"github.com/quartet-node/quartet/internal/logqueue"
	"github.com/quartet-node/quartet/internal/memory"
	"github.com/quartet-node/quartet/internal/sockets"
	"github.com/quartet-node/quartet/internal/systemd"
	"github.com/quartet-node/quartet/internal/watchdog"
)

const (
	// grace is the time for a process to stop. The services wait up to 5 s for calls in flight.
	grace = 10 * time.Second
	// stopTimeout is grace and the time to kill the remaining processes.
	stopTimeout = grace + 5*time.Second
	// askTimeout bounds the command that prints the sockets of a process.
	askTimeout = 10 * time.Second
)

// Plan is a node for a supervisor: its processes, and everything about them that the configuration says. It is made by
// package nodecmd, which knows the configuration, and can be passed to another program as JSON.
type Plan struct {
	// Name is the name of the supervisor in the log, and of its PID file.
	Name string
	// StateDir is the node's state directory.
	StateDir string
	// Config is the path of the configuration file; empty for none. The sockets of the parts are those of a file with the
	// SHA-256 ConfigSum; if it has another one by now, a part is asked for its sockets.
	Config    string
	ConfigSum [sha256.Size]byte
	// Logging is that of the supervisor's own lines.
	Logging logging.Config
	// StuckTimeout is how long a part may stand still before it is ended; 0 for ever.
	StuckTimeout time.Duration
	// FinalExit is the exit code of a part that cannot work with its configuration; a restart is pointless then.
	FinalExit int
	Parts     []Part
}

// Part is a process of a Plan.
type Part struct {
	// Name is its name in the log, and of its PID file.
	Name string
	// Path is the program, and Args its arguments without its name.
	Path string
	Args []string
	// Foreign is for a program that is not Quartet's. It has to know nothing of a supervisor.
	Foreign bool
	// Sockets are its listening sockets, which stay open while it restarts.
	Sockets []sockets.Shared
	// AskSockets is the command that prints Sockets as JSON, and fails if the configuration is invalid.
	AskSockets []string
}

// ConfigSum returns the SHA-256 of a configuration file; that of no bytes without a file. It fails if the file is not
// readable.
func ConfigSum(file string) ([sha256.Size]byte, error) {
	if file == "" {
		return sha256.Sum256(nil), nil
	}
	data, err := os.ReadFile(file)
	return sha256.Sum256(data), err
}

// Host is what the process has that runs a Plan.
type Host struct {
	// Log receives the log of all processes.
	Log *logqueue.Queue
	// Systemd is notified when all parts are ready, and when they stop.
	Systemd systemd.Notifier
	// Sockets has the inherited sockets. Run closes them.
	Sockets *sockets.Set
}

// Run runs the parts, and other services beside them, until ctx ends and all of them have ended. It fails with a
// FinalError of a part, and if a process does not end.
func (p Plan) Run(ctx context.Context, host Host, others ...Service) (err error) {
	l, err := layout.New(p.StateDir)
	if err != nil {
		return err
	}
	names := []string{p.Name}
	for _, part := range p.Parts {
		names = append(names, part.Name)
	}
	n := &node{plan: p, layout: l, host: host, output: NewOutput(host.Log, names...)}
	if p.Logging.JSON {
		n.output = Whole(host.Log)
	}
	n.logger = slog.New(p.Logging.Handler(n.output.Prefixed(p.Name)))
	if p.Logging.JSON {
		n.logger = n.logger.With("service", p.Name)
	}
	host.Log.OnDropped(func(lines int) {
		n.logger.Warn("lines were dropped because the output of this command was not read", "lines", lines)
	})
	defer func() { err = errors.Join(err, host.Sockets.Close()) }()
	// The file is for people and scripts; quartet itself identifies a process by its lock.
	pidFile := l.PIDFile(p.Name)
	if err := writePID(pidFile, os.Getpid()); err != nil {
		n.logger.Warn("cannot write the PID file", logging.KeyError, err)
	}
	defer func() {
		if err := removePID(pidFile); err != nil {
			n.logger.Warn("cannot remove the PID file", logging.KeyError, err)
		}
	}()
	return n.run(ctx, others)
}

// node is a Plan that runs.
type node struct {
	plan   Plan
	layout layout.Layout
	host   Host
	output *Output
	logger *slog.Logger

	mu sync.Mutex
	// sum and asked have the sockets of the parts by the last file that is not that of the plan.
	sum   [sha256.Size]byte
	asked map[string][]sockets.Shared
}

func (n *node) run(ctx context.Context, others []Service) error {
	n.keepSockets()
	ctx, stop := context.WithCancel(ctx)
	// The processes report also that they stop.
	listening, deafen := context.WithCancel(context.WithoutCancel(ctx))
	var background sync.WaitGroup
	defer background.Wait()
	defer deafen()
	defer stop()
	var services []Service
	var starting []*systemd.Listener
	for _, part := range n.plan.Parts {
		listener, err := systemd.Listen(n.plan.StuckTimeout, clock.RealClock{})
		if err != nil {
			return err
		}
		background.Go(func() {
			if err := listener.Run(listening); err != nil {
				n.logger.Error("a process is not watched", "process", part.Name, logging.KeyError, err)
			}
		})
		services = append(services, n.process(part, listener))
		if !part.Foreign {
			starting = append(starting, listener)
		}
	}
	n.logger.Info("starting the services", "services", len(n.plan.Parts), "pid", os.Getpid(), "state", n.layout.StateDir(),
		"config", n.plan.Config)
	background.Go(func() { n.announce(ctx, starting) })
	background.Go(func() { n.host.Systemd.KeepAlive(ctx, clock.RealClock{}, n.logger) })
	background.Go(func() { memory.SmallAtRest(ctx, clock.RealClock{}) })
	err := Run(ctx, Config{Services: append(services, others...), Logger: n.logger, StopTimeout: stopTimeout})
	stop()
	deafen()
	background.Wait()
	n.logger.Info("stopped; the pods continue to run")
	return err
}

// announce notifies systemd that the node is ready when each of its processes has been, and that it stops when ctx
// ends. It returns then.
func (n *node) announce(ctx context.Context, starting []*systemd.Listener) {
	for _, listener := range starting {
		select {
		case <-ctx.Done():
		case <-listener.Ready():
		}
	}
	if ctx.Err() == nil {
		n.host.Systemd.Ready(n.logger)
	}
	<-ctx.Done()
	n.host.Systemd.Stopping(n.logger)
}

// process returns the process of a part.
func (n *node) process(part Part, listener *systemd.Listener) *Process {
	env := os.Environ()
	if !part.Foreign {
		env = gosettings.ChildEnv(env)
	}
	return &Process{
		Name:    part.Name,
		Path:    part.Path,
		Args:    part.Args,
		Env:     append(env, listener.Env()...),
		Output:  n.output,
		PIDFile: n.layout.PIDFile(part.Name),
		Logger:  n.logger,
		Grace:   grace,
		Sockets: func(ctx context.Context) []sockets.Held { return n.hold(ctx, part) },
		Guard:   n.guard(part, listener),

		FinalExit: n.plan.FinalExit,
	}
}

// guard returns the Guard of the process of a part; nil if it may stand still for ever.
func (n *node) guard(part Part, listener *systemd.Listener) func(context.Context, *os.Process) {
	if n.plan.StuckTimeout <= 0 {
		return nil
	}
	return func(ctx context.Context, process *os.Process) {
		if !part.Foreign {
			listener.Started(process.Pid)
		}
		(&watchdog.Guard{
			Name: part.Name, Patience: n.plan.StuckTimeout, Clock: clock.RealClock{}, Logger: n.logger,
			Ask:    func(context.Context) error { return listener.Stands(process.Pid) },
			Signal: func(signal syscall.Signal) error { return process.Signal(signal) },
		}).Run(ctx)
	}
}

// keepSockets closes the sockets that this process was passed and that no part is configured to listen on.
func (n *node) keepSockets() {
	var wanted []sockets.Socket
	for _, part := range n.plan.Parts {
		for _, socket := range part.Sockets {
			wanted = append(wanted, socket.InSet())
		}
	}
	n.host.Sockets.Keep(wanted, n.logger)
}

// hold opens the sockets of a part before each start of it. They stay open while the part restarts, so that connections
// wait and are not refused. A socket that cannot be opened does not prevent the start: the process then tries to listen
// by itself, and reports the error as it does without a supervisor.
func (n *node) hold(ctx context.Context, part Part) []sockets.Held {
	var held []sockets.Held
	for _, socket := range n.socketsOf(ctx, part) {
		one, opened, err := n.host.Sockets.Hold(ctx, socket.InSet(), n.logger)
		switch {
		case err != nil:
			n.logger.Warn("a socket is not kept open while its process restarts; the process tries to listen by itself",
				"process", part.Name, "socket", socket.Name, "address", socket.Address, logging.KeyError, err)
		case opened:
			one.Name = socket.Name
			held = append(held, one)
		}
	}
	return held
}

// socketsOf returns the sockets of a part by the configuration file as it is; none if that is wrong, which the part
// itself reports.
func (n *node) socketsOf(ctx context.Context, part Part) []sockets.Shared {
	sum, err := ConfigSum(n.plan.Config)
	if err == nil && sum == n.plan.ConfigSum {
		return part.Sockets
	}
	if err == nil {
		if known, ok := n.known(part.Name, sum); ok {
			return known
		}
	}
	now, err := askSockets(ctx, part.AskSockets)
	if err != nil {
		n.logger.Debug("a process does not know its sockets", "process", part.Name, logging.KeyError, err)
		return nil
	}
	n.remember(part.Name, sum, now)
	return now
}

// known returns the sockets of a part that were asked for with a file of this sum.
func (n *node) known(name string, sum [sha256.Size]byte) ([]sockets.Shared, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	known, ok := n.asked[name]
	return known, ok && n.sum == sum
}

// remember keeps the sockets of a part for a file of this sum, and forgets those for another one.
func (n *node) remember(name string, sum [sha256.Size]byte, all []sockets.Shared) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.asked == nil || n.sum != sum {
		n.sum, n.asked = sum, map[string][]sockets.Shared{}
	}
	n.asked[name] = all
}

// askSockets runs the command that prints the sockets of a part.
func askSockets(ctx context.Context, command []string) ([]sockets.Shared, error) {
	if len(command) == 0 {
		return nil, errors.New("there is no command that prints them")
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, bytes.TrimSpace(complaint.Bytes()))
	}
	var all []sockets.Shared
	if err := json.Unmarshal(out, &all); err != nil {
		return nil, fmt.Errorf("%s prints %q: %w", command[0], out, err)
	}
	return all, nil
}
