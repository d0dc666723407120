// Package resizes keeps on disk what pods were promised that were to be resized, what of that their containers run with, and what is
// said of it, so that a restarted syncloop goes on where the one before it was. A pod that was never to be resized is not in it: what
// it was made with says all. The sync loop writes what is promised, a pod's worker what runs; package resize says what follows from it.
//
// There is one small file for each pod, synced before a promise is acted upon: a crash loses none. A file that cannot be read is set
// aside, and the record is built anew from what runs.
package resizes

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resize"
)

const (
	// fileMode lets only the owner read, as all of the state directory.
	fileMode = 0o600
	suffix   = ".json"
	// damaged ends the name of a file that was set aside.
	damaged = ".damaged"
)

// Book has the records. Its methods may be called by anyone. What changes a record only does so in memory, and waits for nothing; Save
// puts it on disk.
type Book struct {
	dir string

	mu      sync.Mutex
	entries map[types.UID]*entry
	// lost has the pods whose file could not be read.
	lost map[types.UID]bool
}

// entry is one pod.
type entry struct {
	// writing is held over a write: it orders the versions of the file. Saved is what that has; nil when there is none.
	writing sync.Mutex
	saved   []byte
	// known is true while there is a record, which is never changed once it is here. Both are guarded by Book.mu.
	known  bool
	record resize.Record
}

// Open reads the book in a directory, which is made when it is not there. It fails when the directory cannot be made or read.
func Open(dir string, logger *slog.Logger) (*Book, error) {
	b := InMemory()
	b.dir = dir
	if err := statedir.MakeDir(dir); err != nil {
		return nil, fmt.Errorf("the directory of resized pods: %w", err)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("the records of resized pods: %w", err)
	}
	for _, file := range files {
		name, named := strings.CutSuffix(file.Name(), suffix)
		uid, err := url.PathUnescape(name)
		if !named || err != nil { // set aside, or left by a crash in the middle of a write
			continue
		}
		path := filepath.Join(dir, file.Name())
		record, data, err := read(path)
		if err == nil {
			b.entries[types.UID(uid)] = &entry{known: true, record: record, saved: data}
			continue
		}
		aside := path + damaged
		logger.Error("the record of a resized pod cannot be read; it is set aside, and built anew from what runs", telemetry.KeyPodUID, uid,
			telemetry.KeyFile, aside, telemetry.KeyError, errors.Join(err, os.Rename(path, aside)))
		b.lost[types.UID(uid)] = true
	}
	return b, nil
}

// InMemory returns an empty book that nothing survives.
func InMemory() *Book {
	return &Book{entries: map[types.UID]*entry{}, lost: map[types.UID]bool{}}
}

func read(path string) (record resize.Record, data []byte, err error) {
	data, err = os.ReadFile(path)
	if err != nil {
		return resize.Record{}, nil, err
	}
	if err := json.Unmarshal(data, &record); err != nil {
		return resize.Record{}, nil, err
	}
	if record.Allocated.Containers == nil {
		return resize.Record{}, nil, errors.New("it says nothing of the pod's containers")
	}
	return record, data, nil
}

// Get returns the record of a pod; it must not be changed. Not ok is a pod that was never to be resized.
func (b *Book) Get(uid types.UID) (record resize.Record, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.entries[uid]; e != nil && e.known {
		return e.record, true
	}
	return resize.Record{}, false
}

// Lost tells whether the record of a pod could not be read, and was not written since.
func (b *Book) Lost(uid types.UID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lost[uid]
}

// UIDs returns the pods that there are records of, in order.
func (b *Book) UIDs() []types.UID {
	b.mu.Lock()
	defer b.mu.Unlock()
	var uids []types.UID
	for uid, e := range b.entries {
		if e.known {
			uids = append(uids, uid)
		}
	}
	slices.Sort(uids)
	return uids
}

// Change changes the record of a pod, which begins with what the pod has when there is none.
func (b *Book) Change(uid types.UID, has resize.Allocation, change func(*resize.Record)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entries[uid]
	next := resize.Record{Allocated: has}
	if e != nil && e.known {
		next = e.record.Clone()
	}
	change(&next)
	if e == nil {
		e = &entry{}
		b.entries[uid] = e
	}
	e.record, e.known = next, true
	delete(b.lost, uid)
}

// Forget drops a pod that is gone.
func (b *Book) Forget(uid types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.entries[uid]; e != nil {
		e.record, e.known = resize.Record{}, false
	}
	delete(b.lost, uid)
}

// Save puts on disk what is known of a pod now, or that nothing is. With an error the next process knows what was saved before.
func (b *Book) Save(uid types.UID) error {
	b.mu.Lock()
	e := b.entries[uid]
	b.mu.Unlock()
	if e == nil {
		return nil
	}
	e.writing.Lock() // over the write: it orders the versions of one pod's file
	defer e.writing.Unlock()
	b.mu.Lock()
	record, known := e.record, e.known
	if !known && e.saved == nil && b.entries[uid] == e {
		delete(b.entries, uid)
	}
	b.mu.Unlock()
	switch {
	case b.dir == "":
		return nil
	case !known:
		return b.remove(uid, e)
	}
	data, err := json.Marshal(record)
	if err != nil {
		return fmt.Errorf("note the resize of a pod: %w", err)
	}
	if bytes.Equal(data, e.saved) {
		return nil
	}
	if err := statedir.WriteFileAtomic(b.path(uid), data, fileMode); err != nil {
		return fmt.Errorf("note the resize of a pod: %w", err)
	}
	e.saved = data
	return nil
}

// remove removes the file of a pod. Called with the entry's writing held.
func (b *Book) remove(uid types.UID, e *entry) error {
	if e.saved == nil {
		return nil
	}
	if err := statedir.RemoveFile(b.path(uid)); err != nil {
		return fmt.Errorf("forget the resize of a pod: %w", err)
	}
	e.saved = nil
	return nil
}

// Note is Change, and Save.
func (b *Book) Note(uid types.UID, has resize.Allocation, change func(*resize.Record)) error {
	b.Change(uid, has, change)
	return b.Save(uid)
}

// Actuated implements executor.Resizes.
func (b *Book) Actuated(uid types.UID) (actuated resize.Actuated, resized bool) {
	record, resized := b.Get(uid)
	return record.Actuated, resized
}

// Actuate implements executor.Resizes.
func (b *Book) Actuate(pod *v1.Pod, note func(*resize.Actuated)) error {
	return b.Note(pod.UID, resize.Of(pod), func(r *resize.Record) { note(&r.Actuated) })
}

// path is the file of a pod. A UID may have characters that no name of a file has.
func (b *Book) path(uid types.UID) string {
	return filepath.Join(b.dir, url.PathEscape(string(uid))+suffix)
}
