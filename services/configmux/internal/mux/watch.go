package mux

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
)

// Selection selects objects; an empty field selects all.
type Selection struct {
	Kind            apiobject.Kind
	Namespace, Name string
}

// all reports whether everything is selected.
func (s Selection) all() bool { return s == Selection{} }

// wants reports whether a value is selected. The state of a source always is.
func (s Selection) wants(e ObjectEntry) bool {
	o := e.Object
	return o == nil ||
		(s.Kind == "" || string(s.Kind) == o.GetKind()) && (s.Namespace == "" || s.Namespace == o.GetNamespace()) &&
			(s.Name == "" || s.Name == o.GetName())
}

// mark is the prefix of the selection's tokens. A token of another selection is invalid.
func (s Selection) mark() []byte {
	if s.all() {
		return nil
	}
	return fmt.Appendf(nil, "%s/%s/%s:", s.Kind, s.Namespace, s.Name)
}

// ObjectStream returns the stream that WatchObjects serves for a selection.
func (m *Mux) ObjectStream(s Selection) stream.Source[ObjectEntry] {
	return Selected(m.objects, m.cfg.Clock, s)
}

// Selected returns a stream without the objects outside of a selection. It preserves the stream contract.
func Selected(all stream.Source[ObjectEntry], clk clock.PassiveClock, s Selection) stream.Source[ObjectEntry] {
	return selected{level: all, clock: clk, selection: s}
}

// selected is a stream without the objects outside of a selection.
type selected struct {
	level     stream.Source[ObjectEntry]
	clock     clock.PassiveClock
	selection Selection
}

// Subscribe implements stream.Source.
func (s selected) Subscribe(ctx context.Context, token []byte) (stream.Subscription[ObjectEntry], error) {
	mark := s.selection.mark()
	if rest, ours := bytes.CutPrefix(token, mark); ours {
		token = rest
	} else if len(token) > 0 {
		token = []byte(notOurs)
	}
	sub, err := s.level.Subscribe(ctx, token)
	if err != nil {
		return nil, err
	}
	return &selecting{Subscription: sub, selected: s, mark: mark, sentAt: s.clock.Now()}, nil
}

// notOurs is an invalid token.
const notOurs = "of another selection"

// selecting is one subscription.
type selecting struct {
	stream.Subscription[ObjectEntry]
	selected

	mark []byte
	// sentAt is the time of the last message to the subscriber.
	sentAt time.Time
}

// Next implements stream.Subscription. If no change is selected for a while, it sends a bookmark with the present
// position.
func (s *selecting) Next(ctx context.Context) (stream.Message[ObjectEntry], error) {
	for {
		m, err := s.Subscription.Next(ctx)
		if err != nil {
			return m, err
		}
		if len(m.Token) > 0 {
			m.Token = slices.Concat(s.mark, m.Token)
		}
		now := s.clock.Now()
		switch {
		case s.selection.wants(m.Value):
		case m.Kind == stream.KindDelta && now.Sub(s.sentAt) >= stream.BookmarkInterval:
			m = stream.Message[ObjectEntry]{Kind: stream.KindBookmark, Token: m.Token}
		default:
			continue
		}
		s.sentAt = now
		return m, nil
	}
}
