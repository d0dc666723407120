// Package streamhealth decides whether the runtime's event stream can be relied on to tell of changes, so that package
// relist may list everything rarely. It is pure: it reads no clock and asks nobody.
//
// The CRI gives a stream of events without bookmarks: one that has died without an end looks like one on which nothing
// happens, and one that loses events like one that loses none. What tells them apart is each change that an inspection
// finds: an event has announced it, or not.
//
//	             opened                       a change that no event has announced
//	closed ────────────────► relied on ──────────────────────────────────────────► on probation
//	   ▲  ◄──────────────────    ▲    ◄──────────────────────────────────────────    │
//	   └────────── ended         └─── the probation is over, and events were right ──┘
//
// A stream on probation is listened to as before; only the full relists come every second again. The probation belongs
// to the runtime, not to one stream: a new stream does not end it.
package streamhealth

import "time"

const (
	// Probation is how long no change may be found that was not announced before a runtime's events are relied on again.
	// Each relapse doubles it, up to MaxProbation, so that a runtime that loses an event now and then is not believed and
	// doubted in turn.
	Probation = time.Minute
	// MaxProbation is the longest probation. Events that were relied on for so long begin with the shortest again.
	MaxProbation = time.Hour
	// Evidence is how many changes in a row must have been announced by then: a stream that tells nothing since nothing
	// happens is no better known after an hour than before. On a node on which fewer happen, MaxProbation without one that
	// was not announced will do.
	Evidence = 3
)

// Stream is what is known of a runtime's event stream. The zero value is closed and has never been doubted.
type Stream struct {
	open      bool
	probation time.Duration
	// doubted is when the last change was found that was not announced; zero while not on probation.
	doubted time.Time
	// regained is when the last probation was over.
	regained time.Time
	// announced counts the changes in a row that were announced since doubted.
	announced int
}

// Open says that a stream is there.
func (s *Stream) Open() { s.open = true }

// Close says that it is there no more.
func (s *Stream) Close() { s.open = false }

// Relied tells whether events can be relied on to tell of changes.
func (s *Stream) Relied() bool { return s.open && s.doubted.IsZero() }

// Announced says that a change was found that an event has announced.
func (s *Stream) Announced() { s.announced++ }

// Unannounced says that a change was found at a time which no event has announced. It returns the probation.
func (s *Stream) Unannounced(now time.Time) time.Duration {
	switch {
	case !s.doubted.IsZero():
	case s.probation == 0 || now.Sub(s.regained) >= MaxProbation:
		s.probation = Probation
	default:
		s.probation = min(2*s.probation, MaxProbation)
	}
	s.doubted, s.announced = now, 0
	return s.probation
}

// Review ends the probation when it is over at a time, and tells whether it has.
func (s *Stream) Review(now time.Time) bool {
	if s.doubted.IsZero() {
		return false
	}
	quiet := now.Sub(s.doubted)
	if quiet < s.probation || (s.announced < Evidence && quiet < MaxProbation) {
		return false
	}
	s.doubted, s.regained = time.Time{}, now
	return true
}
