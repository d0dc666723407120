// Package streamhealth decides whether the runtime's event stream is reliable, so that full relists of package relist
// can be rare. It is pure: it has no clock and no I/O.
//
// The CRI's stream of events has no bookmarks: a dead stream looks like an idle one, and one that loses events like one
// that does not. The difference shows in each change that an inspection finds: an event has announced it, or not.
//
//	             opened                       a change that no event has announced
//	closed ────────────────► relied on ──────────────────────────────────────────► on probation
//	   ▲  ◄──────────────────    ▲    ◄──────────────────────────────────────────    │
//	   └────────── ended         └─── the probation is over, and events were right ──┘
//
// A stream on probation is still listened to, but full relists are due every second. The probation belongs to the
// runtime, not to one stream: a new stream does not end it.
package streamhealth

import "time"

const (
	// Probation is how long no unannounced change may be found before a runtime's events count as reliable again. Each
	// relapse doubles it, up to MaxProbation, so that a runtime that occasionally loses an event does not alternate
	// between both states.
	Probation = time.Minute
	// MaxProbation is the longest probation. After events were reliable for that long, the next probation is the shortest
	// again.
	MaxProbation = time.Hour
	// Evidence is the number of consecutive announced changes that the end of a probation requires, because an idle stream
	// proves nothing. On a node with fewer changes, MaxProbation without an unannounced one is enough.
	Evidence = 3
)

// Stream is the state of a runtime's event stream. The zero value is closed and was never on probation.
type Stream struct {
	open      bool
	probation time.Duration
	// doubted is the time of the last unannounced change; zero while not on probation.
	doubted time.Time
	// regained is the end of the last probation.
	regained time.Time
	// announced counts the consecutive announced changes since doubted.
	announced int
}

// Open records that the stream is open.
func (s *Stream) Open() { s.open = true }

// Close records that the stream is closed.
func (s *Stream) Close() { s.open = false }

// Relied reports whether events are reliable.
func (s *Stream) Relied() bool { return s.open && s.doubted.IsZero() }

// Announced records a found change that an event has announced.
func (s *Stream) Announced() { s.announced++ }

// Unannounced records an unannounced change found at a time. It returns the probation.
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

// Review ends the probation if it is over at a time, and reports whether it has.
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
