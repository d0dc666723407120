// Package evictionbook keeps on disk which pods were evicted and are still named by their source, so that a restarted
// syncloop does not start them again: neither the source nor the runtime knows of it. It also has the pods of the API server that ran to
// their end and whose ended containers were removed on a node that was short of disk: nothing else says that they ran.
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

// fileMode lets only the owner read: messages may tell of pods.
const fileMode = 0o600

// Book has the evictions. Each change is on disk when the method returns.
type Book struct {
	path string

	// writing lets one change at a time go to disk, so that the file's versions follow each other. Readers do not wait for it.
	writing sync.Mutex
	mu      sync.Mutex
	entries map[types.UID]podstore.Eviction
}

// Open reads the book at path, an empty one when there is no file. It fails when the file cannot be read or understood.
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

// Get returns why a pod was evicted.
func (b *Book) Get(uid types.UID) (podstore.Eviction, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, ok := b.entries[uid]
	return e, ok
}

// UIDs returns the evicted pods, in order.
func (b *Book) UIDs() []types.UID {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Sorted(maps.Keys(b.entries))
}

// Put notes an eviction. A pod that was evicted before keeps its first reason.
func (b *Book) Put(uid types.UID, e podstore.Eviction) error {
	return b.change(func(entries map[types.UID]podstore.Eviction) bool {
		if _, known := entries[uid]; known {
			return false
		}
		entries[uid] = e
		return true
	})
}

// SetLast keeps the last status of a pod, so that it is known after its ended containers are removed. A pod that is not in the book is
// put into it when add is true. It returns whether the book has the status then.
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

// PutAll is Put for many at once.
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

// Booted forgets the evictions that count for another boot of the machine than the one that is named.
func (b *Book) Booted(boot string) error {
	return b.change(func(entries map[types.UID]podstore.Eviction) bool {
		before := len(entries)
		maps.DeleteFunc(entries, func(_ types.UID, e podstore.Eviction) bool { return e.Boot != "" && e.Boot != boot })
		return len(entries) < before
	})
}

// Delete forgets an eviction; it does nothing when there is none.
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

// change makes the changed entries the book's once they are on disk.
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
