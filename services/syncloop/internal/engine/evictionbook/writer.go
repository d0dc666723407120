package evictionbook

import (
	"errors"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

const (
	// patience is how long a change waits for the disk before it counts without being written.
	patience = time.Second
	// readLimit is how long a start waits for the book. A healthy disk takes milliseconds, and one that has to spin up
	// some seconds.
	readLimit = 5 * time.Second
	// firstRetry and lastRetry bound the time after which a failed read or write is repeated.
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
)

// writer is what the goroutine that keeps the file and those that wait for it share.
type writer struct {
	clock clock.Clock
	// requested has a value after a request that the goroutine has not seen.
	requested chan struct{}
	// closing is closed by close, and ended when the goroutine has ended.
	closing, ended chan struct{}

	mu sync.Mutex
	// tried is the version of the last attempt, and written that of the last successful one.
	tried, written int
	// reported is closed and replaced after each attempt.
	reported chan struct{}
}

func newWriter(clock clock.Clock) *writer {
	return &writer{
		clock: clock, requested: make(chan struct{}, 1), closing: make(chan struct{}), ended: make(chan struct{}),
		reported: make(chan struct{}),
	}
}

// request makes the goroutine look for changes.
func (w *writer) request() {
	select {
	case w.requested <- struct{}{}:
	default:
	}
}

// has returns whether a version is on disk.
func (w *writer) has(version int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.written >= version
}

// report records an attempt to write a version.
func (w *writer) report(version int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tried = version
	if err == nil {
		w.written = version
	}
	close(w.reported)
	w.reported = make(chan struct{})
}

// await returns whether a version is on disk, after an attempt to write it or after patience.
func (w *writer) await(version int) bool {
	timer := w.clock.NewTimer(patience)
	defer timer.Stop()
	for {
		w.mu.Lock()
		tried, written, reported := w.tried, w.written, w.reported
		w.mu.Unlock()
		if tried >= version || written >= version {
			return written >= version
		}
		select {
		case <-reported:
		case <-timer.C():
			return false
		case <-w.ended:
			return w.has(version)
		}
	}
}

// close ends the goroutine after a last attempt. It does not wait for a disk that hangs.
func (w *writer) close() error {
	close(w.closing)
	timer := w.clock.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-w.ended:
		return nil
	case <-timer.C():
		return errors.New("the disk does not answer: the last evictions are not written")
	}
}

// nextRetry returns the time after which an attempt is repeated; 0 after a success.
func nextRetry(last time.Duration, err error) time.Duration {
	if err == nil {
		return 0
	}
	return min(max(2*last, firstRetry), lastRetry)
}
