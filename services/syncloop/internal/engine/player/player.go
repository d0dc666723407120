// Package player gives a recording of a node to a shadow of syncloop, as if the node lived: each change at its time, by
// a clock that runs as fast as it is told.
package player

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/noderecording"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/clients"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/loop"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/shadow"
)

const (
	// tick is the least step of the clock.
	tick = 100 * time.Millisecond
	// before is how long before the recording the clock begins, besides the lag, for the start of the shadow.
	before = 10 * time.Second
	// lag is the time by which the shadow sees pleg's events later than the recorder. The recorder may get a change of the
	// desired pods, or the Node, that much later than the syncloop that ran: after a process was killed, each of the two
	// connects again after its own pause of at most 2 s, and a busy machine adds to it.
	lag = 20 * time.Second
	// comparePatience bounds, in real time, the wait for a comparison that is due.
	comparePatience = 10 * time.Second
	// compareDue is a little more than the interval of comparisons.
	compareDue = shadow.Period + tick
	// rest is how long the clock runs on after the recording, beyond what differences need.
	rest = 5 * time.Second
)

// Config is what to play, and how.
type Config struct {
	Entries []noderecording.Entry
	// Speed is how many times faster than recorded the clock runs.
	Speed float64
	// Step is called before each change; nil gives the changes at their time.
	Step func(text string) error
}

// Player plays a recording once.
type Player struct {
	cfg   Config
	clock *clocktesting.FakeClock
	// first is the number of entries before everything is known.
	first int

	desired   *stream.Level[*loop.Desired]
	events    *stream.Edge[*lifecyclev1.Event]
	node      *stream.Level[*nodev1.Node]
	pods      *stream.Level[*enginev1.Pod]
	podEvents *stream.Level[*enginev1.PodEvent]
	compared  chan struct{}
	rester    *rester

	// sources maps each source to whether it is ready, and of maps each pod to its source. unread has the pods that were
	// missing in a new snapshot of configmux: they are gone when their source is ready.
	sources map[string]bool
	of      map[string]string
	unread  map[string]bool
	last    map[string]*lifecyclev1.PodStatus

	mu     sync.Mutex
	health *lifecyclev1.GetHealthResponse
	// plegDown and syncloopDown are true while the recorder was not connected.
	plegDown, syncloopDown bool
}

// New returns a player. It fails if a part never sent its state.
func New(cfg Config) (*Player, error) {
	cfg.Entries = slices.DeleteFunc(slices.Clone(cfg.Entries), func(e noderecording.Entry) bool {
		return isNoInput(e.Part)
	})
	p := &Player{
		cfg: cfg, desired: stream.NewLevel[*loop.Desired](stream.Config{}),
		events: stream.NewEdge[*lifecyclev1.Event](stream.Config{}), node: stream.NewLevel[*nodev1.Node](stream.Config{}),
		pods:      stream.NewLevel[*enginev1.Pod](stream.Config{}),
		podEvents: stream.NewLevel[*enginev1.PodEvent](stream.Config{}), compared: make(chan struct{}, 1),
		sources: map[string]bool{}, of: map[string]string{}, unread: map[string]bool{},
		last: map[string]*lifecyclev1.PodStatus{},
	}
	needed := map[noderecording.Part]bool{
		noderecording.Desired: true, noderecording.Events: true, noderecording.Node: true, noderecording.Pods: true,
	}
	for i, e := range cfg.Entries {
		if e.Op == noderecording.Synced {
			delete(needed, e.Part)
		}
		if len(needed) == 0 {
			p.first = i + 1
			break
		}
	}
	for part := range needed {
		return nil, fmt.Errorf("%s has not sent its state before the recording ended: record again, for longer", part)
	}
	p.clock = clocktesting.NewFakeClock(cfg.Entries[p.first-1].Time.Add(-before - lag))
	return p, nil
}

// isNoInput reports whether a part is no input of syncloop's decisions: what came of calls, and of what pleg knew, is
// in pleg's events, and of heartbeats in the Node.
func isNoInput(part noderecording.Part) bool {
	return slices.Contains([]noderecording.Part{
		noderecording.PLEGCalls, noderecording.PLEGRecord, noderecording.SyncLoopCalls, noderecording.Heartbeats,
	}, part)
}

