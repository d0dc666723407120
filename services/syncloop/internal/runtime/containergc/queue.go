package containergc

import (
	"context"
	"sync"

	"go.opentelemetry.io/otel/trace"
)

// queued is something to be removed, with the span that it is part of.
type queued struct {
	Item
	span trace.SpanContext
}

// Queue has what is to be removed, in its order. It exists before the Collector that empties it. Make it with NewQueue;
// its methods may be called from any goroutine and wait for nothing.
type Queue struct {
	// more holds one value: it says that there is something, not how much.
	more chan struct{}

	mu sync.Mutex
	// queue has what is to be removed, and known the IDs of that and of what is being removed. Both are no more than the
	// runtime has.
	queue []queued
	known map[string]bool
}

// NewQueue returns an empty queue.
func NewQueue() *Queue { return &Queue{more: make(chan struct{}, 1), known: map[string]bool{}} }

// Put has things removed when it is their turn. What was put in before and is not removed yet is not put in again. The
// calls of the runtime are part of the trace of ctx.
func (q *Queue) Put(ctx context.Context, items []Item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, item := range items {
		if !q.known[item.id()] {
			q.known[item.id()] = true
			q.queue = append(q.queue, queued{Item: item, span: trace.SpanContextFromContext(ctx)})
		}
	}
	if len(q.queue) > 0 {
		select {
		case q.more <- struct{}{}:
		default:
		}
	}
}

// next takes the first one out; it stays known until done.
func (q *Queue) next() (queued, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.queue) == 0 {
		q.queue = nil
		return queued{}, false
	}
	item := q.queue[0]
	q.queue = q.queue[1:]
	return item, true
}

// done says that the removal of something has ended, well or not: it may be put in again.
func (q *Queue) done(item Item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.known, item.id())
}
