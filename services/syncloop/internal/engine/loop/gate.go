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
	// gateBackoffFirst and gateBackoffLast bound how long after a failure pleg is asked again.
	gateBackoffFirst = 100 * time.Millisecond
	gateBackoffLast  = 5 * time.Second
	// gatePeriod is how often a pleg that is well is asked: as often as it asks the runtime.
	gatePeriod = 5 * time.Second
	// gateTimeout bounds one question.
	gateTimeout = 5 * time.Second
)

// gateState says whether pleg and the runtime can be relied on.
type gateState struct {
	up bool
	// reason is why not.
	reason string
	// network is why the network of pods is not ready; empty when it is, or nobody knows.
	network string
}

// watchGate asks pleg for its health, again and again, and tells the loop what has changed.
//
// Before it is up for the first time pleg has relisted once: what the process before this one wrote to the runtime in
// its last moment is then on pleg's record, so no worker takes a half-made pod for one that is not there.
func (l *Loop) watchGate(ctx context.Context) error {
	var last gateState
	relisted := false
	backoff := newGateBackoff()
	for {
		state := l.askPleg(ctx, &relisted)
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

func (l *Loop) askPleg(ctx context.Context, relisted *bool) gateState {
	ctx, cancel := context.WithTimeout(ctx, gateTimeout)
	defer cancel()
	reasons, network, err := l.cfg.Pleg.Health(ctx)
	switch {
	case err != nil:
		return gateState{reason: "pleg does not answer: " + err.Error()}
	case len(reasons) > 0:
		return gateState{reason: "pleg is not healthy: " + strings.Join(reasons, "; ")}
	}
	if !*relisted {
		if err := l.cfg.Pleg.Relist(ctx); err != nil {
			return gateState{reason: "pleg has not listed the runtime yet: " + err.Error()}
		}
		*relisted = true
	}
	return gateState{up: true, network: network}
}

// isOpen tells whether syncs are dispatched: all that decides about a pod is known, and pleg is well.
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

// setNetwork tells the workers whether pods can be given a network. While the gate is closed what was known last stays.
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

// progress does what had to wait for something that may have come now.
func (l *Loop) progress() {
	if l.opened.IsZero() && l.configSynced && l.plegSynced {
		l.opened = l.cfg.Clock.Now()
		l.cfg.Store.Open()
	}
	l.show()
	l.tellWaiting()
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

// release gives the workers what was held back, the oldest pods first.
func (l *Loop) release(held map[types.UID]podworkers.Cause) {
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

// show lets readers see the pods as soon as all that runs is known.
func (l *Loop) show() {
	if l.serving || l.opened.IsZero() {
		return
	}
	if !l.allReady() && l.cfg.Clock.Since(l.opened) < sourcesGrace {
		return
	}
	if l.allReady() {
		l.endOrphans() // so that they are shown as what they are: pods that end
	}
	l.serving = true
	l.cfg.Store.SetWaiting("")
}
