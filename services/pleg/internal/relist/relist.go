// Package relist observes the runtime: it lists everything, inspects the pods whose list state has changed, keeps the
// record and publishes what has happened. It is the only writer of the record, and the only publisher of events.
// Package record decides what has happened, package runtimeevents says which pods are worth a look before the next
// relist, package journal keeps what was told over a restart, and package server answers from here.
//
//	tick, Request ──► list all ──► pods that differ ─┐
//	Hint ──────────────────────────────────────────┼──► one inspection at a time per pod ──► record ──► events
//	Status (newer than the record) ────────────────┘
//
// Inspections of different pods run side by side; a runtime call that hangs for one pod delays that pod and nothing
// else.
package relist

import (
	"cmp"
	"context"
	"errors"
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
	"github.com/quartet-node/quartet/services/pleg/internal/journal"
)

const (
	// Period separates full relists when nothing tells of changes, and tries of what has failed.
	Period = time.Second
	// maxCallTimeout bounds a list, and all calls of one inspection: they read, and a runtime that takes longer is not
	// well.
	maxCallTimeout = 30 * time.Second
	// parallel inspections, in each of the two lanes, keep a runtime busy without crowding out those who change things.
	parallel = 4
	// slow is when an inspection does not count as one of the parallel ones any more, so that some that hang do not hold
	// up the others.
	slow = time.Second
	// overdue is when it is told that a pod's state is not known, since its inspection has run so long. A runtime that is
	// only busy, since a hundred pods start at once, answers before.
	overdue = 5 * time.Second
	// settle is how long a relist waits for the inspections that it has asked for; firstSettle for the first one, from
	// whose end on followers take what is missing for gone.
	settle      = 2 * time.Second
	firstSettle = 10 * time.Second
)

var (
	// ErrNotSynced says that nothing is known yet: the first relist has not finished.
	ErrNotSynced = errors.New("the first relist has not finished: the runtime has not answered yet")
	// ErrFuture says that an observation is asked for that is newer than now.
	ErrFuture = errors.New("newer_than_boottime_ns is in the future: take it from this machine's CLOCK_BOOTTIME")
	// ErrStopped says that this process stops.
	ErrStopped = errors.New("pleg is stopping")
)

// Config is what a Relister works with.
type Config struct {
	// Runtime returns the runtime service, waiting until there is one.
	Runtime func(context.Context) (internalapi.RuntimeService, error)
	// Events gets what happens. It continues what Told was told of.
	Events *stream.Edge[*lifecyclev1.Event]
	// Told keeps what was told over a restart; nothing is kept, and nothing was told before, when nil.
	Told *journal.Book
	// Tracer makes the span of each event.
	Tracer trace.Tracer
	// Timeout is runtimeRequestTimeout; lists and inspections take at most this, and at most 30 s.
	Timeout time.Duration
	// Clock times the relists.
	Clock clock.WithTicker
	// BootTime is the time since the boot, which observations are stamped with: boottime.Now. Required.
	BootTime func() time.Duration
	// Logger gets what an operator should know.
	Logger *slog.Logger
	// Metrics counts; those of one Relister alone.
	Metrics *Metrics
}

// Relister holds the record. Its methods may be called from any goroutine, before and while Run runs.
type Relister struct {
	cfg    Config
	synced chan struct{}
	// stopped is closed when Run returns.
	stopped chan struct{}
	// kick has room for one: a relist looks at everything.
	kick    chan struct{}
	flights sync.WaitGroup

	mu      sync.Mutex
	ctx     context.Context //nolint:containedctx // the life of Run, which inspections share
	runtime internalapi.RuntimeService
	pods    map[string]*pod
	// unseen is how many of them are unseen.
	unseen int
	lanes  lanes
	closed bool
	events events
	// suspect is set when something has happened to a pod that nobody can name.
	suspect bool
	// remembers is true when it is known what was told before this process.
	remembers bool
	round     round
}

// round is where the full relists are.
type round struct {
	// begun and finished count relists; a relist has the number that begun had after it began.
	begun, finished uint64
	// beganAt is when the last one that finished began, beganBoot the same by the boot clock, finishedAt when it finished.
	beganAt, finishedAt time.Time
	beganBoot           time.Duration
	// changed is closed, and made anew, when one has finished.
	changed chan struct{}
	// err is why the last one failed.
	err error
}

// New returns a Relister that knows nothing yet.
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

// Run relists until ctx ends, and returns nil when every inspection has ended.
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
		}
	}
}

