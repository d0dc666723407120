// Package replay runs the decisions of pleg against a recording of the runtime's answers and events: which pods to
// inspect, and which lifecycle events an inspection makes. It uses package relist as it is, and gives it each recorded
// list, event and inspection in the order of the recording. So the result does not depend on the speed of the machine.
//
// The recording has gaps, for example while pleg was killed. Each part between two gaps begins with pleg's record.
package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace/noop"
	clocktesting "k8s.io/utils/clock/testing"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/noderecording"
	"github.com/quartet-node/quartet/internal/replayed"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/pleg/internal/relist"
	"github.com/quartet-node/quartet/services/pleg/internal/runtimeevents"
)

// patience is how long an inspection may be due: as long as the longest inspection of another pod.
const patience = 30 * time.Second

// The actions of differences.
const (
	ActionInspect = "inspect"
	ActionPublish = "publish"
)

// ErrNoCalls is the error for a recording without pleg's calls.
var ErrNoCalls = errors.New("the calls of pleg are not in the recording: record again, as a user with the role admin")

// Config is what to replay, and how.
type Config struct {
	Entries []noderecording.Entry
	// Step is called before each step; it may be nil.
	Step func(text string) error
	// Report is called with each difference.
	Report func(replayed.Difference) error
}

// Summary counts what was compared.
type Summary struct {
	Pods        int `json:"pods"`
	Inspections int `json:"inspections"`
	Events      int `json:"events"`
	Differences int `json:"differences"`
}

// String returns the summary as a sentence.
func (s Summary) String() string {
	differences := "none"
	if s.Differences > 0 {
		differences = fmt.Sprint(s.Differences)
	}
	return fmt.Sprintf("Compared %d pods, %d inspections, %d events. Differences: %s.",
		s.Pods, s.Inspections, s.Events, differences)
}

// Run replays a recording. It fails with ErrNoCalls, with an error of Step or Report, and for a recording that it
// cannot read.
func Run(ctx context.Context, cfg Config) (Summary, error) {
	segments, err := read(cfg.Entries)
	if err != nil {
		return Summary{}, err
	}
	if len(segments) == 0 {
		return Summary{}, ErrNoCalls
	}
	var summary Summary
	pods := map[string]bool{}
	for _, s := range segments {
		p := newPlayer(cfg, s, &summary)
		if err := p.play(ctx); err != nil {
			return Summary{}, err
		}
		for uid := range p.compared {
			pods[uid] = true
		}
	}
	summary.Pods = len(pods)
	return summary, nil
}

// player replays one segment.
type player struct {
	cfg     Config
	segment *segment
	summary *Summary
	clock   *clocktesting.FakeClock
	boot    time.Duration
	relist  *relist.Replay
	events  *stream.Edge[*lifecyclev1.Event]
	watch   stream.Subscription[*lifecyclev1.Event]

	// published has the events of each pod that are not compared yet.
	published map[string][]*lifecyclev1.Event
	// due are the lists that wait for inspections.
	due []due
	// wanted is since when the inspection of a pod is due.
	wanted map[string]time.Time
	// names are the names of the pods, and compared those that were.
	names    map[string]string
	compared map[string]bool
}

// due is a list whose wait for inspections ends at a time, or with the last of them.
type due struct {
	at     time.Time
	listed *relist.Listed
}

// newPlayer returns a player of a segment.
func newPlayer(cfg Config, s *segment, summary *Summary) *player {
	p := &player{
		cfg: cfg, segment: s, summary: summary, clock: clocktesting.NewFakeClock(s.begin()),
		published: map[string][]*lifecyclev1.Event{}, wanted: map[string]time.Time{}, names: map[string]string{},
		compared: map[string]bool{},
	}
	p.events = stream.NewEdge[*lifecyclev1.Event](stream.Config{Clock: p.clock})
	p.relist = relist.NewReplay(relist.Config{
		Events: p.events, Tracer: noop.NewTracerProvider().Tracer(""), Timeout: patience, Clock: p.clock,
		BootTime: func() time.Duration { return p.boot }, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Metrics: relist.NewMetrics(prometheus.NewRegistry()),
	})
	for uid, pod := range s.pods {
		switch {
		case pod.record != nil:
			p.name(uid, pod.record.GetPublished().GetStatus())
			p.name(uid, pod.record.GetObserved().GetStatus())
			p.relist.Restore(pod.record)
		case pod.known != nil:
			p.name(uid, pod.known)
			p.relist.Know(uid, pod.known)
		}
	}
	return p
}

// begin returns the time of the first step.
func (s *segment) begin() time.Time {
	if len(s.steps) == 0 {
		return time.Time{}
	}
	return s.steps[0].began
}

func (p *player) play(ctx context.Context) (err error) {
	if p.watch, err = p.events.Subscribe(ctx, nil); err != nil {
		return err
	}
	defer p.watch.Close()
	for _, s := range p.segment.steps {
		if err := ctx.Err(); err != nil {
			return err
		}
		if p.cfg.Step != nil {
			if err := p.cfg.Step(p.describe(s)); err != nil {
				return err
			}
		}
		p.runDue(s.ended)
		if err := p.step(ctx, s); err != nil {
			return err
		}
		if err := p.overdue(s); err != nil {
			return err
		}
	}
	return nil
}

func (p *player) describe(s *step) string {
	what := "list everything"
	switch {
	case s.event != nil:
		what = "event  " + s.event.GetContainerEventType().String() + " " + s.event.GetContainerId()
	case s.uid != "":
		what = "inspect  " + p.of(s.uid)
	}
	return fmt.Sprintf("%s  line %d  %s", s.ended.Format("15:04:05.000"), s.line, what)
}

