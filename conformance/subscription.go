package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
)

// message is a frame and what is beside it; payload is nil without one.
type message struct {
	*streamv1.Frame
	payload proto.Message
}

// String implements fmt.Stringer, for errors.
func (m message) String() string {
	text := m.GetKind().String()
	if m.GetOpening() != nil {
		text += " " + m.GetOpening().GetStart().String()
	}
	if m.GetKey() != "" {
		text += " of " + m.GetKey()
	}
	if m.GetRemoved() {
		text += " (removed)"
	}
	return text
}

// receive waits for the next message.
type receive func() (message, error)

// watch is an RPC that streams. It subscribes after a token, and its subscription ends with the context.
type watch func(ctx context.Context, token []byte) (receive, error)

// subscription reads the messages of a watch.
type subscription struct {
	cancel   context.CancelFunc
	messages chan message
	// failed has the error that has ended the subscription.
	failed chan error
	// token is that of the last message that had one.
	token []byte
	// grammar checks the messages if it is set.
	grammar *grammar
}

// subscribe begins a subscription that ends with the context or with close.
func subscribe(ctx context.Context, open watch, token []byte) (*subscription, error) {
	ctx, cancel := context.WithCancel(ctx)
	next, err := open(ctx, token)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("subscribing: %w", err)
	}
	s := &subscription{cancel: cancel, messages: make(chan message), failed: make(chan error, 1), token: token}
	go func() {
		for {
			m, err := next()
			if err != nil {
				s.failed <- err
				return
			}
			select {
			case s.messages <- m:
			case <-ctx.Done():
				s.failed <- ctx.Err()
				return
			}
		}
	}()
	return s, nil
}

// close ends the subscription.
func (s *subscription) close() { s.cancel() }

// errSilent is the error of next when no message has arrived in time.
var errSilent = errors.New("no message arrived in time")

// next returns the next message.
func (s *subscription) next(ctx context.Context, patience time.Duration) (message, error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case m := <-s.messages:
		if len(m.GetResumeToken()) > 0 {
			s.token = m.GetResumeToken()
		}
		if s.grammar != nil {
			return m, s.grammar.check(m)
		}
		return m, nil
	case err := <-s.failed:
		s.failed <- err
		return message{}, fmt.Errorf("the subscription ended: %w", err)
	case <-timer.C:
		return message{}, errSilent
	case <-ctx.Done():
		return message{}, ctx.Err()
	}
}

// until reads messages until one matches, and returns that one.
func (s *subscription) until(
	ctx context.Context, patience time.Duration, what string, matches func(message) bool,
) (message, error) {
	deadline := time.Now().Add(patience)
	for {
		m, err := s.next(ctx, time.Until(deadline))
		if errors.Is(err, errSilent) {
			return m, fmt.Errorf("no sign of %s: %w", what, errSilent)
		}
		if err != nil {
			return m, fmt.Errorf("waiting for %s: %w", what, err)
		}
		if matches(m) {
			return m, nil
		}
	}
}

// state is what a subscription has told at its begin.
type state struct {
	start   streamv1.Start
	entries map[string]proto.Message
	// order has the keys of the entries as they came.
	order []string
}

// begin reads OPENED and, unless the subscription was resumed, the snapshot with its end.
func (s *subscription) begin(ctx context.Context, patience time.Duration) (state, error) {
	m, err := s.next(ctx, patience)
	if err != nil {
		return state{}, err
	}
	if m.GetKind() != streamv1.Kind_KIND_OPENED {
		return state{}, fmt.Errorf("the first frame is %v and not OPENED", m)
	}
	found := state{start: m.GetOpening().GetStart(), entries: map[string]proto.Message{}}
	if found.start == streamv1.Start_START_RESUMED {
		return found, nil
	}
	for {
		m, err := s.next(ctx, patience)
		if err != nil {
			return state{}, fmt.Errorf("reading the snapshot: %w", err)
		}
		switch m.GetKind() { //nolint:exhaustive // every other kind is an error here
		case streamv1.Kind_KIND_SNAPSHOT:
			if _, twice := found.entries[m.GetKey()]; twice {
				return state{}, fmt.Errorf("the snapshot has the key %q twice", m.GetKey())
			}
			found.entries[m.GetKey()] = m.payload
			found.order = append(found.order, m.GetKey())
		case streamv1.Kind_KIND_SYNCED:
			return found, nil
		default:
			return state{}, fmt.Errorf("%v is inside the snapshot", m)
		}
	}
}

// watching subscribes and reads the begin.
func (b *bench) watching(ctx context.Context, open watch, token []byte) (*subscription, state, error) {
	s, err := subscribe(ctx, open, token)
	if err != nil {
		return nil, state{}, err
	}
	b.cleanup(func(context.Context) error { s.close(); return nil })
	begun, err := s.begin(ctx, b.patience)
	return s, begun, err
}
