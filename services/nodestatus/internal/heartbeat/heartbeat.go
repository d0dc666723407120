// Package heartbeat keeps the Node up to date: every period, and at once when pleg or syncloop turns out to be other
// than it was. It reads the machine, asks the peers, lets nodeobject decide, and hands on what comes out.
//
// Nothing stops it. A peer that is away or hangs is a fact like another, asked on a goroutine of its own and with a
// deadline; a reading that fails is reported in the Node.
package heartbeat

import (
	"context"
	"errors"
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
	"github.com/quartet-node/quartet/services/nodestatus/internal/eviction"
	"github.com/quartet-node/quartet/services/nodestatus/internal/facts"
	"github.com/quartet-node/quartet/services/nodestatus/internal/nodehealth"
	"github.com/quartet-node/quartet/services/nodestatus/internal/nodeobject"
)

// Config says what to compute the Node from and whom to give it.
type Config struct {
	// Settings are the configuration's.
	Settings nodeobject.Settings
	// Period is the time between two heartbeats at most, nodeStatusUpdateFrequency.
	Period time.Duration
	// AskPLEG and AskSyncLoop ask the peers, and AskTimeout is how long each has.
	AskPLEG, AskSyncLoop Ask
	AskTimeout           time.Duration
	// ListImages asks for the images on the node; nil for a Node without them.
	ListImages ListImages
	// ReadMachine and ReadNow read the machine.
	ReadMachine func() (facts.Machine, error)
	ReadNow     func() (facts.Readings, error)
	// ShuttingDown tells whether the machine is about to go down; nil when nobody knows. Look has the heart ask.
	ShuttingDown func() bool
	// Previous is the Node that was remembered from before this process began; the zero value when there is none.
	Previous nodeobject.State
	// Publish gets every Node, one after the other.
	Publish func(nodeobject.State)
	// Save gets a Node that differs from the one before in more than the times of its heartbeats.
	Save func(nodeobject.State) error
	// Health is told what the Node waits for.
	Health *rpc.Health
	Clock  clock.WithTicker
	Logger *slog.Logger
	// Metrics are those of this heart alone.
	Metrics *Metrics
	// Tracer makes a span "node.heartbeat" of each heartbeat that changes the Node in more than its times.
	Tracer trace.Tracer
}

// Heart computes the Node. Make it with New.
type Heart struct {
	cfg      Config
	changed  chan struct{}
	pleg     *watcher
	syncloop *watcher
	images   *imageWatcher

	// Of the loop alone.
	machine   *facts.Machine
	previous  nodeobject.State
	saved     *v1.Node
	complaint string
	startedAt time.Time

	mu       sync.Mutex
	lastBeat time.Time
}

