// Package evictionbook keeps on disk which pods were evicted and are still named by their source. A restarted syncloop
// reads it and does not start them again, because neither the source nor the runtime knows of an eviction. The book
// also has the pods of the API server that ran to their end and whose ended containers were removed because the disk
// was full: only the book shows that they ran.
package evictionbook

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
)

// fileMode lets only the owner read, because messages may have details of pods.
const fileMode = 0o600

// Book has the evictions. Each change is on disk when the method returns.
type Book struct {
	path string

	// writing is held over a write, because it orders the versions of the file. Readers do not wait for it.
	writing sync.Mutex
	mu      sync.Mutex
	entries map[types.UID]podstore.Eviction
}

// Open reads the book at path; it is empty if there is no file. It fails if the file cannot be read or parsed.
func Open(path string) (*Book, error) {
	b := &Book{path: path, entries: map[types.UID]podstore.Eviction{}}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return b, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the evictions: %w", err)
	}
	if err := json.Unmarshal(data, &b.entries); err != nil {
		return nil, fmt.Errorf("read the evictions in %s: %w: remove the file, evicted pods that are still in a source then start again", path, err)
	}
	if b.entries == nil {
		b.entries = map[types.UID]podstore.Eviction{}
	}
	return b, nil
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
func (b *Book) Put(uid types.UID, e podstore.Eviction) error {
	return b.change(func(entries map[types.UID]podstore.Eviction) bool {
		if _, known := entries[uid]; known {
			return false
		}
		entries[uid] = e
		return true
	})
}

// SetLast keeps the last status of a pod, so that it is known after its ended containers are removed; the first one
// counts. If add is true, a pod that is not in the book is added. SetLast reports whether the book has a last status of
// the pod now.
func (b *Book) SetLast(uid types.UID, last *v1.PodStatus, add bool) (bool, error) {
	err := b.change(func(entries map[types.UID]podstore.Eviction) bool {
		e, known := entries[uid]
		if e.Last != nil || (!known && !add) {
			return false
		}
		e.Last = last
		entries[uid] = e
		return true
	})
	if err != nil {
		return false, err
	}
	e, known := b.Get(uid)
	return known && e.Last != nil, nil
}

// PutAll calls Put for several pods in one write.
func (b *Book) PutAll(evictions map[types.UID]podstore.Eviction) error {
	return b.change(func(entries map[types.UID]podstore.Eviction) bool {
		before := len(entries)
		for uid, e := range evictions {
			if _, known := entries[uid]; !known {
				entries[uid] = e
			}
		}
		return len(entries) > before
	})
}

// Booted drops the evictions that are valid for another boot of the machine than boot.
func (b *Book) Booted(boot string) error {
	return b.change(func(entries map[types.UID]podstore.Eviction) bool {
		before := len(entries)
		maps.DeleteFunc(entries, func(_ types.UID, e podstore.Eviction) bool { return e.Boot != "" && e.Boot != boot })
		return len(entries) < before
	})
}

// Delete drops an eviction; it is a no-op if there is none.
func (b *Book) Delete(uid types.UID) error {
	if _, known := b.Get(uid); !known {
		return nil
	}
	return b.change(func(entries map[types.UID]podstore.Eviction) bool {
		_, known := entries[uid]
		delete(entries, uid)
		return known
	})
}

// change applies a change to a copy of the entries, writes the copy to disk, and then makes it the content of the book.
// If apply returns false, nothing has changed.
func (b *Book) change(apply func(map[types.UID]podstore.Eviction) bool) error {
	b.writing.Lock()
	defer b.writing.Unlock()
	b.mu.Lock()
	next := maps.Clone(b.entries)
	b.mu.Unlock()
	if !apply(next) {
		return nil
	}
	data, err := json.MarshalIndent(next, "", "  ")
	if err != nil {
		return fmt.Errorf("write the evictions: %w", err)
	}
	if err := statedir.WriteFileAtomic(b.path, append(data, '\n'), fileMode); err != nil {
		return fmt.Errorf("write the evictions: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.entries = next
	return nil
}
