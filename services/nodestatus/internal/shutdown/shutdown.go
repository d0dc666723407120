// Package shutdown terminates the node's pods before the machine shuts down. It holds a lock that delays a shutdown in
// logind, and is notified when a shutdown begins. Then the Node is not ready, syncloop admits no new pods, and the pods
// are terminated in groups, those of the lowest priority first, each group with its time. Finally the lock is released,
// and the machine shuts down.
//
// groups.go decides which pods are due with which grace period, without a clock or a network. syncloop terminates the
// pods of a group on request.
//
// A shutdown in progress survives a restart of this process: the present group and its start are on disk, and logind
// reports the shutdown. The lock does not survive, and logind grants no other during a shutdown: it does not wait any
// longer if there is no other lock.
package shutdown

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/logind"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// firstRetry doubles up to lastRetry while D-Bus or logind is unavailable.
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
	// recheckPeriod is the interval at which logind's delay is checked again if it is too short.
	recheckPeriod = time.Minute

	lockOwner  = "quartet nodestatus"
	lockReason = "The pods of this node are ended before the machine goes down"
)

// Logind is a connection to logind; *logind.Conn implements it.
type Logind interface {
	Next(ctx context.Context) (logind.Event, error)
	InhibitDelay(ctx context.Context) (time.Duration, error)
	PreparingForShutdown(ctx context.Context) (bool, error)
	Inhibit(ctx context.Context, who, why string) (io.Closer, error)
	Reload(ctx context.Context) error
	Close() error
}

// Engine is the interface to syncloop. Each call waits for an unreachable syncloop until its context ends.
type Engine interface {
	// Pods returns the pods that have not ended.
	Pods(ctx context.Context) ([]*v1.Pod, error)
	// End terminates pods, and returns when nothing of them is left.
	End(ctx context.Context, pods []End) error
	// AwaitStatuses waits until the API server has the status of every pod.
	AwaitStatuses(ctx context.Context) error
}

// Config holds the parameters of a Manager.
type Config struct {
	// Periods are the groups; at least one.
	Periods Periods
	// Connect connects to logind.
	Connect func(ctx context.Context) (Logind, error)
	// DropIn is the path of logind's drop-in file, see logind.WriteDropIn.
	DropIn string
	Engine Engine
	// StateDir is the directory for the progress of a shutdown.
	StateDir string
	// Boot is the ID of this boot of the machine, and BootTime the time since it: boottime.Boot and boottime.Now.
	Boot     string
	BootTime func() time.Duration
	// Changed is called when the result of ShuttingDown changes, with the message for the node's event. It must not block.
	Changed func(message string)
	// Waiting receives the problem that would prevent the termination of pods at a shutdown; empty if there is none.
	Waiting func(reason string)
	Logger  *slog.Logger
	Metrics *Metrics
}

// Manager terminates pods before a shutdown. Create it with New, and call Run once.
type Manager struct {
	cfg Config
	// disk writes the progress. A disk that hangs does not delay the end of pods.
	disk statedir.Writer

	mu sync.Mutex
	// down is true while a shutdown is in progress.
	down bool
	// lock delays a shutdown; nil without a lock.
	lock io.Closer
	// over is true when the work for the present shutdown is complete.
	over bool

	// Only Run uses the following fields.
	memory      memory
	lastProblem string
	// stop stops the work for a shutdown, and waits for its end; nil if there is none.
	stop func()
}

// New returns a Manager without a lock. If a previous process was killed during a shutdown, that shutdown counts as in
// progress until logind reports otherwise.
func New(cfg Config) *Manager {
	m := &Manager{cfg: cfg}
	var err error
	if m.memory, err = load(cfg.StateDir); err != nil {
		cfg.Logger.Warn("a shutdown in progress would begin again", telemetry.KeyError, err)
	}
	m.down = m.memory.Boot == cfg.Boot
	cfg.Metrics.set(m.memory)
	return m
}

// ShuttingDown reports whether a shutdown is in progress. It is false for a nil Manager.
func (m *Manager) ShuttingDown() bool {
	if m == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.down
}

