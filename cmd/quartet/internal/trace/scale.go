package trace

import "time"

const (
	// longGap is the share of all work above which a gap is shortened, and shownGap the share that it then takes of the bars.
	longGap, shownGap = 1.0 / 2, 1.0 / 8
	// leastGap is the shortest gap that is shortened.
	leastGap = 100 * time.Millisecond
)

// scale is what bars are drawn to: a window in which long gaps are shortened, so that the work between them can be told apart.
type scale struct {
	window
	// long are the gaps that are shortened, in their order, and shown is how long each of them is drawn.
	long  []gap
	shown time.Duration
}

// scaleOf shortens the gaps of a window that are long beside the work in it.
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

// position is how far into what is drawn a moment is, from 0 to 1.
func (s scale) position(at time.Time) float64 {
	whole := s.drawn(s.to)
	if whole <= 0 {
		return 0
	}
	return min(max(float64(s.drawn(at))/float64(whole), 0), 1)
}

// drawn is how much of the time up to a moment is drawn.
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
