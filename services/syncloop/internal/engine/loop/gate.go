package loop

import (
	"context"
	"maps"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
)

const (
	// gateBackoffFirst and gateBackoffLast bound the pause before the next check after a failed one.
	gateBackoffFirst = 100 * time.Millisecond
	gateBackoffLast  = 5 * time.Second
	// gatePeriod is the interval of checks while pleg is healthy, the same as that of pleg's checks of the runtime.
	gatePeriod = 5 * time.Second
	// gateTimeout bounds one check.
	gateTimeout = 5 * time.Second
)

// gateState is the availability of pleg and the runtime.
type gateState struct {
	up bool
	// reason is why they are unavailable.
	reason string
	// network is why the network of pods is not ready; empty if it is or if that is unknown.
	network string
}

// watchGate checks the health of pleg periodically, and sends the changes to the loop.
//
// Before the gate opens for the first time, pleg has relisted once since the previous process has ended. It then knows
// the last writes of that, so that no worker overlooks a half-made pod.
func (l *Loop) watchGate(ctx context.Context) error {
	var last gateState
	check := &gateCheck{pleg: l.cfg.Pleg}
	backoff := newGateBackoff()
	for {
		state := check.ask(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if state != last {
			last = state
			select {
			case l.gate <- state:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if !state.up && check.awaitRelist(ctx) {
			continue
		}
		pause := gatePeriod
		if state.up {
			backoff = newGateBackoff()
		} else {
			pause = backoff.Step()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.cfg.Clock.After(pause):
		}
	}
}

func newGateBackoff() wait.Backoff {
	return wait.Backoff{Duration: gateBackoffFirst, Factor: 2, Steps: 1 << 30, Cap: gateBackoffLast}
}

// gateCheck asks pleg for its health. It is for one goroutine.
type gateCheck struct {
	pleg Pleg
	// answers reports whether pleg has answered the last question, and relisted whether it has relisted since this process
	// is alone.
	answers, relisted bool
}

// ask returns the current state.
func (c *gateCheck) ask(ctx context.Context) gateState {
	ctx, cancel := context.WithTimeout(ctx, gateTimeout)
	defer cancel()
	reasons, network, err := c.pleg.Health(ctx)
	c.answers = err == nil
	switch {
	case err != nil:
		return gateState{reason: "pleg does not answer: " + err.Error()}
	case len(reasons) > 0:
		return gateState{reason: "pleg is not healthy: " + strings.Join(reasons, "; ")}
	}
	if err := c.relist(ctx); err != nil {
		return gateState{reason: "pleg has not listed the runtime yet: " + err.Error()}
	}
	return gateState{up: true, network: network}
}

// relist has pleg relist, once, unless it has since this process is alone.
func (c *gateCheck) relist(ctx context.Context) error {
	if c.relisted {
		return nil
	}
	err := c.pleg.Relist(ctx)
	c.relisted = err == nil
	return err
}

// awaitRelist waits for the first relist of a pleg that answers and is not healthy, because that is most likely what it
// lacks: a pause after it would delay new pods. It returns true if the relist has finished during the call.
func (c *gateCheck) awaitRelist(ctx context.Context) bool {
	if c.relisted || !c.answers {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, gateTimeout)
	defer cancel()
	return c.relist(ctx) == nil
}

// isOpen reports whether syncs are dispatched: the pods and what runs are known, and pleg is healthy.
func (l *Loop) isOpen() bool { return l.configSynced && l.plegSynced && l.gateState.up }

func (l *Loop) handleGate(state gateState) {
	switch {
	case !state.up && l.opened.IsZero():
		l.cfg.Logger.Info("waiting for pleg and the runtime", "reason", state.reason)
	case !state.up:
		l.cfg.Logger.Warn("pods are not synced until pleg and the runtime are well", "reason", state.reason)
	case !l.gateState.up:
		l.cfg.Logger.Info("pleg and the runtime are well, pods are synced")
	}
	l.setNetwork(state)
	l.gateState = state
	l.progress()
}

// setNetwork tells the workers whether the network of pods is ready. While the gate is closed, the last state counts.
func (l *Loop) setNetwork(state gateState) {
	if !state.up || state.network == l.network {
		return
	}
	l.network = state.network
	l.cfg.Workers.SetNetwork(state.network)
	if state.network != "" {
		l.cfg.Logger.Warn("the network of pods is not ready: new pods wait for it that are not of the host's network", telemetry.KeyReason, state.network)
		return
	}
	l.cfg.Logger.Info("the network of pods is ready")
	l.cfg.Workers.RetryFailed()
}

// progress does the work that waited for a condition that may hold now.
func (l *Loop) progress() {
	if l.opened.IsZero() && l.configSynced && l.plegSynced {
		l.opened = l.cfg.Clock.Now()
		l.cfg.Store.Open()
		if observed, known := l.cfg.Store.AllObserved(); known {
			l.cfg.Devices.Recover(observed, l.goesOn)
		}
	}
	l.show()
	l.reportWaiting()
	if !l.isOpen() {
		return
	}
	held := l.held
	if len(held) == 0 && !l.waiting.closed {
		return
	}
	l.held, l.waiting.closed = map[types.UID]podworkers.Cause{}, false
	l.release(held)
	l.cfg.Workers.RetryFailed()
}

// release gives the held work to the workers, the oldest pods first.
func (l *Loop) release(held map[types.UID]podworkers.Cause) {
	defer l.cfg.Workers.Together()()
	for _, uid := range l.oldestFirst(maps.Keys(held)) {
		cause := held[uid]
		if cause.Kind == podworkers.CauseConfig && l.desired[uid] != nil {
			op := podset.Update
			if !l.cfg.Workers.Has(uid) {
				op = podset.Add
			}
			l.dispatch(uid, op, cause.Traceparent)
			continue
		}
		l.cfg.Workers.Poke(uid, cause)
	}
}

// show makes the pods visible to readers as soon as everything that runs is known.
func (l *Loop) show() {
	if l.serving || l.opened.IsZero() {
		return
	}
	if !l.allReady() && l.cfg.Clock.Since(l.opened) < sourcesGrace {
		return
	}
	if l.allReady() {
		l.endOrphans() // readers see them as pods that are ending
	}
	l.serving = true
	l.cfg.Store.SetWaiting("")
}
