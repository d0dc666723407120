package loop

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// shortestSilence is the least time without an event after which the loop is unhealthy, whatever the resync period is.
// An idle loop handles an event only every housekeepingPeriod.
const shortestSilence = 5 * housekeepingPeriod

// waiting holds what the loop waits for, in readable form.
type waiting struct {
	mu      sync.Mutex
	reasons []string
	// configmux is why configmux is not followed.
	configmux string
	// closed is true if syncs have been held since the last release. Only the loop's goroutine uses it.
	closed bool
}

// Health is the health of the loop.
type Health struct {
	// Healthy is true if the loop has handled an event within twice the resync period, or within 10 s if that is longer.
	Healthy bool
	// Reasons are why it is unhealthy, and what it waits for.
	Reasons []string
	// LastTurn is the time of the last event; zero before the first.
	LastTurn time.Time
	// ConfigMux is why configmux is not followed; empty while it is.
	ConfigMux string
}

// Begun returns a channel that is closed when the loop begins to handle events. Before that it is unhealthy.
func (l *Loop) Begun() <-chan struct{} { return l.begun }

// Health returns the health of the loop. It is safe for concurrent use.
func (l *Loop) Health() Health {
	l.waiting.mu.Lock()
	h := Health{Healthy: true, Reasons: slices.Clone(l.waiting.reasons), ConfigMux: l.waiting.configmux}
	l.waiting.mu.Unlock()
	last := l.lastTurn.Load()
	if last == nil {
		h.Healthy = false
		h.Reasons = append(h.Reasons, "the sync loop has not begun to turn: the process is starting")
		return h
	}
	h.LastTurn = *last
	if age := l.cfg.Clock.Since(h.LastTurn); age > max(2*l.cfg.Resync, shortestSilence) {
		h.Healthy = false
		h.Reasons = append(h.Reasons, fmt.Sprintf("the sync loop has not turned for %v: restart syncloop, no pod stops for it", age.Round(time.Second)))
	}
	return h
}

// reportWaiting updates what the loop waits for.
func (l *Loop) reportWaiting() {
	var config, sources, pleg string
	switch {
	case l.configDown != "":
		config = l.configDown
	case !l.configSynced:
		config = "configmux has not sent all pods yet: check that it runs"
	case !l.allReady():
		sources = l.sourcesWaiting()
	}
	switch {
	case !l.gateState.up:
		pleg = l.gateState.reason
	case !l.plegSynced:
		pleg = "pleg has not sent all running pods yet: check that it runs"
	}
	if !l.isOpen() {
		l.waiting.closed = true
	}
	var evictions, resizes string
	if problem := l.cfg.Resizes.Problem(); problem != nil {
		resizes = "pods are not resized whose records cannot be read: " + problem.Error()
	}
	if problem := l.cfg.Evictions.Unread(); problem != nil {
		evictions = "pods of which nothing runs are not started, because they may have been evicted: " + problem.Error()
	}
	var reasons []string
	for part, reason := range map[string]string{
		"configmux": config, "sources": sources, "pleg": pleg, "evictions": evictions, "resizes": resizes,
	} {
		l.cfg.Waiting(part, reason)
		if reason != "" {
			reasons = append(reasons, reason)
		}
	}
	slices.Sort(reasons)
	if !l.serving && len(reasons) > 0 {
		l.cfg.Store.SetWaiting(strings.Join(reasons, "; "))
	}
	l.waiting.mu.Lock()
	defer l.waiting.mu.Unlock()
	l.waiting.reasons, l.waiting.configmux = reasons, config
}

func (l *Loop) sourcesWaiting() string {
	if len(l.sources) == 0 {
		return "configmux names no source: set staticPodPath in the configuration"
	}
	var silent []string
	for _, name := range slices.Sorted(maps.Keys(l.sources)) {
		if !l.sources[name] {
			silent = append(silent, name)
		}
	}
	return "sources that are not ready; no pod is removed until they are: " + strings.Join(silent, ", ")
}
