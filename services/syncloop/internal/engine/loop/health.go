package loop

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// shortestSilence is how long the loop may stand still whatever the resync period is: an idle one turns with each clean-up
// and no more often.
const shortestSilence = 5 * housekeepingPeriod

// waiting is what the loop waits for, for people.
type waiting struct {
	mu      sync.Mutex
	reasons []string
	// configmux is why configmux is not followed.
	configmux string
	// closed is true when syncs have been held back since they were last released. It is the loop's own.
	closed bool
}

// Health is how the loop is.
type Health struct {
	// Healthy is true when the loop has turned within twice the resync period, or within 10 s when that is shorter.
	Healthy bool
	// Reasons say why it is not healthy and what it waits for.
	Reasons []string
	// LastTurn is when it last turned; zero before the first turn.
	LastTurn time.Time
	// ConfigMux says why configmux is not followed; empty while it is.
	ConfigMux string
}

// Begun returns a channel that is closed when the loop turns for the first time. Until then it is not healthy.
func (l *Loop) Begun() <-chan struct{} { return l.begun }

// Health returns how the loop is. It may be called at any time, from anywhere.
func (l *Loop) Health() Health {
	l.waiting.mu.Lock()
	h := Health{Healthy: true, Reasons: slices.Clone(l.waiting.reasons), ConfigMux: l.waiting.configmux}
	l.waiting.mu.Unlock()
	stamp := l.lastTurn.Load()
	if stamp == 0 {
		h.Healthy = false
		h.Reasons = append(h.Reasons, "the sync loop has not begun to turn: the process is starting")
		return h
	}
	h.LastTurn = time.Unix(0, stamp)
	if age := l.cfg.Clock.Since(h.LastTurn); age > max(2*l.cfg.Resync, shortestSilence) {
		h.Healthy = false
		h.Reasons = append(h.Reasons, fmt.Sprintf("the sync loop has not turned for %v: restart syncloop, no pod stops for it", age.Round(time.Second)))
	}
	return h
}

// tellWaiting computes what the loop waits for.
func (l *Loop) tellWaiting() {
	var config, sources, pleg string
	switch {
	case l.configDown != "":
		config = l.configDown
	case !l.configSynced:
		config = "configmux has not told all pods yet: see that it runs"
	case !l.allReady():
		sources = l.sourcesWaiting()
	}
	switch {
	case !l.gateState.up:
		pleg = l.gateState.reason
	case !l.plegSynced:
		pleg = "pleg has not told what runs yet: see that it runs"
	}
	if !l.isOpen() {
		l.waiting.closed = true
	}
	var reasons []string
	for what, reason := range map[string]string{"configmux": config, "sources": sources, "pleg": pleg} {
		l.cfg.Waiting(what, reason)
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
	return "sources that have not spoken, until which no pod is removed: " + strings.Join(silent, ", ")
}
