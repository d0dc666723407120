package trace

import (
	"slices"
	"time"

	"github.com/quartet-node/quartet/internal/telemetry"
)

// slack is the tolerance for the end of a child after its parent, because Jaeger rounds starts and durations to
// microseconds.
const slack = 10 * time.Microsecond

// slowest finds the slowest step of a start and its self time: the span with the largest self time among those on the
// path from the first span to Ready.
//
// The self time of a span is its duration minus the time of its children, within the start.
//
// The path contains the Ready span and its ancestors; and for each span on the path, backwards from its end, the child
// that ended last, then the one that ended last before that began, and so on: those that the span waited for. It also
// contains, beside a span that leads to Ready, its siblings that ended before it began, in the same way: the earlier
// attempts. A child that ends after its parent was not waited for, as when pleg notices a sandbox while its pod
// continues to start; it is on the path only in one of these places. Without Ready, and for each tree of orphans, the
// last span to end takes its place.
//
// A wait span is never the slowest step, because nothing was done in it.
//
// It returns nil if no span on the path has self time.
func slowest(t *tree, w window) (*node, time.Duration) {
	var found *node
	var longestSelf time.Duration
	for _, top := range t.tops() {
		for n := range wayTo(lastOf(top, w), w) {
			if isWait(n.span) {
				continue
			}
			self := selfTime(n, w)
			if self > longestSelf || self == longestSelf && found != nil && byStart(n, found) < 0 {
				found, longestSelf = n, self
			}
		}
	}
	return found, longestSelf
}

// lastOf returns the span that ends the start in one tree: Ready, or else the last to end in the window, the deepest of
// those that end together.
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

// wayTo returns the spans on the path to the last one.
func wayTo(last *node, w window) map[*node]bool {
	onPath := make(map[*node]bool)
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
		if onPath[n] {
			continue
		}
		onPath[n] = true
		_, end := w.clip(n.span)
		waiting = append(waiting, backwards(n.children, end)...)
	}
	return onPath
}

// backwards returns the spans that followed one another up to a moment, the last first.
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

// selfTime returns the self time of a span within the window: its duration minus the time of its children.
func selfTime(n *node, w window) time.Duration {
	from, to := w.clip(n.span)
	return to.Sub(from) - covered(n.children, window{from: from, to: to})
}

// covered returns the time of a window that spans cover together. They are sorted by start.
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

// gap is a time within a start without active spans: a back-off, or a wait for a turn.
type gap struct {
	from, to time.Time
	// reasons are the distinct reasons of the pod's waits; empty if no wait span has one.
	reasons []string
}

func (g gap) length() time.Duration { return g.to.Sub(g.from) }

// isWait reports whether a span is a wait.
func isWait(s *span) bool { return s.name == telemetry.SpanWait }

// gapsOf returns the gaps of a trace, in order.
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
			if reason := n.attributes[string(telemetry.AttrWait)]; n.start.Before(g.to) && n.end.After(g.from) &&
				!slices.Contains(g.reasons, reason) {
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

// longest returns the longest gap; zero if there are none.
func longest(gaps []gap) (found gap) {
	for _, g := range gaps {
		if g.length() > found.length() {
			found = g
		}
	}
	return found
}
