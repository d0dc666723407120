package shutdown

import (
	"context"
	"time"

	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// pollPause is the polling interval for the end of a group's pods.
	pollPause = 200 * time.Millisecond
	// shortest is the minimum time of a group, so that every pod is notified of its end.
	shortest = time.Second
	// statusesTimeout bounds the wait for the API server, so that an unreachable one does not delay the shutdown.
	statusesTimeout = 5 * time.Second

	// The kubelet's messages.
	textBegins    = "Shutdown manager detected shutdown event"
	textCalledOff = "Shutdown manager detected shutdown cancellation"
)

// begin starts terminating the pods, or continues after a restart. It does not wait. It is a no-op if it was called
// before.
func (m *Manager) begin(ctx context.Context) {
	if m.stop != nil {
		return
	}
	if m.memory.Boot != m.cfg.Boot || m.memory.Group >= len(m.cfg.Periods) {
		m.memory = memory{Boot: m.cfg.Boot, StartTime: time.Now(), GroupSince: m.cfg.BootTime()}
		m.keep(ctx, m.memory)
	}
	over := !m.memory.EndTime.IsZero()
	m.mu.Lock()
	m.down, m.over = true, over
	m.mu.Unlock()
	m.cfg.Logger.InfoContext(ctx, "the machine is shutting down; terminating the pods",
		telemetry.KeyDuration, m.cfg.Periods.Total(), "resumed", m.memory.Group > 0 || over)
	m.cfg.Changed(textBegins)
	if over {
		m.release()
		m.stop = func() {}
		return
	}
	endCtx, cancel := context.WithCancel(ctx)
	done, mem := make(chan struct{}), m.memory
	m.stop = func() { cancel(); <-done }
	go func() {
		defer close(done)
		m.end(endCtx, mem)
	}()
}

// halt stops the work for a shutdown. Pods that are terminating continue to do so.
func (m *Manager) halt() {
	if m.stop != nil {
		m.stop()
		m.stop = nil
	}
}

// calledOff returns to waiting for a shutdown. It is a no-op if none is in progress.
func (m *Manager) calledOff(ctx context.Context) {
	m.halt()
	if m.memory.Boot != "" {
		// The work for the shutdown has saved its times since, so they are read.
		if last, err := load(m.cfg.StateDir); err == nil {
			m.memory = last
		}
		m.memory.Boot, m.memory.Group, m.memory.GroupSince = "", 0, 0
		m.keep(ctx, m.memory)
	}
	m.mu.Lock()
	down := m.down
	m.down, m.over = false, false
	m.mu.Unlock()
	if down {
		m.cfg.Logger.InfoContext(ctx, "the shutdown of the machine was called off")
		m.cfg.Changed(textCalledOff)
	}
}

// keep saves the progress of a shutdown. Without it, a restart would repeat the time of an earlier group.
func (m *Manager) keep(ctx context.Context, mem memory) {
	m.cfg.Metrics.set(mem)
	if err := m.disk.Write(func() error { return save(m.cfg.StateDir, mem) }); err != nil {
		m.cfg.Logger.WarnContext(ctx, "cannot save the progress of the shutdown; it is lost if nodestatus is killed",
			telemetry.KeyError, err)
	}
}

// end terminates the groups in order and releases the lock. It stops when ctx ends; then another process continues.
func (m *Manager) end(ctx context.Context, mem memory) {
	for {
		m.endGroup(ctx, mem)
		if ctx.Err() != nil {
			return
		}
		if mem.Group+1 == len(m.cfg.Periods) {
			break
		}
		mem.Group, mem.GroupSince = mem.Group+1, m.cfg.BootTime()
		m.keep(ctx, mem)
	}
	sent, cancel := context.WithTimeout(ctx, statusesTimeout)
	defer cancel()
	if err := m.cfg.Engine.AwaitStatuses(sent); err != nil && ctx.Err() == nil {
		m.cfg.Logger.WarnContext(ctx, "the API server may not have the last status of every pod", telemetry.KeyError, err)
	}
	if ctx.Err() != nil {
		return
	}
	mem.EndTime = time.Now()
	m.keep(ctx, mem)
	m.mu.Lock()
	m.over = true
	m.mu.Unlock()
	m.cfg.Logger.InfoContext(ctx, "the pods have ended or their time is over; the machine may shut down",
		telemetry.KeyDuration, mem.EndTime.Sub(mem.StartTime))
	m.release()
}

// endGroup terminates the pods of a group, and the remaining ones of earlier groups. It returns when no pod is left or
// the group's time is over.
func (m *Manager) endGroup(ctx context.Context, mem memory) {
	begun := m.cfg.BootTime()
	left := max(m.cfg.Periods.time(mem.Group)-(begun-mem.GroupSince), shortest)
	ctx, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	lastLogged := ""
	for {
		pods, err := m.endDue(ctx, mem.Group, left-(m.cfg.BootTime()-begun))
		if err == nil && pods == 0 {
			return
		}
		if err != nil && ctx.Err() == nil && err.Error() != lastLogged {
			lastLogged = err.Error()
			m.cfg.Logger.WarnContext(ctx, "cannot terminate the pods; retrying", telemetry.KeyError, err)
		}
		select {
		case <-ctx.Done():
			m.cfg.Logger.WarnContext(ctx, "not all pods of a group have ended in its time; continuing with the next group",
				"priority", m.cfg.Periods[mem.Group].Priority)
			return
		case <-time.After(pollPause):
		}
	}
}

// endDue terminates the pods that are due, and returns their number.
func (m *Manager) endDue(ctx context.Context, group int, left time.Duration) (int, error) {
	pods, err := m.cfg.Engine.Pods(ctx)
	if err != nil {
		return 0, err
	}
	due := m.cfg.Periods.Due(group, left, pods)
	if len(due) == 0 {
		return 0, nil
	}
	m.cfg.Logger.InfoContext(ctx, "terminated pods for the shutdown", "pods", len(due),
		"priority", m.cfg.Periods[group].Priority, telemetry.KeyGracePeriod, left)
	return len(due), m.cfg.Engine.End(ctx, due)
}
