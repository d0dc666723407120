// Package heartbeat keeps the Node up to date: in every period, and at once when the state of pleg or syncloop changes.
// It reads the machine, polls the peers, computes the Node with nodeobject, and publishes it.
//
// Nothing blocks it. Each peer is polled in its own goroutine with a deadline; an unreachable peer, and a failed
// reading, are reported in the Node.
package heartbeat

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/internal/watchdog"
	"github.com/quartet-node/quartet/services/nodestatus/internal/eviction"
	"github.com/quartet-node/quartet/services/nodestatus/internal/facts"
	"github.com/quartet-node/quartet/services/nodestatus/internal/nodehealth"
	"github.com/quartet-node/quartet/services/nodestatus/internal/nodeobject"
)

// Config holds the inputs and outputs of a Heart.
type Config struct {
	// Settings are the settings of the configuration.
	Settings nodeobject.Settings
	// Period is the maximum interval of heartbeats, nodeStatusUpdateFrequency.
	Period time.Duration
	// AskPLEG and AskSyncLoop poll the peers, and AskTimeout bounds each poll.
	AskPLEG, AskSyncLoop Ask
	AskTimeout           time.Duration
	// ListImages lists the images of the node; nil for a Node without images.
	ListImages ListImages
	// Devices returns the amounts of the resources of device plugins, nil while they are unknown; it may be nil.
	Devices func() map[string]nodeobject.Amounts
	// ReadMachine and ReadNow read the machine.
	ReadMachine func() (facts.Machine, error)
	ReadNow     func() (facts.Readings, error)
	// ShuttingDown reports whether the machine is shutting down; nil if that is unknown. Look triggers its evaluation.
	ShuttingDown func() bool
	// Previous is the Node of an earlier process; zero if there is none.
	Previous nodeobject.State
	// Publish receives every Node, in order.
	Publish func(nodeobject.State)
	// Observe receives what each Node is computed from, and the result; it may be nil.
	Observe func(nodeobject.Input, nodeobject.State)
	// Save receives a Node that differs from the previous one in more than heartbeat times.
	Save func(nodeobject.State) error
	// Health reports the missing dependencies.
	Health *rpc.Health
	Clock  clock.WithTicker
	Logger *slog.Logger
	// Metrics are the metrics of this heart.
	Metrics *Metrics
	// Tracer creates a span "node.heartbeat" for each heartbeat that changes more than times.
	Tracer trace.Tracer
}

// Heart computes the Node. Create it with New.
type Heart struct {
	cfg      Config
	changed  chan struct{}
	pleg     *watcher
	syncloop *watcher
	images   *imageWatcher

	// Only the loop uses the following fields.
	machine   *facts.Machine
	previous  nodeobject.State
	saved     *v1.Node
	complaint string
	startedAt time.Time

	mu       sync.Mutex
	lastBeat time.Time
}

// New returns a heart, which starts with Run, and reports in the health that nothing is known yet.
func New(cfg Config) *Heart {
	h := &Heart{
		cfg: cfg, previous: cfg.Previous, startedAt: cfg.Clock.Now(),
		changed: make(chan struct{}, 1), // one signal covers any number of changes
	}
	h.previous.Eviction = h.previous.Eviction.Recalled(h.startedAt)
	watch := func(ask Ask) *watcher {
		return &watcher{ask: ask, timeout: cfg.AskTimeout, clock: cfg.Clock, changed: h.changed}
	}
	h.pleg, h.syncloop = watch(cfg.AskPLEG), watch(cfg.AskSyncLoop)
	h.images = &imageWatcher{list: cfg.ListImages, clock: cfg.Clock}
	for _, peer := range []string{"pleg", "syncloop"} {
		cfg.Health.Set(peer, peer+" has not been asked yet")
	}
	cfg.Health.Set("machine", "the machine has not been read yet")
	return h
}

// Run runs heartbeats until ctx ends. The first Node is computed after both peers were polled once, so that it is not
// NotReady only because a poll is missing.
func (h *Heart) Run(ctx context.Context) error {
	var polled sync.WaitGroup
	polled.Add(2)
	group, ctx := errgroup.WithContext(ctx)
	for _, w := range []*watcher{h.pleg, h.syncloop} {
		group.Go(func() error {
			w.run(ctx, polled.Done)
			return nil
		})
	}
	if h.cfg.ListImages != nil {
		group.Go(func() error {
			h.images.run(ctx)
			return nil
		})
	}
	group.Go(func() error {
		polled.Wait()
		h.loop(ctx)
		return nil
	})
	return group.Wait()
}

func (h *Heart) loop(ctx context.Context) {
	// Pressure must be detected soon, even if the status is computed rarely.
	ticker := h.cfg.Clock.NewTicker(min(h.cfg.Period, eviction.Interval))
	defer ticker.Stop()
	for ctx.Err() == nil {
		// This heartbeat covers all changes so far.
		select {
		case <-h.changed:
		default:
		}
		h.beat(ctx)
		select {
		case <-ctx.Done():
		case <-ticker.C():
		case <-h.changed:
		}
	}
}

