// Package relist observes the runtime: it lists everything, inspects the pods whose list state has changed, stores the
// record and publishes the changes. It is the only writer of the record, and the only publisher of events. Package
// record computes the changes, package runtimeevents selects pods to inspect before the next relist, package journal
// stores the published state across a restart, and package server serves the record.
//
//	tick, Request ──► list all ──► pods that differ ─┐
//	Hint ──────────────────────────────────────────┼──► one inspection at a time per pod ──► record ──► events
//	Status (newer than the record) ────────────────┘
//
// Inspections of different pods run concurrently; a runtime call that hangs for one pod delays only that pod.
package relist

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	internalapi "k8s.io/cri-api/pkg/apis"
	"k8s.io/utils/clock"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/internal/watchdog"
	"github.com/quartet-node/quartet/services/pleg/internal/journal"
)

const (
	// Period is the interval of full relists without the runtime's events, and of retries.
	Period = time.Second
	// maxCallTimeout bounds a list, and all calls of one inspection: they only read, so a runtime that takes longer is
	// unhealthy.
	maxCallTimeout = 30 * time.Second
	// parallel is the maximum of concurrent inspections in each of the two lanes. It keeps the runtime busy without
	// delaying changes.
	parallel = 4
	// slow is the duration after which an inspection does not count towards parallel any more, so that hanging ones do not
	// delay the others.
	slow = time.Second
	// overdue is the duration of an inspection after which the pod's state is published as unknown. A busy runtime, for
	// example while a hundred pods start, answers earlier.
	overdue = 5 * time.Second
	// settle bounds the wait of a relist for its inspections, and firstSettle that of the first relist, after which
	// followers treat missing pods as removed.
	settle      = 2 * time.Second
	firstSettle = 10 * time.Second
)

var (
	// ErrNotSynced is returned before the first relist has finished.
	ErrNotSynced = errors.New("the first relist has not finished: the runtime has not answered yet")
	// ErrFuture is returned for the request of an observation that is newer than the present.
	ErrFuture = errors.New("newer_than_boottime_ns is in the future: take it from this machine's CLOCK_BOOTTIME")
	// ErrStopped is returned while this process stops.
	ErrStopped = errors.New("pleg is stopping")
)

// Config holds the parameters of a Relister.
type Config struct {
	// Runtime waits for the runtime service and returns it.
	Runtime func(context.Context) (internalapi.RuntimeService, error)
	// Events publishes the events. Its stream continues that of Journal.
	Events *stream.Edge[*lifecyclev1.Event]
	// Journal stores the published state across a restart; if it is nil, nothing is stored and the previous state is
	// unknown.
	Journal *journal.Book
	// Tracer creates the span of each event.
	Tracer trace.Tracer
	// Timeout is runtimeRequestTimeout; it bounds lists and inspections, but not above 30 s.
	Timeout time.Duration
	// Clock times the relists.
	Clock clock.WithTicker
	// BootTime is the clock of observations, boottime.Now. Required.
	BootTime func() time.Duration
	// Logger logs for the operator.
	Logger *slog.Logger
	// Metrics counts the relists and inspections of this Relister.
	Metrics *Metrics
}

// Relister holds the record. Its methods are safe for concurrent use, before and during Run.
type Relister struct {
	cfg    Config
	synced chan struct{}
	// stopped is closed when Run returns.
	stopped chan struct{}
	// kick has capacity one, because a relist covers all requests.
	kick    chan struct{}
	flights sync.WaitGroup

	mu      sync.Mutex
	ctx     context.Context //nolint:containedctx // the life of Run, which inspections share
	runtime internalapi.RuntimeService
	pods    map[string]*pod
	// unseen is the number of pods that are unseen.
	unseen int
	lanes  lanes
	closed bool
	events events
	// suspect is set if an unknown pod has changed.
	suspect bool
	// turned is the time of the loop's last turn; zero before the first.
	turned time.Time
	// remembers is true if the state of the previous process is known.
	remembers bool
	round     round
}

// round is the progress of full relists.
type round struct {
	// begun and finished count relists. The number of a relist is the value of begun after its start.
	begun, finished uint64
	// beganAt is the start of the last finished relist, beganBoot its boot time, and finishedAt its end.
	beganAt, finishedAt time.Time
	beganBoot           time.Duration
	// runsSince is the boot time of the start of a relist that runs; 0 while none does.
	runsSince time.Duration
	// listed is closed when the lists of the last relist have been compared with the record, or have failed; nil before
	// the first.
	listed chan struct{}
	// changed is closed and replaced when a relist has finished.
	changed chan struct{}
	// syncedBoot is the boot time at which the first relist finished; 0 before that.
	syncedBoot time.Duration
	// err is the error of the last relist.
	err error
}

