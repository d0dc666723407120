package debugapi

import (
	"context"
	"errors"
	"sync"
)

const (
	// chunkSize is the largest part of a profile in one message.
	chunkSize = 64 << 10
	// maxUnsent bounds the memory of a profile that its caller does not receive as fast as it is taken.
	maxUnsent = 64 << 20
)

// errTooSlow is the result of a profile that is larger than maxUnsent and is not received meanwhile.
var errTooSlow = errors.New("more than 64 MiB of it have not been received: take a shorter one")

// spool passes the bytes of a profile from the Go runtime, which must not wait, to a caller, which may be slow.
type spool struct {
	limit int
	// changed has a capacity of one: it says that there is something new to look at.
	changed chan struct{}
	// overflown is closed when too much is unsent.
	overflown chan struct{}

	mu     sync.Mutex
	unsent []byte
	ended  bool
	err    error
}

func newSpool(limit int) *spool {
	return &spool{limit: limit, changed: make(chan struct{}, 1), overflown: make(chan struct{})}
}

// Write implements io.Writer. It never waits, and fails with errTooSlow when too much is unsent.
func (s *spool) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return 0, s.err
	}
	if len(s.unsent)+len(p) > s.limit {
		s.err, s.unsent = errTooSlow, nil
		close(s.overflown)
		s.wake()
		return 0, s.err
	}
	s.unsent = append(s.unsent, p...)
	s.wake()
	return len(p), nil
}

// end says that nothing more is written, and why if the profile is not complete.
func (s *spool) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	if s.err == nil {
		s.err = err
	}
	s.wake()
}

// wake is called with the lock.
func (s *spool) wake() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// next waits for bytes and returns them; nil after the last ones. It fails as the profile does, and with the error of
// ctx.
func (s *spool) next(ctx context.Context) ([]byte, error) {
	for {
		if data, done, err := s.take(); data != nil || done || err != nil {
			return data, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-s.changed:
		}
	}
}

// take returns what is unsent, and whether the profile has ended.
func (s *spool) take() (data []byte, done bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.unsent) > 0 {
		data, s.unsent = s.unsent, nil
		return data, false, nil
	}
	return nil, s.ended, s.err
}
