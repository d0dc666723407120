// Package shutdown ends the node's pods before the machine goes down. It has logind wait with a shutdown, by a lock, and is told when
// one is to come. Then the Node is not ready, syncloop lets no new pod in, and the pods go in groups, those of least priority
// first, each group with its time; then the lock is given back, and the machine goes down.
//
// Which pod has to go when, and with which grace period, is decided in groups.go, without a clock or a network. syncloop ends the
// pods; this package asks it to, group by group.
//
// A shutdown outlives this process: which group's turn it is, and since when, is on disk, and whether there is a shutdown logind
// says. But the lock does not, and logind gives no other then: it waits no longer when nobody else has one.
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

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/nodestatus/internal/logind"
)

const (
	// firstRetry doubles up to lastRetry while there is no D-Bus or no logind.
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
	// recheckPeriod is how often it is looked whether logind waits long enough now, when it does not.
	recheckPeriod = time.Minute
	// reloads is how often logind is asked whether it has read its configuration again, first after reloadPause, then after twice as long.
	reloads     = 5
	reloadPause = 100 * time.Millisecond

	who = "quartet nodestatus"
	why = "The pods of this node are ended before the machine goes down"
)

// Logind is logind, over one connection; *logind.Conn is one.
type Logind interface {
	Next(ctx context.Context) (logind.Event, error)
	InhibitDelay(ctx context.Context) (time.Duration, error)
	PreparingForShutdown(ctx context.Context) (bool, error)
	Inhibit(ctx context.Context, who, why string) (io.Closer, error)
	Reload(ctx context.Context) error
	Close() error
}

// Engine is syncloop. Each call waits for a syncloop that is away until its context ends.
type Engine interface {
	// Pods returns the pods that have not ended.
	Pods(ctx context.Context) ([]*v1.Pod, error)
	// End ends pods, and returns when nothing of them is left.
	End(ctx context.Context, pods []End) error
	// AwaitStatuses returns when the API server has the status of every pod.
	AwaitStatuses(ctx context.Context) error
}

// Config is what a Manager needs.
type Config struct {
	// Periods are the groups; at least one.
	Periods Periods
	// Connect connects to logind.
	Connect func(ctx context.Context) (Logind, error)
	// DropIn is the file that has logind wait longer; see logind.WriteDropIn.
	DropIn string
	Engine Engine
	// StateDir is where it is remembered how a shutdown goes.
	StateDir string
	// Boot names this boot of the machine, and BootTime is the time since it: boottime.ID and Now.
	Boot     string
	BootTime func() time.Duration
	// Changed is called when ShuttingDown gives another answer, with what the node's event says of it. It does not wait.
	Changed func(message string)
	// Waiting is told what keeps the pods from being ended at a shutdown; nothing when nothing does.
	Waiting func(reason string)
	Logger  *slog.Logger
	Metrics *Metrics
}

// Manager ends pods before a shutdown. Make it with New, and Run it once.
type Manager struct {
	cfg Config

	mu sync.Mutex
	// down is true while a shutdown is to come.
	down bool
	// lock has logind wait; nil while it does not.
	lock io.Closer
	// over is true when all was done for the shutdown that is to come: nothing is to wait any more.
	over bool

	// Of Run alone.
	memory memory
	told   string
	// stop ends the work for a shutdown, and returns when it has ended; nil when none was begun.
	stop func()
}

// New returns a Manager that has no lock yet. When a process before it was killed in the middle of a shutdown, that is to come until
// logind says otherwise.
func New(cfg Config) *Manager {
	m := &Manager{cfg: cfg}
	var err error
	if m.memory, err = load(cfg.StateDir); err != nil {
		cfg.Logger.Warn("a shutdown that was under way would begin again", telemetry.KeyError, err)
	}
	m.down = m.memory.Boot == cfg.Boot
	cfg.Metrics.set(m.memory)
	return m
}

// ShuttingDown tells whether a shutdown is to come. A nil Manager knows of none.
func (m *Manager) ShuttingDown() bool {
	if m == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.down
}

// Run waits for shutdowns until ctx ends, and returns its error. Without D-Bus or logind it says so once, and looks again.
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
		m.tell(ctx, fmt.Sprintf("a shutdown of the machine does not wait until the pods have ended, as shutdownGracePeriod asks: %v: see that D-Bus and systemd-logind run and that nodestatus reaches %s", err, logind.SystemBus))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(retry):
		}
	}
}

