// Package apievents sends the events of a service to an API server: those that package events has made of what was told.
//
// An API server that is away holds up nobody. What it has not been told waits, each event once however often it repeats, so that
// nothing grows but counts; of more events than there is room for, those that happened longest ago are dropped, and so are those
// that the API server would have forgotten by now. One request is made at a time, so that events arrive in the order in which they
// last happened.
package apievents

import (
	"cmp"
	"container/list"
	"context"
	"log/slog"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// maxWaiting is how many events wait at most, as in client-go's broadcaster.
	maxWaiting = 1000
	// maxAge is how long ago an event may have happened to be sent: the API server's default of how long it keeps one (--event-ttl).
	maxAge = time.Hour
	// maxTries is how often an event is tried that the API server answers with an error of its own. While it is away, or says that it has
	// too much to do, that is no try.
	maxTries = 5
	// firstDelay is what is waited after a request that failed, doubled each time up to lastDelay; by chance up to jitter longer, so
	// that the nodes of a cluster do not all come back at once.
	firstDelay = time.Second
	lastDelay  = 30 * time.Second
	jitter     = 0.5
)

// Config is what a Sender needs.
type Config struct {
	// API takes the events: [APIServer]. Required.
	API   API
	Clock clock.WithTicker
	// Logger is told of what is refused and that events wait; slog's default when nil.
	Logger *slog.Logger
	// Metrics counts. Required.
	Metrics *Metrics
}

// Sender sends events, in Run.
type Sender struct {
	cfg Config
	// more tells that there is an event; it holds one, since what counts is that there is something.
	more chan struct{}

	mu sync.Mutex
	// waiting has what is not sent, what happened first in front; byName finds it.
	waiting *list.List
	byName  map[string]*list.Element
}

// unsent is an event that the API server has not been told.
type unsent struct {
	event *v1.Event
	tries int
}

// New makes a Sender. It sends nothing before Run.
func New(cfg Config) *Sender {
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	s := &Sender{cfg: cfg, more: make(chan struct{}, 1), waiting: list.New(), byName: map[string]*list.Element{}}
	cfg.Metrics.of(s)
	return s
}

// Send has an event sent as it is now; what waits of the same name is sent no more. It does not wait, and the event must not be changed.
func (s *Sender) Send(event *v1.Event) {
	s.mu.Lock()
	if e := s.byName[event.Name]; e != nil {
		s.waiting.Remove(e)
	}
	s.byName[event.Name] = s.waiting.PushBack(unsent{event: event})
	var dropped bool
	if s.waiting.Len() > maxWaiting {
		dropped = true
		s.remove(s.waiting.Front())
	}
	s.mu.Unlock()
	if dropped {
		s.cfg.Metrics.drop(dropFull)
	}
	select {
	case s.more <- struct{}{}:
	default:
	}
}

// Waiting is how many events the API server has not been told.
func (s *Sender) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting.Len()
}

// Run sends until ctx ends, and returns its error then.
func (s *Sender) Run(ctx context.Context) error {
	failed := 0
	for {
		next, ok := s.take()
		if !ok {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-s.more:
			}
			continue
		}
		err := s.put(ctx, next.event)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		after, again := s.judge(ctx, &next, err, failed)
		if !again {
			failed = 0
			continue
		}
		failed++
		s.giveBack(next)
		if err := s.wait(ctx, after); err != nil {
			return err
		}
	}
}

// judge says whether an event is to be sent again, and after how long. Failed is how many requests in a row have failed before.
func (s *Sender) judge(ctx context.Context, sent *unsent, err error, failed int) (after time.Duration, again bool) {
	if err == nil {
		s.cfg.Metrics.sent.Inc()
		if failed > 0 {
			s.cfg.Logger.InfoContext(ctx, "events reach the API server again")
		}
		return 0, false
	}
	about := []any{
		telemetry.KeyReason, sent.event.Reason, "object", sent.event.InvolvedObject.Kind + " " + sent.event.InvolvedObject.Namespace + "/" + sent.event.InvolvedObject.Name,
		telemetry.KeyError, err,
	}
	kind := kindOf(err)
	if kind == failsByItself {
		sent.tries++
	}
	if kind == refused || sent.tries >= maxTries {
		s.cfg.Metrics.drop(dropRefused)
		s.cfg.Logger.WarnContext(ctx, "the API server refuses an event; it is not sent again", about...)
		return 0, false
	}
	if failed == 0 {
		s.cfg.Logger.WarnContext(ctx, "an event cannot be sent to the API server; events wait until it can, and nothing more is said until then", about...)
	}
	delay := min(firstDelay<<min(failed, 10), lastDelay)
	return max(wait.Jitter(delay, jitter), min(asked(err), lastDelay)), true
}

// take returns what is to be sent next. What is too old is dropped.
func (s *Sender) take() (unsent, bool) {
	oldest := s.cfg.Clock.Now().Add(-maxAge)
	s.mu.Lock()
	defer s.mu.Unlock()
	for e := s.waiting.Front(); e != nil; e = s.waiting.Front() {
		next := s.remove(e)
		if !next.event.LastTimestamp.Time.Before(oldest) {
			return next, true
		}
		s.cfg.Metrics.drop(dropOld)
	}
	return unsent{}, false
}

// giveBack has an event sent again, before all others: unless it has happened again meanwhile.
func (s *Sender) giveBack(u unsent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byName[u.event.Name] != nil {
		return
	}
	if s.waiting.Len() >= maxWaiting {
		s.cfg.Metrics.drop(dropFull)
		return
	}
	s.byName[u.event.Name] = s.waiting.PushFront(u)
}

// remove takes an event out. The sender is locked.
func (s *Sender) remove(e *list.Element) unsent {
	u := s.waiting.Remove(e).(unsent) //nolint:forcetypeassert // nothing else is put in
	delete(s.byName, u.event.Name)
	return u
}

func (s *Sender) wait(ctx context.Context, after time.Duration) error {
	timer := s.cfg.Clock.NewTimer(after)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C():
		return nil
	}
}
