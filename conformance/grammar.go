package conformance

import (
	"fmt"

	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
)

// grammar checks the order of the frames of one subscription, and which fields each has.
type grammar struct {
	// given is true if the subscription has sent a token.
	given bool

	opened, synced bool
	inSnapshot     map[string]bool
}

// check checks the next message.
func (g *grammar) check(m message) error {
	if err := g.order(m); err != nil {
		return err
	}
	if (m.GetKind() == streamv1.Kind_KIND_OPENED) != (m.GetOpening() != nil) {
		return fmt.Errorf("%v: only OPENED has the field opening, and always", m)
	}
	keyed := m.GetKind() == streamv1.Kind_KIND_SNAPSHOT || m.GetKind() == streamv1.Kind_KIND_DELTA
	if keyed != (m.GetKey() != "") {
		return fmt.Errorf("%v: SNAPSHOT and DELTA have a key, and no other frame", m)
	}
	if m.GetRemoved() && m.GetKind() != streamv1.Kind_KIND_DELTA {
		return fmt.Errorf("%v: only a DELTA removes its key", m)
	}
	return nil
}

// order checks OPENED (SNAPSHOT* SYNCED)? (DELTA | BOOKMARK)*.
func (g *grammar) order(m message) error {
	kind := m.GetKind()
	if g.opened == (kind == streamv1.Kind_KIND_OPENED) {
		return fmt.Errorf("%v: OPENED is the first frame of a subscription, and only the first", m)
	}
	switch kind {
	case streamv1.Kind_KIND_OPENED:
		g.opened = true
		g.synced = m.GetOpening().GetStart() == streamv1.Start_START_RESUMED
		g.inSnapshot = map[string]bool{}
		return g.start(m)
	case streamv1.Kind_KIND_SNAPSHOT:
		if g.synced {
			return fmt.Errorf("%v: it is not in a snapshot", m)
		}
		if g.inSnapshot[m.GetKey()] {
			return fmt.Errorf("%v: the snapshot has this key twice", m)
		}
		g.inSnapshot[m.GetKey()] = true
	case streamv1.Kind_KIND_SYNCED:
		if g.synced {
			return fmt.Errorf("%v: it ends no snapshot", m)
		}
		g.synced = true
	case streamv1.Kind_KIND_DELTA, streamv1.Kind_KIND_BOOKMARK:
		if !g.synced {
			return fmt.Errorf("%v: it is inside the snapshot", m)
		}
	case streamv1.Kind_KIND_UNSPECIFIED:
		return fmt.Errorf("a frame without a kind")
	}
	return nil
}

func (g *grammar) start(m message) error {
	switch start := m.GetOpening().GetStart(); {
	case start == streamv1.Start_START_UNSPECIFIED:
		return fmt.Errorf("%v: it does not say how the subscription begins", m)
	case g.given == (start == streamv1.Start_START_SNAPSHOT):
		return fmt.Errorf("%v: a token was given: %t", m, g.given)
	}
	return nil
}

// tokens checks which frames have a token.
func tokens(m message, resumed bool) error {
	want := resumed
	switch m.GetKind() {
	case streamv1.Kind_KIND_DELTA, streamv1.Kind_KIND_SYNCED, streamv1.Kind_KIND_BOOKMARK:
		want = true
	case streamv1.Kind_KIND_SNAPSHOT, streamv1.Kind_KIND_UNSPECIFIED:
		want = false
	case streamv1.Kind_KIND_OPENED:
	}
	if want != (len(m.GetResumeToken()) > 0) {
		return fmt.Errorf("%v: it has a token: %t, want %t", m, !want, want)
	}
	return nil
}
