// Package evictionbook keeps on disk which pods were evicted and are still named by their source. A restarted syncloop
// reads it and does not start them again, because neither the source nor the runtime knows of an eviction. The book
// also has the pods of the API server that ran to their end and whose ended containers were removed because the disk
// was full: only the book shows that they ran.
//
// What the book says counts at once, also while it cannot be written: a pod is evicted above all when the disk is full.
// One goroutine keeps the file, and retries until it succeeds. While the file cannot be written, a spare file on
// another disk has the book; while the file cannot be read, the spare file has what is to be added to it.
package evictionbook

import (
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
)

// fileMode lets only the owner read, because messages may have details of pods.
const fileMode = 0o600

// errUnwritten is the error of a change that is not on disk. The writer has logged why.
var errUnwritten = errors.New("the record of the evicted pods cannot be written")

// Config has the place of a Book.
type Config struct {
	// Path is the file, in an existing directory.
	Path string
	// Spare is a file on another disk, for example in memory, for what cannot be written at Path; empty for none.
	Spare string
	// Node is the name of this node. A file of another one is damaged; empty accepts any.
	Node string
	// Boot is the ID of this boot of the machine: boottime.Boot. Evictions that are valid for another one are dropped.
	Boot string
	// Reserve is space for the file on a full disk; nil for none.
	Reserve *statedir.Reserve
	Clock   clock.Clock
	Logger  *slog.Logger
}

// Book has the evictions. A method that changes them returns when the change is on disk, could not be written, or has
// been waiting for the disk for a second; the change counts in any case. Readers do not wait. Close it.
type Book struct {
	cfg    Config
	writer *writer

	mu      sync.Mutex
	entries map[types.UID]podstore.Eviction
	// unread is why the file cannot be read; nil if it was read. dropped has the pods that were deleted meanwhile.
	unread  error
	dropped map[types.UID]bool
	// version counts the changes.
	version int
}

// Open reads the book; it is empty if there is no file. A damaged file is set aside: what can be read of it counts, and
// evicted pods that are missing in it start again. A file that cannot be read, or whose read takes longer than 5 s,
// stays, see Unread. The log says so. What a spare file has counts, too.
func Open(cfg Config) *Book {
	b := &Book{
		cfg: cfg, entries: map[types.UID]podstore.Eviction{}, dropped: map[types.UID]bool{},
		unread: statedir.Hangs(cfg.Path), writer: newWriter(cfg.Clock),
	}
	k := newKeeper(b)
	go k.run()
	timer := cfg.Clock.NewTimer(readLimit)
	defer timer.Stop()
	select {
	case <-k.tried:
	case <-timer.C():
	}
	if err := b.Unread(); err != nil {
		meanwhile := "evictions of this time are in " + cfg.Spare + ", which a restart of the machine removes"
		if cfg.Spare == "" {
			meanwhile = "a syncloop that is killed in this time forgets the evictions of it"
		}
		cfg.Logger.Error("the record of the evicted pods cannot be read, and is tried again: pods of which nothing runs are not started before; "+
			meanwhile, telemetry.KeyFile, cfg.Path, telemetry.KeyError, err)
	}
	return b
}

// Unread returns why the file cannot be read; nil if the book is complete. Until then any pod may have been evicted,
// and changes are in the spare file only. The file is tried again and again.
func (b *Book) Unread() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.unread
}

// add adds evictions of before. Those of another boot and of pods that were deleted meanwhile do not count. A pod keeps
// its first reason. changed is true if the file has to be written.
func (b *Book) add(entries map[types.UID]podstore.Eviction, changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for uid, e := range entries {
		if e.Boot != "" && e.Boot != b.cfg.Boot {
			changed = true
			continue
		}
		if !b.dropped[uid] {
			b.entries[uid] = e
		}
	}
	if changed {
		b.version++
	}
}

// complete says that the file was read, or why it could not be.
func (b *Book) complete(unread error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.unread = unread; unread == nil {
		clear(b.dropped)
	}
}

// salvage returns the entries before the damage.
func salvage(path string) map[types.UID]podstore.Eviction {
	entries := map[types.UID]podstore.Eviction{}
	file, err := os.Open(path)
	if err != nil {
		return entries
	}
	defer file.Close() //nolint:errcheck // it was only read
	decoder := json.NewDecoder(file)
	if begin, err := decoder.Token(); err != nil || begin != json.Delim('{') {
		return entries
	}
	for decoder.More() {
		uid, err := decoder.Token()
		name, isText := uid.(string)
		var e podstore.Eviction
		if err != nil || !isText || decoder.Decode(&e) != nil {
			break
		}
		entries[types.UID(name)] = e
	}
	return entries
}

// Get returns the eviction of a pod; false if there is none.
func (b *Book) Get(uid types.UID) (podstore.Eviction, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, ok := b.entries[uid]
	return e, ok
}

// UIDs returns the pods in the book, sorted.
func (b *Book) UIDs() []types.UID {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Sorted(maps.Keys(b.entries))
}

// Put records an eviction. A pod that was evicted before keeps its first reason.
func (b *Book) Put(uid types.UID, e podstore.Eviction) {
	b.PutAll(map[types.UID]podstore.Eviction{uid: e})
}

// PutAll calls Put for several pods in one write.
func (b *Book) PutAll(evictions map[types.UID]podstore.Eviction) {
	b.await(b.change(func() bool {
		before := len(b.entries)
		for uid, e := range evictions {
			if _, known := b.entries[uid]; !known {
				b.entries[uid] = e
			}
		}
		return len(b.entries) > before
	}))
}

// SetLast keeps the last status of a pod, so that it is known after its ended containers are removed; the first one
// counts. If add is true, a pod that is not in the book is added. SetLast reports whether the book has a last status of
// the pod. It fails if that is not on disk.
func (b *Book) SetLast(uid types.UID, last *v1.PodStatus, add bool) (bool, error) {
	version := b.change(func() bool {
		e, known := b.entries[uid]
		if e.Last != nil || (!known && !add) {
			return false
		}
		e.Last = last
		b.entries[uid] = e
		return true
	})
	if e, known := b.Get(uid); !known || e.Last == nil {
		return false, nil
	}
	if !b.await(version) {
		return false, errUnwritten
	}
	return true, nil
}

// Delete drops an eviction; it is a no-op if there is none.
func (b *Book) Delete(uid types.UID) {
	b.await(b.change(func() bool {
		_, known := b.entries[uid]
		delete(b.entries, uid)
		if b.unread != nil {
			b.dropped[uid] = true
		}
		return known || b.unread != nil
	}))
}

// Close writes what is not on disk yet, unless the disk hangs, and ends the goroutine.
func (b *Book) Close() error { return b.writer.close() }

// change changes the entries, and returns the version that has the change. apply, which is called with mu held, returns
// false if nothing has changed.
func (b *Book) change(apply func() bool) (version int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if apply() {
		b.version++
	}
	return b.version
}

// present returns the version of the book.
func (b *Book) present() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.version
}

// await returns whether a version is on disk.
func (b *Book) await(version int) bool {
	b.writer.request()
	return b.writer.await(version)
}