// Run waits for shutdowns until ctx ends, and returns its error. It logs once if D-Bus or logind is unavailable, and
// retries.
func (m *Manager) Run(ctx context.Context) error {
	defer m.release()
	defer m.halt()
	for retry := firstRetry; ; retry = min(2*retry, lastRetry) {
		connected, err := m.follow(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if connected {
			retry = firstRetry
		}
		m.report(
			ctx,
			fmt.Sprintf(
				"a shutdown of the machine does not wait until the pods have ended, as shutdownGracePeriod asks: %v: see that D-Bus and systemd-logind run and that nodestatus reaches %s",
				err,
				logind.SystemBus,
			),
		)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(retry):
		}
	}
}

// follow takes the lock and handles logind's events until the connection is lost.
func (m *Manager) follow(ctx context.Context) (connected bool, err error) {
	conn, err := m.cfg.Connect(ctx)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	sufficient, err := m.prepare(ctx, conn)
	for err == nil {
		var event logind.Event
		event, err = m.next(ctx, conn, sufficient)
		switch {
		case err != nil:
			return true, err
		case event == logind.Preparing:
			m.begin(ctx)
			sufficient = true // it is too late for anything else
		case event == logind.CalledOff:
			m.calledOff(ctx)
			sufficient, err = m.prepare(ctx, conn)
		default: // logind was restarted, or some time has passed
			sufficient, err = m.prepare(ctx, conn)
		}
	}
	return false, err
}

// next waits for an event. If logind's delay is too short, it returns without one after some time.
func (m *Manager) next(ctx context.Context, conn Logind, sufficient bool) (logind.Event, error) {
	if sufficient {
		return conn.Next(ctx)
	}
	waitCtx, cancel := context.WithTimeout(ctx, recheckPeriod)
	defer cancel()
	event, err := conn.Next(waitCtx)
	if err != nil && waitCtx.Err() != nil && ctx.Err() == nil {
		return 0, nil
	}
	return event, err
}

// prepare takes the lock, extends logind's delay if possible, and checks whether a shutdown is in progress already.
func (m *Manager) prepare(ctx context.Context, conn Logind) (sufficient bool, err error) {
	preparing, err := conn.PreparingForShutdown(ctx)
	if err != nil {
		return false, err
	}
	problem := ""
	if !preparing {
		if problem, err = m.lengthen(ctx, conn); err != nil {
			return false, err
		}
	}
	if preparing, err = m.inhibit(ctx, conn, preparing); err != nil {
		return false, err
	}
	m.report(ctx, problem)
	if preparing {
		m.begin(ctx)
	} else {
		m.calledOff(ctx)
	}
	return problem == "", nil
}

// inhibit takes a lock unless there is one, and reports whether a shutdown is in progress, because logind then refuses
// locks.
func (m *Manager) inhibit(ctx context.Context, conn Logind, preparing bool) (bool, error) {
	lock, err := conn.Inhibit(ctx, lockOwner, lockReason)
	if errors.Is(err, logind.ErrGoingDown) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if preparing && m.over {
		return true, lock.Close()
	}
	before := m.lock
	m.lock = lock
	m.cfg.Metrics.waits.Set(1)
	if before == nil {
		m.cfg.Logger.InfoContext(ctx, "logind delays a shutdown of the machine until the pods have ended",
			telemetry.KeyDuration, m.cfg.Periods.Total())
		return preparing, nil
	}
	return preparing, before.Close()
}

// lengthen extends logind's delay to the time of all pods, and returns the remedy if that is not possible, for example
// because the drop-in file is not writable.
func (m *Manager) lengthen(ctx context.Context, conn Logind) (problem string, err error) {
	needed := m.cfg.Periods.Total()
	extended, problem, err := logind.Lengthen(ctx, conn, m.cfg.DropIn, needed)
	if extended {
		m.cfg.Logger.InfoContext(ctx, "extended logind's delay", telemetry.KeyFile, m.cfg.DropIn,
			telemetry.KeyDuration, needed)
	}
	return problem, err
}

// report reports the problem in the health, and logs it if it has changed.
func (m *Manager) report(ctx context.Context, problem string) {
	m.cfg.Waiting(problem)
	if problem != m.lastProblem && problem != "" {
		m.cfg.Logger.WarnContext(ctx, problem)
	}
	m.lastProblem = problem
}

// release releases the lock.
func (m *Manager) release() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lock == nil {
		return
	}
	if err := m.lock.Close(); err != nil {
		m.cfg.Logger.Warn("logind may continue to delay the shutdown", telemetry.KeyError, err)
	}
	m.lock = nil
	m.cfg.Metrics.waits.Set(0)
}
