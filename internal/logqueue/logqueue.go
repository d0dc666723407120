// Package logqueue keeps a process from waiting for the reader of its log: a terminal that is stopped, a pipe of a
// container engine or a socket of journald that is not read. Lines that do not fit are dropped, counted and reported.
package logqueue

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

const (
	// maxQueued bounds the bytes that wait for a reader. It is enough for the goroutines of all processes.
	maxQueued = 8 << 20
	// flushTimeout is how long Close waits for a reader that does not read.
	flushTimeout = time.Second
)

// Queue is a writer that never waits for its reader, such as a terminal that is stopped by Ctrl-S. Writes over
// maxQueued are dropped and their lines counted; when the reader reads again, it gets the number.
type Queue struct {
	w io.Writer

	mu sync.Mutex
	// tell reports lines that were dropped; nil writes a line of text.
	tell    func(lines int)
	waiting [][]byte
	// size counts the bytes that are not written, dropped the lines since the last report.
	size, dropped int
	closed        bool

	// more has room for one note that something has changed.
	more chan struct{}
	done chan struct{}
}

// New returns a Queue to a writer. Its goroutine ends after Close, or with the process if the writer hangs.
func New(w io.Writer) *Queue {
	q := &Queue{w: w, more: make(chan struct{}, 1), done: make(chan struct{})}
	go q.run()
	return q
}

// OnDropped has the number of dropped lines reported by a function, which may write to the queue.
func (q *Queue) OnDropped(tell func(lines int)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.tell = tell
}

// Write queues what is to be written. It never fails.
func (q *Queue) Write(p []byte) (int, error) {
	q.mu.Lock()
	if q.closed || q.size+len(p) > maxQueued {
		q.dropped += max(1, bytes.Count(p, []byte("\n")))
	} else {
		q.size += len(p)
		q.waiting = append(q.waiting, append([]byte(nil), p...))
	}
	q.mu.Unlock()
	q.note()
	return len(p), nil
}

func (q *Queue) note() {
	select {
	case q.more <- struct{}{}:
	default:
	}
}

// Close waits until everything is written, or a second has passed without a write. Later writes are dropped.
func (q *Queue) Close() {
	q.mu.Lock()
	q.closed = true
	before := q.size
	q.mu.Unlock()
	q.note()
	for {
		timer := time.NewTimer(flushTimeout)
		select {
		case <-q.done:
			timer.Stop()
			return
		case <-timer.C:
		}
		q.mu.Lock()
		left := q.size
		q.mu.Unlock()
		if left == before {
			return
		}
		before = left
	}
}

func (q *Queue) run() {
	defer close(q.done)
	for {
		q.mu.Lock()
		waiting, dropped, closed, tell := q.waiting, q.dropped, q.closed, q.tell
		q.waiting = nil
		if len(waiting) == 0 {
			q.dropped = 0
		}
		q.mu.Unlock()
		switch {
		case len(waiting) > 0:
			for _, p := range waiting {
				_, _ = q.w.Write(p) // an error of writing the log cannot be logged
				q.mu.Lock()
				q.size -= len(p)
				q.mu.Unlock()
			}
		case dropped > 0:
			if tell == nil || closed {
				tell = q.report // without the queue, which takes nothing any more
			}
			tell(dropped)
		case closed:
			return
		default:
			<-q.more
		}
	}
}

// report says how many lines were dropped.
func (q *Queue) report(dropped int) {
	_, _ = fmt.Fprintf(q.w, "%d lines were dropped because the output was not read\n", dropped)
}

// May wraps a pipe or a socket, whose reader may stop reading, in a Queue. It returns another writer as it is, and with
// a nil Queue: a file on a disk and a terminal keep the order with what the process writes directly.
func May(w io.Writer) (io.Writer, *Queue) {
	file, isFile := w.(*os.File)
	if !isFile {
		return w, nil
	}
	info, err := file.Stat()
	if err != nil || info.Mode()&(os.ModeNamedPipe|os.ModeSocket) == 0 {
		return w, nil
	}
	q := New(file)
	return q, q
}
