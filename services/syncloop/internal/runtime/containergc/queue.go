package containergc

import (
	"context"
	"sync"

	"go.opentelemetry.io/otel/trace"
)

// queued is an item to remove, with the span of its removal's parent.
type queued struct {
	Item
	span trace.SpanContext
}

// Queue holds the items to remove, in order. It is created before the Collector that empties it. Create it with
// NewQueue. Its methods may be called from any goroutine and do not block.
type Queue struct {
	// more has a capacity of one value: it signals that there are items, not how many.
	more chan struct{}

	mu sync.Mutex
	// queue holds the items to remove. known holds their IDs and those of the items that are being removed. Neither grows
	// beyond the number of objects in the runtime.
	queue []queued
	known map[string]bool
}

// NewQueue returns an empty queue.
func NewQueue() *Queue { return &Queue{more: make(chan struct{}, 1), known: map[string]bool{}} }

// Put queues items for removal, except those that are queued already. The runtime calls are part of the trace of ctx.
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

// next takes the first item. The item stays known until done.
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

// done marks the end of a removal, successful or not: the item may be queued again.
func (q *Queue) done(item Item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.known, item.id())
}