// NodeOf returns the Node of an entry; nil for another entry.
func NodeOf(e noderecording.Entry) *nodev1.Node {
	node, _ := e.Value.(*nodev1.Node)
	return node
}

// Play gives the recording to a shadow with these settings, and returns its summary after the end.
func (p *Player) Play(ctx context.Context, settings shadow.Config) (shadow.Summary, error) {
	for _, e := range p.cfg.Entries[:p.first] {
		if err := p.apply(e); err != nil {
			return shadow.Summary{}, err
		}
	}
	settings.Lag, settings.Wait = lag, settings.Wait+2*lag
	settings.Desired, settings.Events, settings.Node, settings.Pods = p.desired, p.events, p.node, p.pods
	settings.PodEvents, settings.Health, settings.Paused, settings.Clock = p.podEvents, healthNow, p.paused, p.clock
	settings.Compared = func() {
		select {
		case p.compared <- struct{}{}:
		default:
		}
	}
	p.rester = newRester()
	started := make(chan struct{})
	settings.Started = func() { close(started) }

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	var summary shadow.Summary
	var failed error
	go func() {
		defer close(done)
		defer cancel() // a shadow that has failed ends the play
		summary, failed = shadow.Run(ctx, settings)
	}()
	played := p.play(ctx, started, settings.Wait+lag+rest)
	cancel()
	<-done
	p.close()
	return summary, errors.Join(failed, played)
}

// play advances the clock through the recording and beyond it.
func (p *Player) play(ctx context.Context, started <-chan struct{}, beyond time.Duration) error {
	for begun := false; !begun; {
		select {
		case <-started:
			begun = true
		default:
			if !p.advance(ctx, p.clock.Now().Add(tick)) {
				return nil
			}
		}
	}
	for _, e := range p.cfg.Entries[p.first:] {
		if !p.advance(ctx, e.Time) {
			return nil
		}
		if p.cfg.Step != nil {
			if err := p.cfg.Step(describe(e)); err != nil {
				return err
			}
		}
		if err := p.apply(e); err != nil {
			return err
		}
	}
	p.advance(ctx, p.clock.Now().Add(beyond))
	return nil
}

func describe(e noderecording.Entry) string {
	return fmt.Sprintf("%s  line %d  %-10s  %-6s  %s", e.Time.Format("15:04:05.000"), e.Line, e.Part, e.Op, e.Key)
}

// advance runs the clock until a time. It returns false if ctx has ended.
func (p *Player) advance(ctx context.Context, to time.Time) bool {
	compared := p.clock.Now()
	for now := p.clock.Now(); now.Before(to); now = p.clock.Now() {
		step := min(tick, to.Sub(now))
		p.rester.await(ctx) // what is due is decided before the clock goes on
		p.clock.Step(step)
		if !sleep(ctx, time.Duration(float64(step)/p.cfg.Speed)) {
			return false
		}
		select {
		case <-p.compared:
			compared = p.clock.Now()
			continue
		default:
		}
		if p.clock.Since(compared) >= compareDue {
			p.await(ctx)
			compared = p.clock.Now()
		}
	}
	return ctx.Err() == nil
}

// await waits for a comparison, so that the clock does not run ahead of a busy machine.
func (p *Player) await(ctx context.Context) {
	patience := time.NewTimer(comparePatience)
	defer patience.Stop()
	select {
	case <-ctx.Done():
	case <-p.compared:
	case <-patience.C:
	}
}

// sleep waits in real time. It returns false if ctx has ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// apply gives one change.
func (p *Player) apply(e noderecording.Entry) error {
	switch e.Part {
	case noderecording.Desired:
		return p.applyDesired(e)
	case noderecording.Events:
		p.applyEvent(e)
	case noderecording.Health:
		p.mu.Lock()
		p.health, _ = e.Value.(*lifecyclev1.GetHealthResponse)
		p.mu.Unlock()
	case noderecording.Node:
		applyLevel(p.node, e)
	case noderecording.Pods:
		p.mu.Lock()
		p.syncloopDown = e.Op == noderecording.Down || p.syncloopDown && e.Op != noderecording.Synced
		p.mu.Unlock()
		applyLevel(p.pods, e)
	case noderecording.PodEvents:
		applyLevel(p.podEvents, e)
	case noderecording.PLEGCalls, noderecording.PLEGRecord, noderecording.SyncLoopCalls, noderecording.Heartbeats:
		// New has left them out
	}
	return nil
}