func (h *Heart) beat(ctx context.Context) {
	began := h.cfg.Clock.Now()
	_, span := telemetry.Start(ctx, h.cfg.Tracer, "node.heartbeat", telemetry.Subject{})
	defer span.End()
	if err := h.readMachine(); err != nil {
		telemetry.Fail(span, err)
		h.cfg.Metrics.failedReadings.Inc()
		return
	}
	readings, err := h.cfg.ReadNow()
	telemetry.Fail(span, err)
	if err != nil {
		h.cfg.Metrics.failedReadings.Inc()
	}
	h.complain(err)
	pleg, syncloop := h.ask(peerPLEG, h.pleg), h.ask(peerSyncLoop, h.syncloop)
	shuttingDown := h.cfg.ShuttingDown != nil && h.cfg.ShuttingDown()
	var devices map[string]nodeobject.Amounts
	if h.cfg.Devices != nil {
		devices = h.cfg.Devices()
	}
	input := nodeobject.Input{
		Settings:     h.cfg.Settings,
		Machine:      *h.machine,
		Readings:     readings,
		PLEG:         pleg,
		SyncLoop:     syncloop,
		Images:       h.images.images(),
		Devices:      devices,
		ShuttingDown: shuttingDown,
		Previous:     h.previous,
		StartedAt:    h.startedAt,
		Now:          h.cfg.Clock.Now(),
	}
	state := nodeobject.Build(input)
	if h.cfg.Observe != nil {
		h.cfg.Observe(input, state)
	}
	h.report(state.Node)
	h.previous = state
	// The timestamp is set first, so that a receiver of this Node finds Overdue satisfied.
	h.mu.Lock()
	h.lastBeat = h.cfg.Clock.Now()
	h.mu.Unlock()
	h.cfg.Publish(state)
	h.cfg.Metrics.beat(state, h.cfg.Clock.Now(), h.cfg.Clock.Since(began))
	if changed := h.save(state); !changed && err == nil {
		telemetry.Idle(span)
	}
}

// Parts returns the state of the other processes: the polled ones, and configmux, whose state syncloop reports.
func (h *Heart) Parts() []nodehealth.Part {
	return append(h.pleg.known(), h.syncloop.known()...)
}

// Look triggers a heartbeat. It does not block.
func (h *Heart) Look() {
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

// ask returns the state of a peer, and reports it in the health and the metrics.
func (h *Heart) ask(name string, w *watcher) nodeobject.Peer {
	peer := w.peer()
	h.cfg.Health.Set(name, strings.Join(peer.Reasons, "; "))
	h.cfg.Metrics.peer(name, peer)
	return peer
}

// readMachine reads the facts that do not change, until it has succeeded once.
func (h *Heart) readMachine() error {
	if h.machine != nil {
		return nil
	}
	machine, err := h.cfg.ReadMachine()
	if err != nil {
		h.cfg.Logger.Error("there is no Node until the machine can be read; trying again", telemetry.KeyError, err,
			telemetry.KeyRetryAfter, h.cfg.Period)
		h.cfg.Health.Set("machine", err.Error())
		return err
	}
	h.cfg.Health.Set("machine", "")
	h.machine = &machine
	h.cfg.Metrics.cgroup.Set(float64(machine.CgroupVersion))
	if node := h.previous.Node; node != nil && node.Status.NodeInfo.BootID != machine.BootID {
		// The machine was rebooted, so the previous readiness is meaningless.
		node = node.DeepCopy()
		node.Status.Conditions = nil
		h.previous = nodeobject.State{Node: node}
	}
	return nil
}

// complain logs a failure of the readings when it begins, changes and ends.
func (h *Heart) complain(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text == h.complaint {
		return
	}
	h.complaint = text
	if err != nil {
		h.cfg.Logger.Warn("the machine could not be read in full", telemetry.KeyError, err)
		return
	}
	h.cfg.Logger.Info("the machine can be read again")
}

// report logs every changed condition.
func (h *Heart) report(node *v1.Node) {
	before := make(map[v1.NodeConditionType]v1.ConditionStatus)
	if h.previous.Node != nil {
		for _, c := range h.previous.Node.Status.Conditions {
			before[c.Type] = c.Status
		}
	}
	for _, c := range node.Status.Conditions {
		if before[c.Type] == c.Status {
			continue
		}
		h.cfg.Logger.Info("condition of the node", "condition", c.Type, "status", c.Status, telemetry.KeyReason, c.Reason,
			"message", c.Message)
	}
}

// save saves a Node that differs from the previous one in more than times, and reports whether it does.
func (h *Heart) save(state nodeobject.State) (changed bool) {
	timeless := state.Node.DeepCopy()
	for i := range timeless.Status.Conditions {
		timeless.Status.Conditions[i].LastHeartbeatTime = metav1.Time{}
	}
	if equality.Semantic.DeepEqual(h.saved, timeless) {
		return false
	}
	if err := h.cfg.Save(state); err != nil {
		// The next heartbeat retries; until then only times would be lost.
		h.cfg.Logger.Warn("the node could not be remembered", telemetry.KeyError, err)
		return true
	}
	h.saved = timeless
	return true
}

// overduePeriods is the number of periods without a Node after which this process is unhealthy.
const overduePeriods = 3

// Stands returns why the loop of heartbeats stands still; nil if it turns, or has not begun.
func (h *Heart) Stands() error {
	h.mu.Lock()
	last := h.lastBeat
	h.mu.Unlock()
	if last.IsZero() {
		return nil
	}
	if since := h.cfg.Clock.Since(last); since > overduePeriods*h.cfg.Period+watchdog.Limit {
		return fmt.Errorf("no Node has been computed for %v", since.Round(time.Second))
	}
	return nil
}

// Overdue returns an error if no Node was computed for three periods.
func (h *Heart) Overdue() error {
	h.mu.Lock()
	last := h.lastBeat
	h.mu.Unlock()
	if last.IsZero() {
		return errors.New("no Node has been computed yet: see the log of nodestatus")
	}
	if since := h.cfg.Clock.Since(last); since > overduePeriods*h.cfg.Period {
		return errors.New(
			"no Node has been computed for " + since.Round(time.Second).
				String() +
				": reading the machine hangs; see the log of nodestatus",
		)
	}
	return nil
}
