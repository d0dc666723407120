// Package plugins registers plugins of the node: storage drivers, and in general programs that serve the kubelet's
// plugin registration API, version v1, on a socket in a folder. A handler for each type of plugin does the rest.
//
// The folder is watched with inotify and read periodically. Nothing else is state: after a restart the same sockets are
// registered again. The book decides what to do with each socket; a socket that hangs delays no other.
package plugins

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// readInterval is the interval of full reads, which find what inotify has missed.
	readInterval = 10 * time.Second
	// readPause is the minimum time between two reads, so that constant changes in the folder do not occupy a processor.
	readPause = 100 * time.Millisecond
	// maxSockets bounds the number of sockets, and so the number of concurrent registrations. A node has a few plugins.
	maxSockets = 256
)

// Config holds the parameters of a Manager.
type Config struct {
	// Dir is the folder of the sockets, which is created if it is missing. Required.
	Dir string
	// Handlers are the handlers by type of plugin.
	Handlers map[string]Handler
	// Clock is the clock. Required.
	Clock clock.Clock
	// Metrics has the number of plugins; it may be nil.
	Metrics *Metrics
	// Logger logs each plugin and its problems; slog.Default if nil.
	Logger *slog.Logger
}

// Manager registers and deregisters plugins during Run. Create it with New.
type Manager struct {
	cfg Config
	// wake has capacity one, because one look covers everything.
	wake chan struct{}

	mu   sync.Mutex
	book *book
	// cancels end the running registrations, by path.
	cancels map[string]context.CancelCauseFunc

	// Only Run uses the following fields: the watch, nil without inotify; the last logged problems of the watch and of the
	// folder; and the number of sockets above the limit.
	watcher                *fsnotify.Watcher
	watchTrouble, troubles string
	excess                 int
}

// New returns a manager.
func New(cfg Config) *Manager {
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	m := &Manager{
		cfg: cfg, wake: make(chan struct{}, 1), book: newBook(maxSockets), cancels: map[string]context.CancelCauseFunc{},
	}
	if cfg.Metrics != nil {
		cfg.Metrics.Expose(m.count)
	}
	return m
}

// Run registers plugins until ctx ends, whose error it returns. It deregisters no plugin at its end.
func (m *Manager) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	defer m.unwatch()
	timer := m.cfg.Clock.NewTimer(0)
	defer timer.Stop()
	var read, due time.Time // the last and the next read of the folder
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-m.wake:
		case <-timer.C():
		case <-m.events():
			due = earlier(due, read.Add(readPause))
		case err := <-m.errors(): // events are lost
			m.cfg.Logger.Warn("inotify has failed for the folder of plugins; reading it again", telemetry.KeyFile, m.cfg.Dir,
				telemetry.KeyError, err)
			m.unwatch()
			due = earlier(due, read.Add(readPause))
		}
		now := m.cfg.Clock.Now()
		if !due.After(now) {
			m.read()
			read, due = now, now.Add(readInterval)
		}
		again := m.start(ctx, &running, now)
		timer.Stop()
		timer.Reset(earlier(due, again).Sub(now))
	}
}

// earlier returns the earlier time. A zero b counts as never.
func earlier(a, b time.Time) time.Time {
	if b.IsZero() || a.Before(b) {
		return a
	}
	return b
}

// start starts the operations that are due, and returns the time of the next one.
func (m *Manager) start(ctx context.Context, running *sync.WaitGroup, now time.Time) (again time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	steps, again := m.book.decide(now)
	for _, next := range steps {
		m.book.begin(next)
		if next.op == deregistering {
			running.Go(func() { m.deregister(ctx, next) })
			continue
		}
		within, cancel := context.WithCancelCause(ctx)
		m.cancels[next.path] = cancel
		running.Go(func() {
			defer cancel(nil)
			m.register(within, next.path)
		})
	}
	return again
}

