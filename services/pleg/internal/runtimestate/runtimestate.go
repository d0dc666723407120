// Package runtimestate asks the container runtime how it is: its version, whether it can run pods, whether they have a
// network. The answer is a part of pleg's health, by which nodestatus and syncloop know whether to count on the
// runtime.
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
	// Period separates questions to a runtime that is well; one that is not is asked every impatience, for work waits for
	// it.
	Period     = 5 * time.Second
	impatience = time.Second
	// answerTimeout is when a runtime that does not answer counts as unwell.
	answerTimeout = 10 * time.Second
)

// Config is what a Watcher works with.
type Config struct {
	// Endpoint is named in what is wrong.
	Endpoint string
	// Runtime returns the runtime service, waiting until there is one.
	Runtime func(context.Context) (internalapi.RuntimeService, error)
	// Clock times the questions.
	Clock clock.WithTicker
	// Logger gets a line when the runtime becomes well or unwell.
	Logger *slog.Logger
	// Changed is called with what is wrong, empty when nothing is, each time that it changes and once at the start.
	Changed func(reason string)
}

// Watcher knows how the runtime is.
type Watcher struct {
	cfg Config

	mu     sync.Mutex
	state  *lifecyclev1.Runtime
	reason string
	told   bool
}

// New returns a Watcher that has not asked yet.
func New(cfg Config) *Watcher { return &Watcher{cfg: cfg} }

// Run asks until ctx ends; it returns nil then.
func (w *Watcher) Run(ctx context.Context) error {
	ctx = cri.Quiet(ctx)
	for {
		well := w.ask(ctx)
		period := Period
		if !well {
			period = impatience
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

// State returns what the runtime last said of itself, nil before its first answer, and why it cannot be counted on,
// empty when it can.
func (w *Watcher) State() (state *lifecyclev1.Runtime, reason string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.told {
		return nil, fmt.Sprintf("the container runtime at %s has not answered yet", w.cfg.Endpoint)
	}
	return w.state, w.reason
}

func (w *Watcher) ask(ctx context.Context) (well bool) {
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
		reason = fmt.Sprintf("the container runtime at %s is not ready: %s", w.cfg.Endpoint, cmp.Or(state.GetReadyMessage(), "it does not say why"))
	}
	w.note(state, reason)
	return reason == ""
}

// note keeps an answer; when there was none, the last one stays beside the reason, as not ready.
func (w *Watcher) note(state *lifecyclev1.Runtime, reason string) {
	w.mu.Lock()
	changed := !w.told || w.reason != reason
	w.told, w.reason = true, reason
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
		w.cfg.Logger.Info("the container runtime is ready", "name", state.GetName(), "version", state.GetVersion(), "network_ready", state.GetNetworkReady())
	} else {
		w.cfg.Logger.Warn("the container runtime is not ready", telemetry.KeyReason, reason)
	}
	w.cfg.Changed(reason)
}

// connected returns the service of a runtime that has answered once; one that has not is soon said to be away.
func (w *Watcher) connected(ctx context.Context) (internalapi.RuntimeService, error) {
	ctx, cancel := context.WithTimeout(ctx, impatience)
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
			Name:                    handler.GetName(),
			RecursiveReadOnlyMounts: handler.GetFeatures().GetRecursiveReadOnlyMounts(), UserNamespaces: handler.GetFeatures().GetUserNamespaces(),
		})
	}
	slices.Sort(state.Handlers)
	slices.SortFunc(state.RuntimeHandlers, func(a, b *lifecyclev1.RuntimeHandler) int { return cmp.Compare(a.GetName(), b.GetName()) })
	if features := resp.GetFeatures(); features != nil {
		state.SupplementalGroupsPolicy = new(features.GetSupplementalGroupsPolicy())
	}
	return state, nil
}