// runDue ends the waits that are over at a time.
func (p *player) runDue(until time.Time) {
	for len(p.due) > 0 && !p.due[0].at.After(until) {
		p.set(p.due[0].at)
		p.due[0].listed.Adopt()
		p.due = p.due[1:]
	}
}

// adoptInspected ends the waits for which no inspection is missing any more.
func (p *player) adoptInspected() {
	p.due = slices.DeleteFunc(p.due, func(d due) bool {
		if d.listed.Waits() {
			return false
		}
		d.listed.Adopt()
		return true
	})
}

// set sets the clock.
func (p *player) set(at time.Time) {
	p.boot += at.Sub(p.clock.Now())
	p.clock.SetTime(at)
}

// step does one step.
func (p *player) step(ctx context.Context, s *step) error {
	p.clock.SetTime(s.began)
	p.boot = s.boot
	if s.uid == "" && s.boot < p.segment.from {
		return nil // what follows from it is in the record
	}
	switch {
	case s.event != nil:
		runtimeevents.Hint(p.relist.Hints(), s.event, runtimeevents.TimeOf(s.event))
		return nil
	case s.uid != "":
		return p.inspect(ctx, s)
	}
	listed, err := p.relist.List(ctx, newService(s.calls))
	if err != nil {
		return nil //nolint:nilerr // a list that has failed decides nothing
	}
	p.set(s.ended)
	wait := relist.Settle
	if !p.isSynced() {
		wait = relist.FirstSettle
	}
	for uid, pod := range p.segment.pods {
		if pod.isSlowAt(s.ended) {
			listed.Leave(uid)
		}
	}
	p.due = append(p.due, due{at: s.ended.Add(wait), listed: listed})
	p.adoptInspected()
	return nil
}

// isSlowAt reports whether an inspection of the pod had been running for long at a time.
func (pod *recorded) isSlowAt(at time.Time) bool {
	return slices.ContainsFunc(pod.inspections, func(s *step) bool {
		return !s.began.Add(relist.Slow).After(at) && s.ended.After(at)
	})
}

// inspect replays an inspection, and compares the events of its pod.
func (p *player) inspect(ctx context.Context, s *step) error {
	pod := p.segment.pods[s.uid]
	if s.boot < pod.knownAt {
		// What was known at the begin is newer.
		if pod.record == nil && pod.known == nil {
			p.relist.Know(s.uid, nil) // a list before had it
		} else {
			p.relist.Forgo(s.uid)
		}
		return nil
	}
	if s.ended.Sub(s.began) > relist.Overdue {
		p.set(s.began.Add(relist.Overdue))
		p.relist.Late(s.uid, s.began)
	}
	p.set(s.ended)
	p.relist.SetBefore(p.segment.continues && !p.isSynced())
	runtime := newService(s.calls)
	want := pod.until(s)
	if err := p.relist.Inspect(ctx, runtime, s.uid, s.began, s.boot); err != nil {
		if s == pod.inspections[len(pod.inspections)-1] {
			return nil // the recording has only a part of it
		}
		return p.report(s, ActionInspect, "asks for "+runtime.missing, "does not ask for it")
	}
	p.summary.Inspections++
	delete(p.wanted, s.uid)
	p.adoptInspected()
	if err := p.collect(ctx); err != nil {
		return err
	}
	if !p.isSynced() && !p.segment.continues {
		delete(p.published, s.uid) // pleg makes no events of what it finds then
		return nil
	}
	return p.compare(s, want)
}

// isSynced reports whether the first relist has finished by now.
func (p *player) isSynced() bool { return p.boot >= p.segment.syncedAt }

// collect takes the events that were published.
func (p *player) collect(ctx context.Context) error {
	const last = "" // no pod has this UID
	p.events.Emit(last, nil, nil)
	for {
		m, err := p.watch.Next(ctx)
		if err != nil {
			return err
		}
		switch {
		case m.Kind == stream.KindDelta && m.Key == last:
			return nil
		case m.Kind == stream.KindDelta:
			p.published[m.Key] = append(p.published[m.Key], m.Value)
			p.name(m.Key, m.Value.GetStatus())
		default: // the snapshot has what was known
		}
	}
}

// overdue reports inspections that should have taken place by now, and did not.
func (p *player) overdue(s *step) error {
	for _, uid := range p.relist.Wanted() {
		since, waits := p.wanted[uid]
		switch {
		case !waits:
			p.wanted[uid] = s.ended
		case s.ended.Sub(since) > patience:
			p.relist.Forgo(uid)
			delete(p.wanted, uid)
			if err := p.report(&step{uid: uid, ended: since}, ActionInspect, "inspects the pod", "does not"); err != nil {
				return err
			}
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(p.wanted)) {
		if !slices.Contains(p.relist.Wanted(), uid) {
			delete(p.wanted, uid)
		}
	}
	return nil
}

func (p *player) report(s *step, action, replays, recorded string) error {
	p.summary.Differences++
	return p.cfg.Report(replayed.Difference{
		Time: s.ended, Object: p.of(s.uid), Action: action, Replayed: replays, Recorded: recorded,
	})
}

// name notes the name of a pod.
func (p *player) name(uid string, status *lifecyclev1.PodStatus) {
	if status.GetName() != "" {
		p.names[uid] = status.GetNamespace() + "/" + status.GetName()
	}
}

// of returns the name of a pod, or its UID.
func (p *player) of(uid string) string {
	if name := p.names[uid]; name != "" {
		return strings.TrimPrefix(name, "/")
	}
	return uid
}
