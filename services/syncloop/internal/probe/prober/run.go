package prober

import (
	"container/heap"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/internal/watchdog"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/decide"
	"github.com/quartet-node/quartet/services/syncloop/internal/probe/probecalls"
)

// idleWake is how long the timer sleeps if nothing is due: a new probe wakes it.
const idleWake = time.Hour

// maxMessage bounds the stored text of a result in bytes, for logs, spans and `quartet describe pod`.
const maxMessage = 200

// reasonUnhealthy is the reason of the kubelet's event for a failed call.
const reasonUnhealthy = "Unhealthy"

// Run makes the calls that are due until ctx ends, and returns its error after the last call has returned. It stops no
// container.
func (m *Manager) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { m.tidy(ctx) })
	timer := m.cfg.Clock.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C():
		case <-m.wake:
		}
		timer.Reset(m.startDue(ctx, &running))
	}
}

// Stands returns why the loop of probes stands still: a call has been due for longer than the limit. It is nil if the
// loop turns, and blocks while the probes are locked.
func (m *Manager) Stands() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.queue) == 0 {
		return nil
	}
	if late := m.cfg.Clock.Since(m.queue[0].machine.next); late > watchdog.Limit {
		return fmt.Errorf("a probe has been due for %v", late.Round(time.Second))
	}
	return nil
}

// startDue starts the calls that are due, and returns the time until the next one.
func (m *Manager) startDue(ctx context.Context, running *sync.WaitGroup) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.cfg.Clock.Now()
	for len(m.queue) > 0 && !m.queue[0].machine.next.After(now) {
		one := heap.Pop(&m.queue).(*probe) //nolint:forcetypeassert // the heap has only these
		callCtx, cancel := context.WithCancel(ctx)
		one.cancel, one.calling = cancel, now
		target := one.target
		running.Go(func() {
			defer cancel()
			m.answered(ctx, one, target, now, m.cfg.Probe(callCtx, target))
		})
	}
	if len(m.queue) == 0 {
		return idleWake
	}
	return max(m.queue[0].machine.next.Sub(now), 0)
}

// answered processes the result of a call. A changed result is stored on disk, then published, then sent; until then
// there is no further call.
func (m *Manager) answered(
	ctx context.Context, one *probe, target probecalls.Target, begun time.Time, answer probecalls.Answer,
) {
	now := m.cfg.Clock.Now()
	m.mu.Lock()
	if one.stopped {
		m.mu.Unlock()
		return
	}
	answer.Output = shorten(answer.Output)
	one.answer, one.calledAt = &answer, begun
	changed := one.machine.answered(answer.Outcome, begun, now)
	if !changed {
		one.cancel = nil
		m.schedule(one)
		m.mu.Unlock()
		return
	}
	kept, first := Kept{Result: one.machine.result, Since: now}, one.since.IsZero()
	m.mu.Unlock()

	change := Change{
		Pod: target.Pod.UID, Kind: target.Kind, Container: target.Container.Name, ContainerID: target.ContainerID,
		Result: kept.Result,
	}
	ctx, span := m.span(ctx, one, target, kept.Result, first, begun)
	defer span.End()
	change.Traceparent = telemetry.Traceparent(ctx)
	if err := m.cfg.Book.put(change.Pod, change.ContainerID, change.Kind, kept); err != nil {
		m.cfg.Logger.WarnContext(ctx, "cannot store the result of a probe; if syncloop is killed, the container's state may change temporarily",
			telemetry.KeyPod, podName(target), telemetry.KeyContainer, change.Container, telemetry.KeyError, err)
	}
	if m.show(one, target, kept) {
		m.log(ctx, target, kept.Result)
		select {
		case m.changes <- change:
		case <-ctx.Done():
		}
	}
}

