package resourceclaims

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// wipeDelay is the kubelet's time that a driver has to come back before its published devices are removed: enough for
	// the restart of a container.
	wipeDelay = 30 * time.Second
	// firstRetry and lastRetry are the kubelet's pauses after a removal that failed. They double.
	firstRetry, lastRetry = time.Second, 5 * time.Minute
	// idle is the longest time between two looks at what is due.
	idle = time.Hour
	// allDrivers stands for the removals at the start.
	allDrivers = ""
	// bootFileMode is the mode of the file with the boot.
	bootFileMode = 0o600
)

// wipe is a removal of the devices that a driver has published.
type wipe struct {
	// at is the time of the next attempt, and pause the one after it if it fails.
	at    time.Time
	pause time.Duration
}

// begin schedules the removal at the start. After a start of the machine no driver runs yet, so all devices are removed
// at once, as by the kubelet. Drivers run on while this process is restarted, so they have time to register again.
func (m *Manager) begin() {
	at := m.cfg.Clock.Now()
	if !m.isNewBoot() {
		at = at.Add(wipeDelay)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wipes[allDrivers] = wipe{at: at, pause: firstRetry}
}

// isNewBoot reports whether no process has finished the removal at the start since the machine was started.
func (m *Manager) isNewBoot() bool {
	if m.cleared.Load() {
		return false
	}
	known, err := os.ReadFile(m.cfg.BootFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.cfg.Logger.Warn("cannot read at which boot the devices of DRA drivers were removed; removing them now",
			telemetry.KeyFile, m.cfg.BootFile, telemetry.KeyError, err)
	}
	return string(known) != m.cfg.Boot
}

// noteUsable schedules the removal of the devices of a driver that cannot be called, and cancels it if it can. The
// caller holds mu.
func (m *Manager) noteUsable(name string) {
	if m.usable(name) {
		delete(m.wipes, name)
		return
	}
	if _, due := m.wipes[name]; !due && m.ctx.Err() == nil {
		m.wipes[name] = wipe{at: m.cfg.Clock.Now().Add(wipeDelay), pause: firstRetry}
		m.look()
	}
}

// wipe tries the removals that are due, and returns the time until the next one.
func (m *Manager) wipe(ctx context.Context) time.Duration {
	now := m.cfg.Clock.Now()
	var due []string
	m.mu.Lock()
	for name, w := range m.wipes {
		if !w.at.After(now) {
			due = append(due, name)
		}
	}
	m.mu.Unlock()
	for _, name := range due {
		m.wipeOne(ctx, name)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now, next := m.cfg.Clock.Now(), idle
	for _, w := range m.wipes {
		next = min(next, max(w.at.Sub(now), time.Millisecond))
	}
	return next
}

// wipeOne tries a removal, and schedules the next attempt if it fails.
func (m *Manager) wipeOne(ctx context.Context, name string) {
	var err error
	if name == allDrivers {
		err = m.wipeAtStart(ctx)
	} else {
		err = m.cfg.API.DeleteSlices(ctx, name)
	}
	if ctx.Err() != nil {
		return
	}
	m.mu.Lock()
	w, due := m.wipes[name]
	switch {
	case err == nil:
		delete(m.wipes, name)
	case due: // otherwise the driver has come back
		m.wipes[name] = wipe{at: m.cfg.Clock.Now().Add(w.pause), pause: min(2*w.pause, lastRetry)}
	}
	m.mu.Unlock()
	switch {
	case err != nil:
		m.cfg.Logger.Warn("cannot remove the ResourceSlices of this node; retrying", keyDriver, name, telemetry.KeyError, err,
			telemetry.KeyRetryAfter, w.pause)
	case name != allDrivers:
		m.cfg.Logger.Info("removed the ResourceSlices of a DRA driver that has left", keyDriver, name, "after", wipeDelay)
	}
}

// wipeAtStart removes the devices of all drivers after a start of the machine, and otherwise those of the drivers that
// have not come back.
func (m *Manager) wipeAtStart(ctx context.Context) error {
	if m.isNewBoot() {
		if err := m.cfg.API.DeleteSlices(ctx, allDrivers); err != nil {
			return err
		}
		m.cfg.Logger.Info("removed the ResourceSlices of this node; drivers publish them again")
		m.cleared.Store(true)
		if err := statedir.WriteFileAtomic(m.cfg.BootFile, []byte(m.cfg.Boot), bootFileMode); err != nil {
			const problem = "cannot record that the ResourceSlices of this node were removed; the next start removes them again"
			m.cfg.Logger.Warn(problem, telemetry.KeyFile, m.cfg.BootFile, telemetry.KeyError, err)
		}
		return nil
	}
	names, err := m.cfg.API.SliceDrivers(ctx)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range names {
		if _, due := m.wipes[name]; !due && !m.usable(name) {
			m.wipes[name] = wipe{at: m.cfg.Clock.Now(), pause: firstRetry}
		}
	}
	return nil
}
