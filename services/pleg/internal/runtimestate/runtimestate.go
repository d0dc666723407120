// Package runtimestate polls the status of the container runtime: its version, whether it can run pods, and whether
// their network is ready. The result is part of pleg's health, from which nodestatus and syncloop learn whether the
// runtime is usable.
package runtimestate

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// Period is the polling interval of a healthy runtime. An unhealthy one is polled every unhealthyPeriod, because work
	// waits for it.
	Period          = 5 * time.Second
	unhealthyPeriod = time.Second
	// answerTimeout is the time after which a runtime that does not answer counts as unhealthy.
	answerTimeout = 10 * time.Second
)

// Config holds the parameters of a Watcher.
type Config struct {
	// Endpoint is the address of the runtime for messages.
	Endpoint string
	// Runtime waits for the runtime service and returns it.
	Runtime func(context.Context) (internalapi.RuntimeService, error)
	// Clock times the polls.
	Clock clock.WithTicker
	// Logger logs when the runtime becomes healthy or unhealthy.
	Logger *slog.Logger
	// Changed is called with the problem, empty if there is none, at the start and on each change.
	Changed func(reason string)
}

// Watcher holds the status of the runtime.
type Watcher struct {
	cfg Config

	mu       sync.Mutex
	state    *lifecyclev1.Runtime
	reason   string
	reported bool
}

// New returns a Watcher without a status.
func New(cfg Config) *Watcher { return &Watcher{cfg: cfg} }

// Run polls until ctx ends, and then returns nil.
func (w *Watcher) Run(ctx context.Context) error {
	ctx = cri.Quiet(ctx)
	for {
		healthy := w.ask(ctx)
		period := Period
		if !healthy {
			period = unhealthyPeriod
		}
		timer := w.cfg.Clock.NewTimer(period)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C():
		}
	}
}

// State returns the runtime's last status, nil before its first answer, and the problem, empty if it is usable.
func (w *Watcher) State() (state *lifecyclev1.Runtime, reason string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.reported {
		return nil, fmt.Sprintf("the container runtime at %s has not answered yet", w.cfg.Endpoint)
	}
	return w.state, w.reason
}

func (w *Watcher) ask(ctx context.Context) (healthy bool) {
	attempt, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	state, err := w.question(attempt)
	if ctx.Err() != nil {
		return false
	}
	reason := ""
	switch {
	case err != nil:
		reason = cri.Away(w.cfg.Endpoint, err).Error()
	case !state.GetReady():
		reason = fmt.Sprintf(
			"the container runtime at %s is not ready: %s",
			w.cfg.Endpoint,
			cmp.Or(state.GetReadyMessage(), "it does not say why"),
		)
	}
	w.note(state, reason)
	return reason == ""
}

// note records an answer. Without one, the last status stays beside the problem, as not ready.
func (w *Watcher) note(state *lifecyclev1.Runtime, reason string) {
	w.mu.Lock()
	changed := !w.reported || w.reason != reason
	w.reported, w.reason = true, reason
	switch {
	case state != nil:
		w.state = state
	case w.state != nil:
		w.state = &lifecyclev1.Runtime{
			Name: w.state.GetName(), Version: w.state.GetVersion(), Handlers: w.state.GetHandlers(),
			RuntimeHandlers: w.state.GetRuntimeHandlers(), SupplementalGroupsPolicy: w.state.SupplementalGroupsPolicy,
			ReadyMessage: reason, NetworkReadyMessage: reason,
		}
	}
	w.mu.Unlock()
	if !changed {
		return
	}
	if reason == "" {
		w.cfg.Logger.Info("the container runtime is ready", "name", state.GetName(), "version", state.GetVersion(),
			"network_ready", state.GetNetworkReady())
	} else {
		w.cfg.Logger.Warn("the container runtime is not ready", telemetry.KeyReason, reason)
	}
	w.cfg.Changed(reason)
}

// connected returns the service of a runtime that has answered once. It reports one that has not soon.
func (w *Watcher) connected(ctx context.Context) (internalapi.RuntimeService, error) {
	ctx, cancel := context.WithTimeout(ctx, unhealthyPeriod)
	defer cancel()
	return w.cfg.Runtime(ctx)
}

func (w *Watcher) question(ctx context.Context) (*lifecyclev1.Runtime, error) {
	runtime, err := w.connected(ctx)
	if err != nil {
		return nil, err
	}
	version, err := runtime.Version(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("asking for its version: %w", err)
	}
	resp, err := runtime.Status(ctx, false)
	if err != nil {
		return nil, fmt.Errorf("asking for its status: %w", err)
	}
	state := &lifecyclev1.Runtime{Name: version.GetRuntimeName(), Version: version.GetRuntimeVersion()}
	for _, condition := range resp.GetStatus().GetConditions() {
		message := condition.GetMessage()
		if condition.GetReason() != "" {
			message = condition.GetReason() + ": " + message
		}
		switch condition.GetType() {
		case runtimeapi.RuntimeReady:
			state.Ready, state.ReadyMessage = condition.GetStatus(), message
		case runtimeapi.NetworkReady:
			state.NetworkReady, state.NetworkReadyMessage = condition.GetStatus(), message
		}
	}
	for _, handler := range resp.GetRuntimeHandlers() {
		state.Handlers = append(state.Handlers, handler.GetName())
		state.RuntimeHandlers = append(state.RuntimeHandlers, &lifecyclev1.RuntimeHandler{
			Name: handler.GetName(),
			RecursiveReadOnlyMounts: handler.GetFeatures().
				GetRecursiveReadOnlyMounts(),
			UserNamespaces: handler.GetFeatures().GetUserNamespaces(),
		})
	}
	slices.Sort(state.Handlers)
	slices.SortFunc(
		state.RuntimeHandlers,
		func(a, b *lifecyclev1.RuntimeHandler) int { return cmp.Compare(a.GetName(), b.GetName()) },
	)
	if features := resp.GetFeatures(); features != nil {
		state.SupplementalGroupsPolicy = new(features.GetSupplementalGroupsPolicy())
	}
	return state, nil
}
