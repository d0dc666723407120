// Package resizes keeps the records of resized pods on disk: the allocated resources, those that the containers run
// with, and the conditions in the status. A restarted syncloop continues from them. A pod that was never resized has no
// record, because the annotations of its containers have its resources. The sync loop writes allocations and a pod's
// worker what runs; package resize has the rules.
//
// Each pod has a small file, which is synced before an allocation is acted on, so that a crash loses none. A damaged
// file is set aside, and the record is rebuilt from the running containers. A file that cannot be read stays, and is
// read again: its pod keeps what its containers run with until then.
package resizes

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/url"
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
	dir, node string

	mu      sync.Mutex
	entries map[types.UID]*entry
	// lost has the pods whose file was damaged, and allLost is true if the directory was.
	lost    map[types.UID]bool
	allLost bool
	// unread has why files cannot be read, and unlisted why the directory cannot be read; nil if it was read.
	unread   map[types.UID]error
	unlisted error
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

// Open reads the records of a node in a directory, which it creates if necessary. The log says which ones it cannot
// read. A file of another node is damaged; an empty name accepts any.
func Open(dir, node string, logger *slog.Logger) *Book {
	b := InMemory()
	b.dir, b.node = dir, node
	b.list(logger)
	for uid, err := range b.unread {
		logger.Error("the record of a resized pod cannot be read, and is tried again: the pod is not resized before",
			telemetry.KeyPodUID, string(uid), telemetry.KeyError, err)
	}
	if b.unlisted != nil {
		logger.Error("the records of resized pods cannot be read, and are tried again: no pod is resized before",
			telemetry.KeyFile, dir, telemetry.KeyError, b.unlisted)
	}
	return b
}

// list reads all files. A record in a file replaces what is known of its pod.
func (b *Book) list(logger *slog.Logger) {
	files, err := statedir.OpenDir(b.dir)
	var damaged *statedir.DamagedError
	isDamaged := errors.As(err, &damaged)
	if isDamaged {
		logger.Error("the records of resized pods are damaged and are rebuilt from the running containers",
			telemetry.KeyFile, b.dir, telemetry.KeyError, err)
		err = nil
	}
	b.mu.Lock()
	b.allLost, b.unlisted = isDamaged, err
	b.mu.Unlock()
	for _, file := range files {
		name, named := strings.CutSuffix(file.Name(), suffix)
		if uid, err := url.PathUnescape(name); named && err == nil { // else set aside, or left by a crash during a write
			b.load(types.UID(uid), logger)
		}
	}
}

// load reads the file of a pod, and reports whether that is over: it was read, is damaged, or is not there.
func (b *Book) load(uid types.UID, logger *slog.Logger) bool {
	record, data, err := b.read(b.path(uid))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		data, err = nil, nil
	case err != nil && !statedir.IsUnreadable(err):
		logger.Error("the record of a resized pod is damaged and is rebuilt from the running containers",
			telemetry.KeyPodUID, string(uid), telemetry.KeyError, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.unread, uid)
	switch {
	case statedir.IsUnreadable(err):
		b.unread[uid] = err
		if e := b.entries[uid]; e == nil {
			b.entries[uid] = &entry{saved: []byte{}} // there is a file to remove
		}
		return false
	case err != nil:
		b.lost[uid] = true
	case data != nil:
		b.entries[uid] = &entry{known: true, record: record, saved: data}
	}
	return true
}

// InMemory returns an empty book without files.
func InMemory() *Book {
	return &Book{entries: map[types.UID]*entry{}, lost: map[types.UID]bool{}, unread: map[types.UID]error{}}
}

func (b *Book) read(path string) (record resize.Record, data []byte, err error) {
	data, err = statedir.Read(path)
	if err != nil {
		return resize.Record{}, nil, err
	}
	err = statedir.LoadChecked(path, b.node, &record, func() error {
		if record.Allocated.Containers == nil {
			return errors.New("it has no containers")
		}
		return nil
	})
	if err != nil {
		return resize.Record{}, nil, err
	}
	return record, data, nil
}

// Unread returns why the record of a pod cannot be read; nil if it was read or there is none. The pod keeps what its
// containers run with, and nothing is written of it.
func (b *Book) Unread(uid types.UID) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.whyUnread(uid)
}

// whyUnread is Unread. Called with mu held.
func (b *Book) whyUnread(uid types.UID) error {
	return cmp.Or(b.unread[uid], b.unlisted)
}

// Problem returns why records cannot be read; nil if all were.
func (b *Book) Problem() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, uid := range slices.Sorted(maps.Keys(b.unread)) {
		return b.unread[uid]
	}
	return b.unlisted
}

// ReadAgain reads the records that could not be read, and returns the pods whose records are known now. What was
// changed of them meanwhile is dropped. It waits for the disk.
func (b *Book) ReadAgain(logger *slog.Logger) []types.UID {
	b.mu.Lock()
	waiting, unlisted := slices.Sorted(maps.Keys(b.unread)), b.unlisted != nil
	b.mu.Unlock()
	if unlisted {
		b.list(logger)
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.unlisted != nil {
			return nil
		}
		return slices.Collect(maps.Keys(b.entries))
	}
	return slices.DeleteFunc(waiting, func(uid types.UID) bool { return !b.load(uid, logger) })
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

// Lost reports whether the record of a pod was damaged, or cannot be read, and has not been written since.
func (b *Book) Lost(uid types.UID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lost[uid] || b.unread[uid] != nil
}

// AllLost reports whether the directory was damaged, or cannot be read, so that any pod of an earlier process may have
// lost a record.
func (b *Book) AllLost() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.allLost || b.unlisted != nil
}

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
	delete(b.unread, uid)
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
	record, known, unread := e.record, e.known, b.whyUnread(uid)
	if !known && e.saved == nil && b.entries[uid] == e {
		delete(b.entries, uid)
	}
	b.mu.Unlock()
	switch {
	case b.dir == "":
		return nil
	case unread != nil:
		return fmt.Errorf("the record of a resized pod is not replaced: %w", unread)
	case !known:
		return b.remove(uid, e)
	}
	data, err := json.Marshal(record)
	if err == nil {
		data, err = statedir.WithChecksum(data, b.node)
	}
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
