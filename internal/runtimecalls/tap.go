// Package runtimecalls passes the calls that a process makes to the container runtime, with their answers and without
// what may be secret, to those who watch. pleg and syncloop wrap their services of the runtime by it; package debugapi
// serves the calls; `quartet record` writes them into its file.
//
// While nobody watches, a call costs one comparison. A watcher that is too slow misses calls, and is told how many.
package runtimecalls

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	debugv1 "github.com/quartet-node/quartet/gen/quartet/debug/v1"
	"github.com/quartet-node/quartet/internal/boottime"
)

const (
	// maxCall is the size of the messages of a call in bytes from which it is dropped: a message to a watcher is far below
	// the 16 MiB that its client accepts.
	maxCall = 1 << 20
	// maxWaiting and maxWaitingBytes bound the calls that wait for one watcher. A node that starts a hundred pods makes
	// about a thousand calls in a second.
	maxWaiting      = 4096
	maxWaitingBytes = 16 << 20
)

// Tap takes the calls of one process. The zero value has no watchers and is ready. A nil Tap takes nothing.
type Tap struct {
	// watched is the number of watchers.
	watched atomic.Int32

	mu       sync.Mutex
	watchers map[*Watch]struct{}
}

// Watched reports whether somebody watches.
func (t *Tap) Watched() bool { return t != nil && t.watched.Load() > 0 }

// Watch begins to watch: every call that ends from now on. The caller closes the watch.
func (t *Tap) Watch() *Watch {
	w := &Watch{tap: t, changed: make(chan struct{}, 1)}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.watchers == nil {
		t.watchers = map[*Watch]struct{}{}
	}
	t.watchers[w] = struct{}{}
	t.watched.Add(1)
	return w
}

// Event takes an event of the runtime.
func (t *Tap) Event(event *runtimeapi.ContainerEventResponse) {
	if t.Watched() {
		t.put("GetContainerEvents", &runtimeapi.GetEventsRequest{}, event, nil, start{at: time.Now(), boot: boottime.Now()})
	}
}

// start is when a call began.
type start struct {
	at   time.Time
	boot time.Duration
	took time.Duration
}

// put passes a call that has ended to the watchers. It never waits for one. response is nil if the call has failed.
func (t *Tap) put(method string, request, response proto.Message, err error, began start) {
	call := &debugv1.RuntimeCall{
		Method: method, Code: int32(status.Code(err)), //nolint:gosec // codes are small
		BeganAt: timestamppb.New(began.at), BeganBoottimeNs: int64(began.boot), Took: durationpb.New(began.took),
	}
	var failed, failedToo error
	call.Request, failed = proto.Marshal(Redacted(request))
	if response != nil {
		call.Response, failedToo = proto.Marshal(Redacted(response))
	}
	t.pass(&debugv1.WatchRuntimeCallsResponse{Call: call}, failed == nil && failedToo == nil && sizeOf(call) <= maxCall)
}

// Record passes a change of what pleg knows, which follows from no call.
func (t *Tap) Record(change *debugv1.PLEGRecord) {
	if t.Watched() {
		t.pass(&debugv1.WatchRuntimeCallsResponse{PlegRecord: change}, true)
	}
}

// pass passes a message to the watchers, or notes that it was dropped.
func (t *Tap) pass(message *debugv1.WatchRuntimeCallsResponse, fits bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for w := range t.watchers {
		w.put(message, fits)
	}
}

// Watch is a watcher's view of the calls.
type Watch struct {
	tap *Tap
	// changed has a capacity of one: it says that a call waits.
	changed chan struct{}

	mu      sync.Mutex
	waiting []*debugv1.WatchRuntimeCallsResponse
	bytes   int
	// dropped is the number of messages that were dropped after the last one that waits.
	dropped uint64
}

func sizeOf(call *debugv1.RuntimeCall) int { return len(call.GetRequest()) + len(call.GetResponse()) }

func (w *Watch) put(message *debugv1.WatchRuntimeCallsResponse, fits bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	size := sizeOf(message.GetCall())
	if !fits || len(w.waiting) >= maxWaiting || w.bytes+size > maxWaitingBytes {
		w.dropped++
		return
	}
	w.waiting = append(w.waiting, &debugv1.WatchRuntimeCallsResponse{
		Call: message.GetCall(), PlegRecord: message.GetPlegRecord(), Dropped: w.dropped,
	})
	w.bytes, w.dropped = w.bytes+size, 0
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// Next waits for the next message. It fails with the error of ctx.
func (w *Watch) Next(ctx context.Context) (*debugv1.WatchRuntimeCallsResponse, error) {
	for {
		if next := w.take(); next != nil {
			return next, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-w.changed:
		}
	}
}

// take returns the first message that waits; nil if there is none.
func (w *Watch) take() *debugv1.WatchRuntimeCallsResponse {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.waiting) == 0 {
		return nil
	}
	next := w.waiting[0]
	w.waiting = w.waiting[1:]
	w.bytes -= sizeOf(next.GetCall())
	return next
}

// Close ends the watch.
func (w *Watch) Close() {
	w.tap.mu.Lock()
	defer w.tap.mu.Unlock()
	if _, open := w.tap.watchers[w]; open {
		delete(w.tap.watchers, w)
		w.tap.watched.Add(-1)
	}
}
