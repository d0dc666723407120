// Package streamtest is the conformance suite of the stream contract: it connects a publisher and subscribers through a
// Transport (in process, or a gRPC server on a unix socket) and checks the five guarantees by name.
package streamtest

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/quartet-node/quartet/internal/stream"
)

// The guarantees. A violation wraps the broken one.
var (
	// ErrOrdered: changes of one key arrive in the order in which they happened.
	ErrOrdered = errors.New("not Ordered")
	// ErrUnique: the same change never arrives twice on one subscription, including its resumptions.
	ErrUnique = errors.New("not Unique")
	// ErrReliable: there is no unannounced gap; a subscriber that has read everything knows the state.
	ErrReliable = errors.New("not Reliable")
	// ErrResumable: a token yields exactly the missed changes, or a fresh snapshot that is announced as such.
	ErrResumable = errors.New("not Resumable")
	// ErrBounded: a slow subscriber costs memory in proportion to the number of keys, and delays no other subscriber.
	ErrBounded = errors.New("not Bounded")
)

// version returns the published value of the n-th write of a key: "key#n".
func version(key string, n int) string { return key + "#" + strconv.Itoa(n) }

func number(value string) (int, error) {
	_, text, _ := strings.Cut(value, "#")
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("%w: value %q is not one that was written", ErrReliable, value)
	}
	return n, nil
}

// Reader holds what one subscriber has seen over all its subscriptions, and checks every message.
type Reader struct {
	// Edges is true for a stream of events, in which no number of a key may be missing.
	Edges bool
	// State is the last value of each key.
	State map[string]string
	// Token is the last received token.
	Token []byte
	// Starts lists the kinds of start so far.
	Starts []stream.Start

	fresh map[string]string
	seen  map[string]int
}

// NewReader returns a reader without state.
func NewReader(edges bool) *Reader {
	return &Reader{Edges: edges, State: map[string]string{}, seen: map[string]int{}}
}

// Check checks the next message of a subscription that was opened with the reader's Token.
func (r *Reader) Check(m stream.Message[string]) error {
	if len(m.Token) > 0 {
		r.Token = m.Token
	}
	switch m.Kind {
	case stream.KindOpened:
		return r.opened(m)
	case stream.KindSnapshot:
		return r.snapshot(m)
	case stream.KindSynced:
		if r.fresh == nil {
			return fmt.Errorf("%w: a marker without a snapshot", ErrResumable)
		}
		r.State, r.fresh = r.fresh, nil
		return nil
	case stream.KindDelta:
		return r.delta(m)
	case stream.KindBookmark:
		return nil
	case stream.KindUnknown:
	}
	return fmt.Errorf("%w: message of unknown kind %d", ErrReliable, m.Kind)
}

func (r *Reader) opened(m stream.Message[string]) error {
	r.Starts = append(r.Starts, m.Start)
	r.fresh = nil
	if m.Start == stream.StartResumed {
		if r.Token == nil {
			return fmt.Errorf("%w: resumed without a token", ErrResumable)
		}
		return nil
	}
	r.fresh, r.seen = map[string]string{}, map[string]int{}
	return nil
}

func (r *Reader) snapshot(m stream.Message[string]) error {
	if r.fresh == nil {
		return fmt.Errorf("%w: %q of a snapshot on a resumed subscription", ErrResumable, m.Key)
	}
	if _, twice := r.fresh[m.Key]; twice {
		return fmt.Errorf("%w: key %q twice in one snapshot", ErrUnique, m.Key)
	}
	n, err := number(m.Value)
	if err != nil {
		return err
	}
	r.fresh[m.Key], r.seen[m.Key] = m.Value, n
	return nil
}

func (r *Reader) delta(m stream.Message[string]) error {
	if r.fresh != nil {
		return fmt.Errorf("%w: a change of %q before the snapshot was complete", ErrReliable, m.Key)
	}
	n, err := number(m.Value)
	if err != nil {
		return err
	}
	last, known := r.seen[m.Key]
	switch {
	case r.Edges && known && n > last+1:
		return fmt.Errorf("%w: key %q went from %d to %d", ErrReliable, m.Key, last, n)
	case known && n < last:
		return fmt.Errorf("%w: key %q went from %d back to %d", ErrOrdered, m.Key, last, n)
	case known && n == last && (r.Edges || !m.Removed):
		return fmt.Errorf("%w: %s arrived twice", ErrUnique, m.Value)
	}
	r.seen[m.Key] = n
	if m.Removed {
		delete(r.State, m.Key)
	} else {
		r.State[m.Key] = m.Value
	}
	return nil
}
