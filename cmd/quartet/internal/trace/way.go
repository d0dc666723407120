package trace

import (
	"slices"
	"time"

	"github.com/quartet-node/quartet/internal/telemetry"
)

// slack is by how much a child may end after its parent and still count as ended within it: Jaeger has starts and
// durations in whole microseconds, each rounded by itself.
const slack = 10 * time.Microsecond

// slowest finds the step in which a start was longest, and how long it was in it. That is the span with the largest self
// time among those on the way from the first span to Ready.
//
// The self time of a span is its duration less what its children cover, each counted only within the start.
//
// On the way are the span that says Ready and all above it; and of each span on the way, seen from its end backwards, the
// child that ended last, then the one that ended last before that began, and so on: those that the span waited for. So are,
// beside a span that leads to Ready, its siblings that ended before it began, in the same way: the tries before the last.
// A child that ends after its parent was not waited for, as when pleg notices a sandbox while its pod starts on; it is on
// the way only when it is in one of these places. Without Ready, and for each tree of orphans, the last span to end takes
// its place.
//
// The span of a wait is never the slowest step: nothing was done in it.
//
// Returns nil when no span on the way has any time of its own.
func slowest(t *tree, w window) (*node, time.Duration) {
	var found *node
	var most time.Duration
	for _, top := range t.tops() {
		for n := range wayTo(lastOf(top, w), w) {
			if isWait(n.span) {
				continue
			}
			self := selfTime(n, w)
			if self > most || self == most && found != nil && byStart(n, found) < 0 {
				found, most = n, self
			}
		}
	}
	return found, most
}

// lastOf is the span that ends the start as far as one tree goes: Ready when it is there, else the last to end in the
// window, the deepest of those that end together.
func lastOf(top *node, w window) *node {
	last, lastEnd := top, time.Time{}
	(&tree{roots: []*node{top}}).each(func(n *node) {
		_, end := w.clip(n.span)
		switch {
		case last == w.ready:
		case n == w.ready, !end.Before(lastEnd) && !n.start.After(w.to):
			last, lastEnd = n, end
		}
	})
	return last
}

// wayTo is the set of spans on the way to the one that is last.
func wayTo(last *node, w window) map[*node]bool {
	way := make(map[*node]bool)
	var waiting []*node
	for n := last; n != nil; n = n.above {
		waiting = append(waiting, n)
		if n.above != nil {
			waiting = append(waiting, backwards(n.above.children, n.start)...)
		}
	}
	for len(waiting) > 0 {
		n := waiting[len(waiting)-1]
		waiting = waiting[:len(waiting)-1]
		if way[n] {
			continue
		}
		way[n] = true
		_, end := w.clip(n.span)
		waiting = append(waiting, backwards(n.children, end)...)
	}
	return way
}

// backwards are those of some spans that followed one another up to a moment, the last first.
func backwards(spans []*node, until time.Time) []*node {
	spans = slices.Clone(spans)
	slices.SortStableFunc(spans, func(x, y *node) int { return y.end.Compare(x.end) })
	var row []*node
	for _, n := range spans {
		if !n.end.After(until.Add(slack)) {
			row = append(row, n)
			until = n.start
		}
	}
	return row
}

// selfTime is how long a span was at work itself within the window: its duration less what its children cover.
func selfTime(n *node, w window) time.Duration {
	from, to := w.clip(n.span)
	return to.Sub(from) - covered(n.children, window{from: from, to: to})
}

// covered is how much of a window some spans cover together. They are in the order of their starts.
func covered(nodes []*node, w window) (sum time.Duration) {
	at := w.from
	for _, n := range nodes {
		from, to := w.clip(n.span)
		if from.Before(at) {
			from = at
		}
		if to.After(from) {
			sum += to.Sub(from)
			at = to
		}
	}
	return sum
}

// gap is a time within a start in which no span is at work: a back-off, or a turn that is waited for.
type gap struct {
	from, to time.Time
	// reasons say what the pod waited for, each once; empty when no span of a wait says it.
	reasons []string
}

func (g gap) length() time.Duration { return g.to.Sub(g.from) }

// isWait is true for the span of a wait, which is no work.
func isWait(s *span) bool { return s.name == telemetry.SpanWait }

// gapsOf finds the times in which no span of the trace was at work, in their order.
func gapsOf(t *tree, w window) []gap {
	var works, waits []*node
	t.each(func(n *node) {
		if isWait(n.span) {
			waits = append(waits, n)
		} else {
			works = append(works, n)
		}
	})
	slices.SortFunc(works, byStart)
	slices.SortFunc(waits, byStart)
	var gaps []gap
	at := w.from
	idle := func(until time.Time) {
		if until.After(w.to) {
			until = w.to
		}
		if !until.After(at) {
			return
		}
		g := gap{from: at, to: until}
		for _, n := range waits {
			if reason := n.attributes[string(telemetry.AttrWait)]; n.start.Before(g.to) && n.end.After(g.from) && !slices.Contains(g.reasons, reason) {
				g.reasons = append(g.reasons, reason)
			}
		}
		gaps = append(gaps, g)
	}
	for _, n := range works {
		from, to := w.clip(n.span)
		idle(from)
		if to.After(at) {
			at = to
		}
	}
	idle(w.to)
	return gaps
}

// longest is the longest of some gaps; the zero gap when there are none.
func longest(gaps []gap) (found gap) {
	for _, g := range gaps {
		if g.length() > found.length() {
			found = g
		}
	}
	return found
}