// New returns a heart that does not beat yet, and says in the health that nothing is known.
func New(cfg Config) *Heart {
	h := &Heart{
		cfg: cfg, previous: cfg.Previous, startedAt: cfg.Clock.Now(),
		changed: make(chan struct{}, 1), // one "something has changed" says as much as many
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

// Run beats until ctx ends. The first Node comes when both peers have been asked once, so that the first is not one
// that says not ready for want of asking.
func (h *Heart) Run(ctx context.Context) error {
	var asked sync.WaitGroup
	asked.Add(2)
	group, ctx := errgroup.WithContext(ctx)
	for _, w := range []*watcher{h.pleg, h.syncloop} {
		group.Go(func() error {
			w.run(ctx, asked.Done)
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
		asked.Wait()
		h.loop(ctx)
		return nil
	})
	return group.Wait()
}

func (h *Heart) loop(ctx context.Context) {
	// What presses on the node is to be known soon, however seldom its status is to be computed.
	ticker := h.cfg.Clock.NewTicker(min(h.cfg.Period, eviction.Interval))
	defer ticker.Stop()
	for ctx.Err() == nil {
		// This heartbeat sees whatever has changed until now.
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
	state := nodeobject.Build(nodeobject.Input{
		Settings: h.cfg.Settings, Machine: *h.machine, Readings: readings, PLEG: pleg, SyncLoop: syncloop, Images: h.images.images(),
		ShuttingDown: shuttingDown, Previous: h.previous, StartedAt: h.startedAt, Now: h.cfg.Clock.Now(),
	})
	h.report(state.Node)
	h.previous = state
	// The stamp comes first: whoever has this Node from the stream finds Overdue satisfied.
	h.mu.Lock()
	h.lastBeat = h.cfg.Clock.Now()
	h.mu.Unlock()
	h.cfg.Publish(state)
	h.cfg.Metrics.beat(state, h.cfg.Clock.Now(), h.cfg.Clock.Since(began))
	if changed := h.save(state); !changed && err == nil {
		telemetry.Idle(span)
	}
}

// Parts returns what is known of the other processes: those that are asked, and configmux, of which syncloop tells.
func (h *Heart) Parts() []nodehealth.Part {
	return append(h.pleg.known(), h.syncloop.known()...)
}

// Look has the Node computed anew now. It does not wait.
func (h *Heart) Look() {
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

// ask returns what is known of a peer, and says it in the health and the metrics.
func (h *Heart) ask(name string, of *watcher) nodeobject.Peer {
	peer := of.peer()
	h.cfg.Health.Set(name, strings.Join(peer.Reasons, "; "))
	h.cfg.Metrics.peer(name, peer)
	return peer
}

// readMachine reads what does not change, until that has worked once.
func (h *Heart) readMachine() error {
	if h.machine != nil {
		return nil
	}
	machine, err := h.cfg.ReadMachine()
	if err != nil {
		h.cfg.Logger.Error("there is no Node until the machine can be read; trying again", telemetry.KeyError, err, telemetry.KeyRetryAfter, h.cfg.Period)
		h.cfg.Health.Set("machine", err.Error())
		return err
	}
	h.cfg.Health.Set("machine", "")
	h.machine = &machine
	h.cfg.Metrics.cgroup.Set(float64(machine.CgroupVersion))
	if node := h.previous.Node; node != nil && node.Status.NodeInfo.BootID != machine.BootID {
		// The machine has been started anew: what was ready then says nothing about now.
		node = node.DeepCopy()
		node.Status.Conditions = nil
		h.previous = nodeobject.State{Node: node}
	}
	return nil
}

// complain logs a failure of the readings when it begins, when it changes and when it ends.
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

// report logs every condition whose status has changed.
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
		h.cfg.Logger.Info("condition of the node", "condition", c.Type, "status", c.Status, telemetry.KeyReason, c.Reason, "message", c.Message)
	}
}

// save has a Node kept that differs from the one before in more than its times, and returns whether it does.
func (h *Heart) save(state nodeobject.State) (changed bool) {
	timeless := state.Node.DeepCopy()
	for i := range timeless.Status.Conditions {
		timeless.Status.Conditions[i].LastHeartbeatTime = metav1.Time{}
	}
	if equality.Semantic.DeepEqual(h.saved, timeless) {
		return false
	}
	if err := h.cfg.Save(state); err != nil {
		// The next heartbeat tries again; until then only times would be lost.
		h.cfg.Logger.Warn("the node could not be remembered", telemetry.KeyError, err)
		return true
	}
	h.saved = timeless
	return true
}

// overduePeriods is after how many periods without a Node something is wrong with this process.
const overduePeriods = 3

// Overdue returns an error when no Node has been computed for three periods.
func (h *Heart) Overdue() error {
	h.mu.Lock()
	last := h.lastBeat
	h.mu.Unlock()
	if last.IsZero() {
		return errors.New("no Node has been computed yet: see the log of nodestatus")
	}
	if since := h.cfg.Clock.Since(last); since > overduePeriods*h.cfg.Period {
		return errors.New("no Node has been computed for " + since.Round(time.Second).String() + ": reading the machine hangs; see the log of nodestatus")
	}
	return nil
}