// applyLevel gives a change of a stream whose values are states.
func applyLevel[V any](level *stream.Level[V], e noderecording.Entry) {
	value, ok := e.Value.(V)
	switch {
	case e.Op == noderecording.Put && ok:
		level.Put(e.Key, value)
	case e.Op == noderecording.Remove:
		level.Delete(e.Key)
	}
}

func (p *Player) applyDesired(e noderecording.Entry) error {
	switch e.Op {
	case noderecording.Put:
		sent, _ := e.Value.(*configv1.WatchPodUpdatesResponse)
		desired, err := clients.DecodeDesired(e.Key, sent)
		if err != nil || desired == nil {
			return err
		}
		if desired.Pod == nil {
			p.sources[desired.Source] = desired.Ready
		} else {
			p.of[e.Key] = desired.Source
			delete(p.unread, e.Key)
		}
		p.desired.Put(e.Key, desired)
		p.removeUnread()
	case noderecording.Remove:
		if e.Value == nil && p.of[e.Key] != "" {
			p.unread[e.Key] = true // until the snapshot is complete
			return nil
		}
		p.desired.Delete(e.Key)
		delete(p.of, e.Key)
	case noderecording.Synced:
		p.removeUnread()
	case noderecording.Down:
	}
	return nil
}

// removeUnread removes the pods that are missing in a snapshot and whose source is ready.
func (p *Player) removeUnread() {
	for key := range p.unread {
		if p.sources[p.of[key]] {
			p.desired.Delete(key)
			delete(p.unread, key)
			delete(p.of, key)
		}
	}
}

func (p *Player) applyEvent(e noderecording.Entry) {
	event, _ := e.Value.(*lifecyclev1.Event)
	switch e.Op {
	case noderecording.Put:
		p.last[e.Key] = event.GetStatus()
		p.events.Emit(e.Key, event, &lifecyclev1.Event{
			Type: lifecyclev1.EventType_EVENT_TYPE_POD_SYNC, PodUid: event.GetPodUid(), Status: event.GetStatus(),
		})
	case noderecording.Remove:
		if event == nil {
			event = gone(types.UID(e.Key), p.last[e.Key])
		}
		delete(p.last, e.Key)
		p.events.EmitLast(e.Key, event)
	case noderecording.Down, noderecording.Synced:
		p.mu.Lock()
		p.plegDown = e.Op == noderecording.Down
		p.mu.Unlock()
	}
}

// gone returns the event of a pod that was missing in a snapshot of pleg.
func gone(uid types.UID, last *lifecyclev1.PodStatus) *lifecyclev1.Event {
	return &lifecyclev1.Event{
		Type: lifecyclev1.EventType_EVENT_TYPE_POD_SYNC, PodUid: string(uid),
		Status: &lifecyclev1.PodStatus{
			Uid: string(uid), Name: last.GetName(), Namespace: last.GetNamespace(), Ips: last.GetIps(),
			ObservedBoottimeNs: last.GetObservedBoottimeNs() + 1, ObservedAt: last.GetObservedAt(),
		},
	}
}

// healthNow is the Health of shadow.Config: the shadow always decides. When the syncloop that ran did not, because it
// saw pleg away or not healthy, is not in the recording: it and the recorder asked at different times.
func healthNow(context.Context) (reasons []string, network string, err error) { return nil, "", nil }

// paused is the Paused of shadow.Config: nothing is compared while the syncloop that ran was away, or may have waited
// for pleg.
func (p *Player) paused() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	unwell := p.health != nil && (!p.health.GetHealthy() || !p.health.GetRuntime().GetNetworkReady())
	return p.syncloopDown || p.plegDown || unwell
}

func (p *Player) close() {
	p.desired.Close()
	p.events.Close()
	p.node.Close()
	p.pods.Close()
	p.podEvents.Close()
}
