// Package apievents sends the events of a service, which package events creates, to an API server.
//
// An unreachable API server blocks no caller. Unsent events wait in a bounded queue, with one entry for each event
// regardless of how often it repeats. If the queue is full, the events that happened longest ago are dropped. Events
// older than the API server's retention time are dropped too. Requests are sent one at a time, so that events arrive in
// the order in which they last happened.
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
	// maxWaiting is the maximum number of unsent events, as in client-go's broadcaster.
	maxWaiting = 1000
	// maxAge is the maximum age of an unsent event. It is the API server's default retention time (--event-ttl).
	maxAge = time.Hour
	// maxTries is the maximum number of attempts for an event that the API server answers with an internal error. Attempts
	// while it is unavailable or overloaded do not count.
	maxTries = 5
	// firstDelay is the delay after a failed request. It doubles up to lastDelay, and is extended by a random part of up
	// to jitter, so that the nodes of a cluster do not retry at the same time.
	firstDelay = time.Second
	lastDelay  = 30 * time.Second
	jitter     = 0.5
)

// Config holds the parameters of a Sender.
type Config struct {
	// API takes the events: [APIServer]. Required.
	API   API
	Clock clock.WithTicker
	// Logger logs refused events and delays; slog's default if nil.
	Logger *slog.Logger
	// Metrics counts the events. Required.
	Metrics *Metrics
}

// Sender sends events. Run does the work.
type Sender struct {
	cfg Config
	// more signals that there is an event to send. Its capacity is one, because one signal is enough for any number of
	// events.
	more chan struct{}

	mu sync.Mutex
	// waiting lists the unsent events, the one that happened first in front; byName indexes it.
	waiting *list.List
	byName  map[string]*list.Element
}

// unsent is an event that has not been sent.
type unsent struct {
	event *v1.Event
	tries int
}

// New returns a Sender. It sends nothing before Run.
func New(cfg Config) *Sender {
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	s := &Sender{cfg: cfg, more: make(chan struct{}, 1), waiting: list.New(), byName: map[string]*list.Element{}}
	cfg.Metrics.watchQueue(s)
	return s
}

// Send queues an event in its present form and replaces a queued event of the same name. It does not block. The caller
// must not change the event afterwards.
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

// Waiting returns the number of unsent events.
func (s *Sender) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting.Len()
}

// Run sends events until ctx ends, and returns its error.
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

// judge decides whether to send an event again, and after which delay. failed is the number of consecutive failed
// requests before this one.
func (s *Sender) judge(ctx context.Context, sent *unsent, err error, failed int) (after time.Duration, again bool) {
	if err == nil {
		s.cfg.Metrics.sent.Inc()
		if failed > 0 {
			s.cfg.Logger.InfoContext(ctx, "the API server accepts events again")
		}
		return 0, false
	}
	about := []any{
		telemetry.KeyReason,
		sent.event.Reason,
		"object",
		sent.event.InvolvedObject.Kind + " " + sent.event.InvolvedObject.Namespace + "/" + sent.event.InvolvedObject.Name,
		telemetry.KeyError,
		err,
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
		s.cfg.Logger.WarnContext(
			ctx,
			"cannot send an event to the API server; events wait until it accepts them, and further failures are not logged",
			about...)
	}
	delay := min(firstDelay<<min(failed, 10), lastDelay)
	return max(wait.Jitter(delay, jitter), min(retryAfter(err), lastDelay)), true
}

// take returns the next event to send, and drops events that are too old.
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

// giveBack queues an event at the front again, unless it has repeated in the meantime.
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

// remove removes an event. The caller holds the lock.
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