// follow has logind wait and does what it says, until the connection is gone.
func (m *Manager) follow(ctx context.Context) (connected bool, err error) {
	conn, err := m.cfg.Connect(ctx)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	enough, err := m.prepare(ctx, conn)
	for err == nil {
		var event logind.Event
		event, err = m.next(ctx, conn, enough)
		switch {
		case err != nil:
			return true, err
		case event == logind.Preparing:
			m.begin(ctx)
			enough = true // it is too late for anything else
		case event == logind.CalledOff:
			m.calledOff(ctx)
			enough, err = m.prepare(ctx, conn)
		default: // another logind than before, or some time is over
			enough, err = m.prepare(ctx, conn)
		}
	}
	return false, err
}

// next waits for an event. When logind does not wait long enough it returns without one after some time.
func (m *Manager) next(ctx context.Context, conn Logind, enough bool) (logind.Event, error) {
	if enough {
		return conn.Next(ctx)
	}
	some, cancel := context.WithTimeout(ctx, recheckPeriod)
	defer cancel()
	event, err := conn.Next(some)
	if err != nil && some.Err() != nil && ctx.Err() == nil {
		return 0, nil
	}
	return event, err
}

// prepare has logind wait, long enough if that can be had, and finds out whether a shutdown is to come already.
func (m *Manager) prepare(ctx context.Context, conn Logind) (enough bool, err error) {
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
	m.tell(ctx, problem)
	if preparing {
		m.begin(ctx)
	} else {
		m.calledOff(ctx)
	}
	return problem == "", nil
}

// inhibit takes a lock unless there is one, and returns whether a shutdown is to come: a logind that gives no lock any more says so.
func (m *Manager) inhibit(ctx context.Context, conn Logind, preparing bool) (bool, error) {
	lock, err := conn.Inhibit(ctx, who, why)
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
		m.cfg.Logger.InfoContext(ctx, "logind waits with a shutdown of the machine until the pods have ended", telemetry.KeyDuration, m.cfg.Periods.Total())
		return preparing, nil
	}
	return preparing, before.Close()
}

// lengthen has logind wait for as long as the pods may take, and returns what is to be done when it does not: who may not write
// the file cannot have it do so.
func (m *Manager) lengthen(ctx context.Context, conn Logind) (problem string, err error) {
	needed := m.cfg.Periods.Total()
	delay, err := conn.InhibitDelay(ctx)
	if err != nil || delay >= needed {
		return "", err
	}
	failed := logind.WriteDropIn(m.cfg.DropIn, needed)
	if failed == nil {
		if failed = conn.Reload(ctx); failed == nil {
			if delay, err = m.reloaded(ctx, conn, needed); err != nil {
				return "", err
			}
		}
	}
	if delay >= needed {
		m.cfg.Logger.InfoContext(ctx, "logind waits longer from now on", telemetry.KeyFile, m.cfg.DropIn, telemetry.KeyDuration, needed)
		return "", nil
	}
	problem = fmt.Sprintf("logind waits with a shutdown for %v only, the pods may take %v: write %q to %s and run `systemctl kill --signal=HUP systemd-logind`", delay, needed, logind.DropInText(needed), m.cfg.DropIn)
	if failed != nil {
		return problem + ": " + failed.Error(), nil
	}
	return problem + "; the file is there, look for InhibitDelayMaxSec in files that are read after it, and whether it is that of the machine or of a container", nil
}

// reloaded waits some moments until logind has read its configuration again.
func (m *Manager) reloaded(ctx context.Context, conn Logind, needed time.Duration) (delay time.Duration, err error) {
	pause := reloadPause
	for range reloads {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(pause):
		}
		if delay, err = conn.InhibitDelay(ctx); err != nil || delay >= needed {
			return delay, err
		}
		pause *= 2
	}
	return delay, nil
}

// tell says what is wrong in the health, and in the log when it is something else than before.
func (m *Manager) tell(ctx context.Context, problem string) {
	m.cfg.Waiting(problem)
	if problem != m.told && problem != "" {
		m.cfg.Logger.WarnContext(ctx, problem)
	}
	m.told = problem
}

// release has logind wait no longer.
func (m *Manager) release() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lock == nil {
		return
	}
	if err := m.lock.Close(); err != nil {
		m.cfg.Logger.Warn("logind may go on waiting with the shutdown", telemetry.KeyError, err)
	}
	m.lock = nil
	m.cfg.Metrics.waits.Set(0)
}