// read looks at the folder, and cancels the registrations of sockets that are gone or replaced.
func (m *Manager) read() {
	m.watch()
	found := list(m.cfg.Dir, func(dir string) error {
		if m.watcher == nil {
			return nil
		}
		return m.watcher.Add(dir)
	})
	m.complain(found)
	m.mu.Lock()
	defer m.mu.Unlock()
	cancel, excess := m.book.observe(found.sockets, found.unknown)
	for _, path := range cancel {
		m.cancels[path](errOutdated)
	}
	if excess > m.excess {
		m.cfg.Logger.Warn("there are too many sockets in the folder of plugins; the rest is ignored: remove old ones",
			telemetry.KeyFile, m.cfg.Dir, "limit", maxSockets, "ignored", excess)
	}
	m.excess = excess
}

// complain logs what could not be read, if it is new.
func (m *Manager) complain(found *listing) {
	text := ""
	if found.err != nil {
		text = found.err.Error()
	}
	if text != "" && text != m.troubles {
		m.cfg.Logger.Warn("plugins are not found because their folder cannot be read or watched; retrying",
			telemetry.KeyFile, m.cfg.Dir, telemetry.KeyError, text, telemetry.KeyRetryAfter, readInterval)
	}
	m.troubles = text
}

// watch begins to use inotify, unless it is in use.
func (m *Manager) watch() {
	if m.watcher != nil {
		return
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		if text := err.Error(); text != m.watchTrouble {
			m.watchTrouble = text
			m.cfg.Logger.Warn("cannot watch the folder of plugins with inotify; polling for changes instead: "+
				"raise the sysctl fs.inotify.max_user_instances if it is exhausted",
				telemetry.KeyFile, m.cfg.Dir, "interval", readInterval, telemetry.KeyError, err)
		}
		return
	}
	m.watcher, m.watchTrouble = watcher, ""
}

func (m *Manager) unwatch() {
	if m.watcher == nil {
		return
	}
	if err := m.watcher.Close(); err != nil {
		m.cfg.Logger.Warn("cannot close inotify", telemetry.KeyError, err)
	}
	m.watcher = nil
}

func (m *Manager) events() <-chan fsnotify.Event {
	if m.watcher == nil {
		return nil
	}
	return m.watcher.Events
}

func (m *Manager) errors() <-chan error {
	if m.watcher == nil {
		return nil
	}
	return m.watcher.Errors
}

// register registers the plugin of a socket, and records the result.
func (m *Manager) register(ctx context.Context, path string) {
	plugin, err := register(ctx, path, m.cfg.Handlers)
	m.mu.Lock()
	delete(m.cancels, path)
	retry, news := m.book.registered(path, plugin, err, m.cfg.Clock.Now())
	m.mu.Unlock()
	switch {
	case err == nil:
		m.cfg.Logger.Info("registered a plugin", telemetry.KeyPlugin, plugin.Name, "type", plugin.Type,
			telemetry.KeyFile, path, "endpoint", plugin.Endpoint, "versions", plugin.Versions)
	case ctx.Err() != nil: // the socket or this process is gone
	case news:
		m.cfg.Logger.Warn("a plugin is not registered; retrying", telemetry.KeyFile, path,
			telemetry.KeyPlugin, plugin.Name, telemetry.KeyError, err, telemetry.KeyRetryAfter, retry)
	}
	m.signal()
}

// deregister deregisters the plugin of a socket that is gone or replaced.
func (m *Manager) deregister(ctx context.Context, next step) {
	within, cancel := context.WithTimeout(ctx, handleTimeout)
	defer cancel()
	m.cfg.Handlers[next.plugin.Type].Deregister(within, next.plugin)
	m.cfg.Logger.Info("deregistered a plugin because its socket is gone or replaced",
		telemetry.KeyPlugin, next.plugin.Name, "type", next.plugin.Type, telemetry.KeyFile, next.path)
	m.mu.Lock()
	m.book.deregistered(next.path)
	m.mu.Unlock()
	m.signal()
}

func (m *Manager) signal() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// count returns the sockets in the folder, and those whose plugin is registered.
func (m *Manager) count() []Count {
	m.mu.Lock()
	defer m.mu.Unlock()
	var counts []Count
	for path, s := range m.book.sockets {
		if s.seen != nil {
			counts = append(counts, Count{Socket: path, State: StateDesired})
		}
		if s.registered != nil {
			counts = append(counts, Count{Socket: path, State: StateActual})
		}
	}
	return counts
}
