package podworkers

import (
	"container/heap"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Due holds the time of each worker's next work without a cause. Next takes constant time, however many pods there are.
type Due struct {
	mu    sync.Mutex
	heap  dueHeap
	byUID map[types.UID]*dueItem
	// changed has room for one signal: the earliest time may have changed.
	changed chan struct{}
}

// NewDue returns an empty Due.
func NewDue() *Due {
	return &Due{byUID: map[types.UID]*dueItem{}, changed: make(chan struct{}, 1)}
}

// Changed signals that the earliest time may have become earlier.
func (d *Due) Changed() <-chan struct{} { return d.changed }

// Set schedules work for uid at a time, and replaces the earlier schedule.
func (d *Due) Set(uid types.UID, at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if item, ok := d.byUID[uid]; ok {
		item.at = at
		heap.Fix(&d.heap, item.index)
	} else {
		item := &dueItem{uid: uid, at: at}
		d.byUID[uid] = item
		heap.Push(&d.heap, item)
	}
	if d.heap[0].uid == uid {
		select {
		case d.changed <- struct{}{}:
		default:
		}
	}
}

// Clear removes the schedule of uid.
func (d *Due) Clear(uid types.UID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if item, ok := d.byUID[uid]; ok {
		heap.Remove(&d.heap, item.index)
		delete(d.byUID, uid)
	}
}

// At returns when work for uid is due.
func (d *Due) At(uid types.UID) (time.Time, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	item, ok := d.byUID[uid]
	if !ok {
		return time.Time{}, false
	}
	return item.at, true
}

// Next returns the earliest time at which something is due.
func (d *Due) Next() (time.Time, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.heap) == 0 {
		return time.Time{}, false
	}
	return d.heap[0].at, true
}

// Take removes and returns everything that is due now, earliest first.
func (d *Due) Take(now time.Time) []types.UID {
	d.mu.Lock()
	defer d.mu.Unlock()
	var uids []types.UID
	for len(d.heap) > 0 && !d.heap[0].at.After(now) {
		item := heap.Pop(&d.heap).(*dueItem) //nolint:forcetypeassert // the heap has only these
		delete(d.byUID, item.uid)
		uids = append(uids, item.uid)
	}
	return uids
}

type dueItem struct {
	uid   types.UID
	at    time.Time
	index int
}

// dueHeap is a heap.Interface, earliest first.
type dueHeap []*dueItem

// Len implements heap.Interface.
func (h dueHeap) Len() int { return len(h) }

// Less implements heap.Interface.
func (h dueHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }

// Swap implements heap.Interface.
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements heap.Interface.
func (h *dueHeap) Push(x any) {
	item := x.(*dueItem) //nolint:forcetypeassert // only Set pushes
	item.index = len(*h)
	*h = append(*h, item)
}

// Pop implements heap.Interface.
func (h *dueHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return last
}
