package trace

import "time"

const (
	// longGap is the share of all work above which a gap is shortened, and shownGap its share of the bars then.
	longGap, shownGap = 1.0 / 2, 1.0 / 8
	// leastGap is the minimum length of a shortened gap.
	leastGap = 100 * time.Millisecond
)

// scale is the range of the bars: a window with shortened gaps, so that the work between them is visible.
type scale struct {
	window
	// long are the shortened gaps in order, and shown their drawn lengths.
	long  []gap
	shown time.Duration
}

// scaleOf shortens the long gaps of a window.
func scaleOf(w window, gaps []gap) scale {
	work := w.length()
	for _, g := range gaps {
		work -= g.length()
	}
	s := scale{window: w, shown: time.Duration(float64(work) * shownGap)}
	for _, g := range gaps {
		if g.length() > leastGap && float64(g.length()) > float64(work)*longGap {
			s.long = append(s.long, g)
		}
	}
	return s
}

// position returns the position of a moment, from 0 to 1.
func (s scale) position(at time.Time) float64 {
	whole := s.drawn(s.to)
	if whole <= 0 {
		return 0
	}
	return min(max(float64(s.drawn(at))/float64(whole), 0), 1)
}

// drawn returns the drawn length up to a moment.
func (s scale) drawn(at time.Time) time.Duration {
	length := at.Sub(s.from)
	for _, g := range s.long {
		if !at.After(g.from) {
			break
		}
		inside := min(at.Sub(g.from), g.length())
		length -= inside - time.Duration(float64(s.shown)*float64(inside)/float64(g.length()))
	}
	return length
}