// open lets inspections begin; some may have been asked for before.
func (r *Relister) open(ctx context.Context, runtime internalapi.RuntimeService) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ctx, r.runtime = ctx, runtime
	r.pump()
}

// close lets no more inspections begin, and waits for those that have.
func (r *Relister) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.flights.Wait()
}

// Request asks for a full relist and waits for one that began after now. It returns when that one finished.
func (r *Relister) Request(ctx context.Context) (time.Time, error) {
	r.mu.Lock()
	after := r.round.begun
	r.wake()
	r.mu.Unlock()
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

// Synced is closed when the first relist has finished: from then on a pod that is not on record is not in the runtime.
func (r *Relister) Synced() <-chan struct{} { return r.synced }

// Progress is how far relisting is.
type Progress struct {
	// FinishedAt is when the last full relist finished; the zero time before the first.
	FinishedAt time.Time
	// Since is from when on the next one is waited for: FinishedAt, or when relists became due every second if that was
	// later.
	Since time.Time
	// Evented tells whether events say what to look at between relists.
	Evented bool
	// Err is why the last relist failed, nil when it did not.
	Err error
}

// Progress returns how far relisting is.
func (r *Relister) Progress() Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	since := r.round.finishedAt
	if r.events.hastened.After(since) {
		since = r.events.hastened
	}
	return Progress{FinishedAt: r.round.finishedAt, Since: since, Evented: r.events.Relied(), Err: r.round.err}
}

// wake asks for a full relist that begins after now. Called with mu held, so that a relist knows which wishes it
// fulfils.
func (r *Relister) wake() {
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// retry inspects the pods again whose last inspection has failed.
func (r *Relister) retry() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid, p := range r.pods {
		if p.failure != "" && p.running == nil {
			r.request(uid, false)
		}
	}
}

// relist lists everything, has the pods inspected that are not as the record says, and waits a while for that.
func (r *Relister) relist(ctx context.Context) {
	began, boot := r.cfg.Clock.Now(), r.cfg.BootTime()
	r.beginRound(began)
	all, err := r.listAll(ctx)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		r.failRound(err)
		r.cfg.Metrics.relisted(r.cfg.Clock.Since(began), err)
		return
	}
	r.await(ctx, r.inspectChanged(all))
	if ctx.Err() != nil {
		return
	}
	r.adopt(all)
	r.finishRound(began, boot)
	r.cfg.Metrics.relisted(r.cfg.Clock.Since(began), nil)
}

// beginRound counts a relist, which fulfils every wish for one that there was.
func (r *Relister) beginRound(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if last := r.round.beganAt; !last.IsZero() {
		r.cfg.Metrics.relistInterval.Observe(now.Sub(last).Seconds())
	}
	r.round.begun++
	r.suspect = false
	select {
	case <-r.kick:
	default:
	}
}

func (r *Relister) failRound(err error) {
	r.mu.Lock()
	known := r.round.err != nil && r.round.err.Error() == err.Error()
	r.round.err = err
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
	r.round.finished, r.round.err = r.round.begun, nil
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
		close(r.synced)
		r.cfg.Told.Complete()
		r.cfg.Logger.Info("the first relist has finished", "pods", len(r.pods))
	}
}

// inspectChanged asks for an inspection of each pod that is not as the record says, and returns those worth waiting
// for: an inspection behind one that hangs is not.
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
		p := r.pods[uid]
		if p == nil || p.failure != "" || !p.record.Matches(listed.listing()) {
			look(uid, p)
		} else {
			p.matched = momentOf(listed.began, listed.at)
		}
	}
	for uid, p := range r.pods {
		if _, there := all[uid]; !there && (p.record.Status != nil || p.failure != "" || p.record.Restored()) {
			look(uid, p)
		}
	}
	return wait
}

// await waits for inspections, and no longer than settle.
func (r *Relister) await(ctx context.Context, flights []*flight) {
	patience := settle
	select {
	case <-r.synced:
	default:
		patience = firstSettle
	}
	timeout := r.cfg.Clock.NewTimer(patience)
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

// adopt puts pods on record by what the lists say of them when their first inspection has not worked yet, so that
// nobody takes them for gone.
func (r *Relister) adopt(all map[string]*items) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid, listed := range all {
		p := r.pods[uid]
		if p == nil || p.record.Status != nil {
			continue
		}
		r.fail(uid, p, listed.status(uid), cmp.Or(p.failure, "not inspected yet: the runtime takes its time to answer for this pod"), listed.at.AsTime())
	}
}

func (r *Relister) callTimeout() time.Duration { return min(r.cfg.Timeout, maxCallTimeout) }
