// Package resizes keeps the records of resized pods on disk: the allocated resources, those that the containers run
// with, and the conditions in the status. A restarted syncloop continues from them. A pod that was never resized has no
// record, because the annotations of its containers have its resources. The sync loop writes allocations and a pod's
// worker what runs; package resize has the rules.
//
// Each pod has a small file, which is synced before an allocation is acted on, so that a crash loses none. A file that
// cannot be read is set aside, and the record is rebuilt from the running containers.
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
)

// Book has the records. Its methods may be called concurrently. Change and Forget work in memory and do not block; Save
// writes to disk.
type Book struct {
	dir string

	mu      sync.Mutex
	entries map[types.UID]*entry
	// lost has the pods whose file could not be read.
	lost map[types.UID]bool
	// unread is true if the directory could not be read.
	unread bool
}

// entry is one pod.
type entry struct {
	// writing is held over a write, because it orders the versions of the file. saved is the content of the file; nil
	// if there is none.
	writing sync.Mutex
	saved   []byte
	// known is true while there is a record. A record is replaced and never changed. Both are guarded by Book.mu.
	known  bool
	record resize.Record
}

// Open reads the records in a directory, which it creates if necessary. If that fails, the log says so, and
// Unread returns true.
func Open(dir string, logger *slog.Logger) *Book {
	b := InMemory()
	b.dir = dir
	files, err := statedir.OpenDir(dir)
	if err != nil {
		logger.Error("the records of resized pods cannot be read and are rebuilt from the running containers",
			telemetry.KeyFile, dir, telemetry.KeyError, err)
		b.unread = true
	}
	for _, file := range files {
		name, named := strings.CutSuffix(file.Name(), suffix)
		uid, err := url.PathUnescape(name)
		if !named || err != nil { // set aside, or left by a crash during a write
			continue
		}
		path := filepath.Join(dir, file.Name())
		record, data, err := read(path)
		if err == nil {
			b.entries[types.UID(uid)] = &entry{known: true, record: record, saved: data}
			continue
		}
		logger.Error("the record of a resized pod is damaged and is rebuilt from the running containers",
			telemetry.KeyPodUID, uid, telemetry.KeyError, statedir.SetAside(path, err))
		b.lost[types.UID(uid)] = true
	}
	return b
}

// InMemory returns an empty book without files.
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
		return resize.Record{}, nil, errors.New("it has no containers")
	}
	return record, data, nil
}

// Get returns the record of a pod, which must not be changed; ok is false for a pod that was never resized.
func (b *Book) Get(uid types.UID) (record resize.Record, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.entries[uid]; e != nil && e.known {
		return e.record, true
	}
	return resize.Record{}, false
}

// Lost reports whether the record of a pod could not be read and has not been written since.
func (b *Book) Lost(uid types.UID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lost[uid]
}

// Unread reports whether the directory could not be read, so that any pod of an earlier process may have lost a record.
func (b *Book) Unread() bool { return b.unread }

// UIDs returns the pods with a record, sorted.
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

// Change changes the record of a pod in memory. Without a record it begins with the allocation has.
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

// Forget drops the record of a pod in memory.
func (b *Book) Forget(uid types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.entries[uid]; e != nil {
		e.record, e.known = resize.Record{}, false
	}
	delete(b.lost, uid)
}

// Save writes the current record of a pod to disk, or removes the file if there is none. After an error a restarted
// process has the version before it.
func (b *Book) Save(uid types.UID) error {
	b.mu.Lock()
	e := b.entries[uid]
	b.mu.Unlock()
	if e == nil {
		return nil
	}
	e.writing.Lock() // over the write, because it orders the versions of the file
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
		return fmt.Errorf("write the record of a resized pod: %w", err)
	}
	if bytes.Equal(data, e.saved) {
		return nil
	}
	err = statedir.WriteIn(b.dir, func() error { return statedir.WriteFileAtomic(b.path(uid), data, fileMode) })
	if err != nil {
		return fmt.Errorf("write the record of a resized pod: %w", err)
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
		return fmt.Errorf("remove the record of a resized pod: %w", err)
	}
	e.saved = nil
	return nil
}

// Note calls Change and Save.
func (b *Book) Note(uid types.UID, has resize.Allocation, change func(*resize.Record)) error {
	b.Change(uid, has, change)
	return b.Save(uid)
}

// Actuated implements executor.Resizes. A pod without its newest allocation has nothing to finish: that one comes next.
func (b *Book) Actuated(pod *v1.Pod) (actuated resize.Actuated, resized bool) {
	record, resized := b.Get(pod.UID)
	actuated = record.Actuated
	actuated.Unfinished = actuated.Unfinished && record.Allocated.Equal(resize.Of(pod))
	return actuated, resized
}

// Actuate implements executor.Resizes. A pod without its newest allocation cannot finish the resize.
func (b *Book) Actuate(pod *v1.Pod, note func(*resize.Actuated)) error {
	has := resize.Of(pod)
	return b.Note(pod.UID, has, func(r *resize.Record) {
		unfinished := r.Actuated.Unfinished
		note(&r.Actuated)
		if !r.Allocated.Equal(has) {
			r.Actuated.Unfinished = unfinished
		}
	})
}

// path returns the file of a pod. A UID may have characters that a file name must not have.
func (b *Book) path(uid types.UID) string {
	return filepath.Join(b.dir, url.PathEscape(string(uid))+suffix)
}