// show publishes a result, and permits further calls. It returns false if the container is not probed any more.
func (m *Manager) show(one *probe, target probecalls.Target, kept Kept) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	one.cancel = nil
	p := m.pods[target.Pod.UID]
	if p == nil || !p.ids[target.ContainerID] {
		m.tidyLater(target.Pod.UID) // its file was written after it had been dropped
		return false
	}
	if one.stopped {
		return false
	}
	if m.published[target.ContainerID] == nil {
		m.published[target.ContainerID] = results{}
	}
	m.published[target.ContainerID][target.Kind], one.since = kept, kept.Since
	if c := p.containers[target.Container.Name]; c != nil && target.Kind == probecalls.Startup &&
		kept.Result == decide.Success {
		for _, other := range c.probes {
			m.open(other)
		}
	}
	m.schedule(one)
	return true
}

// tidy removes outdated results from disk until ctx ends.
func (m *Manager) tidy(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.untidy:
		}
		m.mu.Lock()
		keep := map[types.UID][]string{}
		for uid := range m.drop {
			keep[uid] = nil
			if p := m.pods[uid]; p != nil {
				for id := range p.ids {
					keep[uid] = append(keep[uid], id)
				}
			}
		}
		clear(m.drop)
		forgotten := m.forgotten
		m.forgotten = nil
		m.mu.Unlock()
		for uid, ids := range keep {
			if err := m.cfg.Book.keepOnly(uid, ids); err != nil {
				m.cfg.Logger.Warn("cannot remove outdated results of probes from disk", telemetry.KeyPodUID, string(uid),
					telemetry.KeyError, err)
			}
		}
		for _, target := range forgotten {
			m.cfg.Forget(target)
		}
	}
}

// span creates the span of a changed result. The first success belongs to the container's start, which waits for it;
// every other change begins a new trace, linked to the container's creation.
func (m *Manager) span(
	ctx context.Context, one *probe, target probecalls.Target, result decide.ProbeResult, first bool, begun time.Time,
) (context.Context, trace.Span) {
	parent := ""
	if first && result == decide.Success {
		parent = one.startedBy
	}
	about := telemetry.Subject{
		Namespace: target.Pod.Namespace, Pod: target.Pod.Name, UID: string(target.Pod.UID), Container: target.Container.Name,
		ContainerID: target.ContainerID,
	}
	ctx = telemetry.WithTraceparent(ctx, parent)
	if parent != "" {
		telemetry.Wait(ctx, m.cfg.Tracer, about, strings.ToLower(string(target.Kind))+" probe", one.startedAt, begun)
	}
	ctx, span := telemetry.Start(ctx, m.cfg.Tracer, "probe", about, trace.WithTimestamp(begun))
	if span.IsRecording() {
		span.SetAttributes(telemetry.AttrProbe.String(strings.ToLower(string(target.Kind))),
			telemetry.AttrOutcome.String(wordOf(result)))
		telemetry.LinkTo(span, one.startedBy)
	}
	if result == decide.Failure {
		telemetry.FailWith(span, reasonUnhealthy, string(target.Kind)+" probe failed")
	}
	return ctx, span
}

// log logs the result of a probe, without the container's output, which may be anything, and is in the pod's events.
func (m *Manager) log(ctx context.Context, target probecalls.Target, result decide.ProbeResult) {
	m.cfg.Logger.InfoContext(ctx, "the result of a probe has changed", telemetry.KeyPod, podName(target), telemetry.KeyPodUID, string(target.Pod.UID),
		telemetry.KeyContainer, target.Container.Name, telemetry.KeyContainerID, target.ContainerID,
		telemetry.KeyProbe, strings.ToLower(string(target.Kind)), telemetry.KeyResult, wordOf(result))
}

func podName(target probecalls.Target) string { return target.Pod.Namespace + "/" + target.Pod.Name }

// shorten converts bytes to valid text, and truncates it to maxMessage bytes between two characters.
func shorten(text string) string {
	text = strings.ToValidUTF8(text, string(utf8.RuneError))
	if len(text) <= maxMessage {
		return text
	}
	cut := maxMessage
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + "…"
}
