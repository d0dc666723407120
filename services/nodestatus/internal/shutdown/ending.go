package shutdown

import (
	"context"
	"time"

	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// pollPause is how long it takes until it is looked again whether the pods of a group are gone.
	pollPause = 200 * time.Millisecond
	// shortest is the time that a group has at least, for one that has none is to be told of its end, too.
	shortest = time.Second
	// statusesTimeout bounds the wait for the API server: one that is away does not keep the machine up.
	statusesTimeout = 5 * time.Second

	// The kubelet's words.
	textBegins    = "Shutdown manager detected shutdown event"
	textCalledOff = "Shutdown manager detected shutdown cancellation"
)

// begin ends the pods, or goes on where an earlier process was killed. It does not wait. It does nothing when it was called before.
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
	m.cfg.Logger.InfoContext(ctx, "the machine is being shut down, the pods are ended", telemetry.KeyDuration, m.cfg.Periods.Total(), "resumed", m.memory.Group > 0 || over)
	m.cfg.Changed(textBegins)
	if over {
		m.release()
		m.stop = func() {}
		return
	}
	within, cancel := context.WithCancel(ctx)
	done, mem := make(chan struct{}), m.memory
	m.stop = func() { cancel(); <-done }
	go func() {
		defer close(done)
		m.end(within, mem)
	}()
}

// halt ends the work for a shutdown. The pods that were told to end do so.
func (m *Manager) halt() {
	if m.stop != nil {
		m.stop()
		m.stop = nil
	}
}

// calledOff goes back to waiting for a shutdown. It does nothing when none was to come.
func (m *Manager) calledOff(ctx context.Context) {
	m.halt()
	if m.memory.Boot != "" {
		// What the work for the shutdown has remembered since is read, for its times.
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

// keep remembers how a shutdown goes. Without it an earlier group would have its time again.
func (m *Manager) keep(ctx context.Context, mem memory) {
	m.cfg.Metrics.set(mem)
	if err := save(m.cfg.StateDir, mem); err != nil {
		m.cfg.Logger.WarnContext(ctx, "how the shutdown goes is forgotten when nodestatus is killed", telemetry.KeyError, err)
	}
}

// end ends one group after the other and gives the lock back. It stops when ctx ends, and then another process goes on.
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
	m.cfg.Logger.InfoContext(ctx, "the pods have ended as far as they had time, the machine may go down", telemetry.KeyDuration, mem.EndTime.Sub(mem.StartTime))
	m.release()
}

// endGroup ends the pods of a group, and what is left of those before it. It returns when none is left or the group's time is over.
func (m *Manager) endGroup(ctx context.Context, mem memory) {
	begun := m.cfg.BootTime()
	left := max(m.cfg.Periods.time(mem.Group)-(begun-mem.GroupSince), shortest)
	ctx, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	told := ""
	for {
		pods, err := m.endDue(ctx, mem.Group, left-(m.cfg.BootTime()-begun))
		if err == nil && pods == 0 {
			return
		}
		if err != nil && ctx.Err() == nil && err.Error() != told {
			told = err.Error()
			m.cfg.Logger.WarnContext(ctx, "the pods cannot be ended, it is tried again", telemetry.KeyError, err)
		}
		select {
		case <-ctx.Done():
			m.cfg.Logger.WarnContext(ctx, "not all pods of a group have ended in its time, the next group goes", "priority", m.cfg.Periods[mem.Group].Priority)
			return
		case <-time.After(pollPause):
		}
	}
}

// endDue ends the pods that have to go now, and returns how many they were.
func (m *Manager) endDue(ctx context.Context, group int, left time.Duration) (int, error) {
	pods, err := m.cfg.Engine.Pods(ctx)
	if err != nil {
		return 0, err
	}
	due := m.cfg.Periods.Due(group, left, pods)
	if len(due) == 0 {
		return 0, nil
	}
	m.cfg.Logger.InfoContext(ctx, "pods are ended for the shutdown", "pods", len(due), "priority", m.cfg.Periods[group].Priority, telemetry.KeyGracePeriod, left)
	return len(due), m.cfg.Engine.End(ctx, due)
}