// New returns a Relister with an empty record.
func New(cfg Config) *Relister {
	r := &Relister{
		cfg: cfg, synced: make(chan struct{}), stopped: make(chan struct{}), kick: make(chan struct{}, 1),
		pods: map[string]*pod{}, round: round{changed: make(chan struct{})},
		events: events{doubts: map[string]*doubt{}, unreliable: make(chan struct{}, 1)},
	}
	r.restore()
	cfg.Metrics.expose(r)
	return r
}

// Run relists until ctx ends, and returns nil after every inspection has ended.
func (r *Relister) Run(ctx context.Context) error {
	defer close(r.stopped)
	ctx = cri.Quiet(ctx)
	runtime, err := r.cfg.Runtime(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	r.open(ctx, runtime)
	defer r.close()
	r.turn()

	ticker := r.cfg.Clock.NewTicker(Period)
	defer ticker.Stop()
	for {
		r.relist(ctx)
		for due := false; !due; {
			select {
			case <-ctx.Done():
				return nil
			case <-r.kick:
				due = true
			case <-ticker.C():
				if due = r.tick(); !due {
					r.retry()
				}
			}
			r.turn()
		}
	}
}

// turn records that the loop of Run turns.
func (r *Relister) turn() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turned = r.cfg.Clock.Now()
}

// Stands returns why the loop of Run stands still; nil if it turns, or waits for the runtime to be reachable. It blocks
// while the record is locked.
func (r *Relister) Stands() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.turned.IsZero() {
		return nil
	}
	// One turn is at most a list and the wait for inspections.
	limit := r.callTimeout() + watchdog.Limit
	if age := r.cfg.Clock.Since(r.turned); age > limit {
		return fmt.Errorf("the loop of relists has not turned for %v", age.Round(time.Second))
	}
	return nil
}

// open permits inspections to start; some may have been requested before.
func (r *Relister) open(ctx context.Context, runtime internalapi.RuntimeService) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ctx, r.runtime = ctx, runtime
	r.pump()
}

// close prevents further inspections, and waits for the running ones.
func (r *Relister) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.flights.Wait()
}

// Request waits until a full relist has finished that began after newerThan in boot time, and returns its end; 0 is
// now. It requests one unless one has begun since. It fails with ErrFuture, ErrStopped, or the error of ctx.
func (r *Relister) Request(ctx context.Context, newerThan time.Duration) (time.Time, error) {
	after, err := r.tooOld(newerThan)
	if err != nil {
		return time.Time{}, err
	}
	for {
		r.mu.Lock()
		round := r.round
		r.mu.Unlock()
		if round.finished > after {
			return round.finishedAt, nil
		}
		select {
		case <-round.changed:
		case <-r.stopped:
			return time.Time{}, ErrStopped
		case <-ctx.Done():
			return time.Time{}, errors.Join(ctx.Err(), round.err)
		}
	}
}

// tooOld returns the number of the last relist that did not begin after newerThan, and requests the next one if there
// is none yet.
func (r *Relister) tooOld(newerThan time.Duration) (number uint64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case newerThan > r.cfg.BootTime():
		return 0, ErrFuture
	case newerThan > 0 && r.round.beganBoot > newerThan:
		return r.round.finished - 1, nil
	case newerThan > 0 && r.round.runsSince > newerThan:
		return r.round.begun - 1, nil // after a failure it is repeated soon
	}
	r.wake()
	return r.round.begun, nil
}

// Synced is closed when the first relist has finished. From then on, an unrecorded pod is not in the runtime.
func (r *Relister) Synced() <-chan struct{} { return r.synced }

// Progress is the progress of relisting.
type Progress struct {
	// FinishedAt is the end of the last full relist; zero before the first.
	FinishedAt time.Time
	// Since is the start of the wait for the next one: FinishedAt, or the time at which relists became due every second,
	// whichever is later.
	Since time.Time
	// Evented reports whether events trigger inspections between relists.
	Evented bool
	// Err is the error of the last relist; nil if it succeeded.
	Err error
}

// Progress returns the progress of relisting.
func (r *Relister) Progress() Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	since := r.round.finishedAt
	if r.events.hastened.After(since) {
		since = r.events.hastened
	}
	return Progress{FinishedAt: r.round.finishedAt, Since: since, Evented: r.events.Relied(), Err: r.round.err}
}

// wake requests a full relist that begins after now. The caller holds mu, so that a relist knows which requests it
// covers.
func (r *Relister) wake() {
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// retry repeats failed inspections.
func (r *Relister) retry() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid, p := range r.pods {
		if p.failure != "" && p.running == nil {
			r.request(uid, false)
		}
	}
}

