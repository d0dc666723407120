package stream

import (
	"cmp"
	"slices"

	"k8s.io/utils/third_party/forked/golang/btree"
)

// Level publishes a keyed state: the present value of each key, and, for subscribers that resume, the keys that have
// changed or disappeared since. It keeps no log. Each key has one position in the order of changes, that of its last
// change, so that unsent changes fold by themselves, and a slow subscriber costs only its cursor.
//
// Subscribers receive changes in the order of the last Put of each key.
type Level[V any] struct {
	hub[V]
	entries    map[string]item[V]
	order      *btree.BTree[item[V]]
	tombstones *btree.BTree[item[V]]
	// compacted is the revision of the newest forgotten tombstone.
	compacted uint64
	limit     int
}

// btreeDegree is the fan-out of the trees. Any small number is fine for the few hundred keys of a node.
const btreeDegree = 16

// NewLevel returns an empty publisher.
func NewLevel[V any](cfg Config) *Level[V] {
	byRev := func(a, b item[V]) bool { return a.rev < b.rev }
	l := &Level[V]{
		entries:    map[string]item[V]{},
		order:      btree.New(btreeDegree, byRev),
		tombstones: btree.New(btreeDegree, byRev),
		limit:      cfg.Tombstones,
	}
	if l.limit == 0 {
		l.limit = DefaultTombstones
	}
	l.init(cfg, (*levelHistory[V])(l))
	return l
}

// Put sets the value of key. It always counts as a change; callers that do not want to publish equal values compare
// first.
func (l *Level[V]) Put(key string, v V) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.set(item[V]{key: key, value: v})
}

// Delete removes key from the state. It is a no-op for a missing key.
func (l *Level[V]) Delete(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remove(key, func(last V) V { return last })
}

// DeleteWith removes key from the state and sends last to the subscribers as its last value, for a removal that carries
// data such as its trace. It is a no-op for a missing key.
func (l *Level[V]) DeleteWith(key string, last V) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remove(key, func(V) V { return last })
}

func (l *Level[V]) remove(key string, last func(V) V) {
	old, ok := l.entries[key]
	if !ok || old.removed {
		return
	}
	old.removed, old.value = true, last(old.value)
	l.set(old)
	for l.tombstones.Len() > l.limit {
		oldest, _ := l.tombstones.DeleteMin()
		l.order.Delete(oldest)
		delete(l.entries, oldest.key)
		l.compacted = oldest.rev
	}
}

func (l *Level[V]) set(it item[V]) {
	if old, ok := l.entries[it.key]; ok {
		l.order.Delete(old)
		l.tombstones.Delete(old)
	}
	l.rev++
	it.rev = l.rev
	l.entries[it.key] = it
	l.order.ReplaceOrInsert(it)
	if it.removed {
		l.tombstones.ReplaceOrInsert(it)
	}
	l.wake()
}

// Get returns the value of key.
func (l *Level[V]) Get(key string) (V, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	it, ok := l.entries[key]
	if !ok || it.removed {
		var zero V
		return zero, false
	}
	return it.value, true
}

// List returns all values, in the order of their keys.
func (l *Level[V]) List() []V {
	l.mu.Lock()
	items := l.history.snapshot()
	l.mu.Unlock()
	slices.SortFunc(items, func(a, b item[V]) int { return cmp.Compare(a.key, b.key) })
	values := make([]V, len(items))
	for i, it := range items {
		values[i] = it.value
	}
	return values
}

// levelHistory is the interface of a Level to its subscriptions.
type levelHistory[V any] Level[V]

func (l *levelHistory[V]) snapshot() []item[V] {
	items := make([]item[V], 0, len(l.entries))
	l.order.Ascend(func(it item[V]) bool {
		if !it.removed {
			items = append(items, it)
		}
		return true
	})
	return items
}

func (l *levelHistory[V]) next(cursor uint64) (change item[V], ok bool) {
	l.order.AscendGreaterOrEqual(item[V]{rev: cursor + 1}, func(it item[V]) bool {
		change, ok = it, true
		return false
	})
	return change, ok
}

func (l *levelHistory[V]) reaches(cursor uint64) bool { return cursor >= l.compacted }

func (l *levelHistory[V]) behind(cursor uint64) int {
	n := 0
	l.order.AscendGreaterOrEqual(item[V]{rev: cursor + 1}, func(item[V]) bool {
		n++
		return true
	})
	return n
}