// relist lists everything, requests inspections of the pods that differ from the record, and waits a while for them.
func (r *Relister) relist(ctx context.Context) {
	began, boot := r.cfg.Clock.Now(), r.cfg.BootTime()
	listed := r.beginRound(began, boot)
	all, err := r.listAll(ctx)
	var changed []*flight
	if err == nil && ctx.Err() == nil {
		changed = r.inspectChanged(all)
	}
	close(listed)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		r.failRound(err)
		r.cfg.Metrics.relisted(r.cfg.Clock.Since(began), err)
		return
	}
	r.await(ctx, changed)
	if ctx.Err() != nil {
		return
	}
	r.adopt(all)
	r.finishRound(began, boot)
	r.cfg.Metrics.relisted(r.cfg.Clock.Since(began), nil)
}

// beginRound counts a relist, which covers all requests so far. The caller closes listed, see round.
func (r *Relister) beginRound(now time.Time, boot time.Duration) (listed chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if last := r.round.beganAt; !last.IsZero() {
		r.cfg.Metrics.relistInterval.Observe(now.Sub(last).Seconds())
	}
	r.round.begun++
	r.round.runsSince, r.round.listed = boot, make(chan struct{})
	r.suspect = false
	select {
	case <-r.kick:
	default:
	}
	return r.round.listed
}

func (r *Relister) failRound(err error) {
	r.mu.Lock()
	known := r.round.err != nil && r.round.err.Error() == err.Error()
	r.round.err, r.round.runsSince = err, 0
	r.mu.Unlock()
	if !known {
		r.cfg.Logger.Warn("a relist failed, trying again every second", telemetry.KeyError, err)
	}
}

func (r *Relister) finishRound(began time.Time, boot time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.round.err != nil {
		r.cfg.Logger.Info("relisting works again")
	}
	first := r.round.finished == 0
	r.round.finished, r.round.err, r.round.runsSince = r.round.begun, nil, 0
	r.round.beganAt, r.round.beganBoot, r.round.finishedAt = began, boot, r.cfg.Clock.Now()
	r.cfg.Metrics.seen(began)
	close(r.round.changed)
	r.round.changed = make(chan struct{})
	if first {
		for _, p := range r.pods {
			if p.unseen = !p.record.Inspected(); p.unseen {
				r.unseen++
			}
		}
		r.cfg.Events.Doubt(r.unseen > 0)
		r.round.syncedBoot = r.cfg.BootTime()
		close(r.synced)
		r.cfg.Journal.Complete()
		r.cfg.Logger.Info("the first relist has finished", "pods", len(r.pods))
	}
}

// inspectChanged requests an inspection of each pod that differs from the record, and returns those to wait for, except
// those behind a hanging one. A pod that is as the previous process has stored it needs no inspection.
func (r *Relister) inspectChanged(all map[string]*items) []*flight {
	r.mu.Lock()
	defer r.mu.Unlock()
	var wait []*flight
	look := func(uid string, on *pod) {
		f := r.request(uid, false)
		if on == nil || on.running == nil || !on.running.slow {
			wait = append(wait, f)
		}
	}
	for uid, listed := range all {
		p, listing := r.pods[uid], listed.listing()
		if p != nil && p.record.Restored() && p.running == nil && p.next == nil {
			if whole := p.record.Confirm(listing, listed.status(uid)); whole != nil {
				r.commit(uid, p, whole)
			}
		}
		if p == nil || p.failure != "" || !p.record.Matches(listing) {
			look(uid, p)
		} else {
			p.matched = momentOf(listed.began, listed.at)
		}
	}
	for uid, p := range r.pods {
		if _, found := all[uid]; !found && (p.record.Status != nil || p.failure != "" || p.record.Restored()) {
			look(uid, p)
		}
	}
	return wait
}

// await waits for inspections, but not longer than settle.
func (r *Relister) await(ctx context.Context, flights []*flight) {
	limit := settle
	select {
	case <-r.synced:
	default:
		limit = firstSettle
	}
	timeout := r.cfg.Clock.NewTimer(limit)
	defer timeout.Stop()
	for _, f := range flights {
		select {
		case <-f.done:
		case <-timeout.C():
			return
		case <-ctx.Done():
			return
		}
	}
}

// adopt records pods from their lists until their first inspection succeeds, so that they do not count as removed.
func (r *Relister) adopt(all map[string]*items) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid, listed := range all {
		p := r.pods[uid]
		if p == nil || p.record.Status != nil {
			continue
		}
		r.fail(
			uid,
			p,
			listed.status(uid),
			cmp.Or(p.failure, "not inspected yet: the runtime takes its time to answer for this pod"),
			listed.at.AsTime(),
		)
	}
}

func (r *Relister) callTimeout() time.Duration { return min(r.cfg.Timeout, maxCallTimeout) }
