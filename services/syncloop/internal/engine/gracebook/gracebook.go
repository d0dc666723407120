// Package gracebook keeps on disk which pods are being ended and until when, so that a syncloop that was killed in the middle
// gives them what is left of their grace period when it is back, and not the whole of it again, and runs no preStop hook
// again that has ended. It also keeps which containers were stopped because another one takes their place: their ends are not
// the end of the pod. Neither the source nor the runtime knows of it.
//
// There is one small file for each pod, written when the first of these is known and removed when nothing of the pod runs. It has to survive
// this process and not the machine, whose boot ends every pod: nothing waits for the disk.
package gracebook

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/statedir"
)

const (
	dirMode  = 0o700
	fileMode = 0o600
	suffix   = ".json"
)

// Config says where a Book is kept and by which clock.
type Config struct {
	// Dir is the directory of the files, made when it is not there.
	Dir string
	// Boot names this boot of the machine: what was written in another one is dropped.
	Boot string
	// Now is the time since the boot: boottime.Now. Nobody can set that clock, so no step of the time of day lengthens or
	// shortens a grace period.
	Now func() time.Duration
}

// Book has the pods that are being ended. Its methods may be called by anyone; those that write wait for the files of
// their own pod only.
type Book struct {
	cfg Config

	mu      sync.Mutex
	entries map[types.UID]*entry
}

// entry is one pod.
type entry struct {
	// mu is held over the write of the file: it orders the versions of one pod's file.
	mu     sync.Mutex
	record record
	// known is a copy of record for those who read and must not wait for the disk.
	known atomic.Pointer[record]
	// gone is true once the pod is forgotten: nothing is to be written any more.
	gone bool
}

// record is what a file has.
type record struct {
	// Boot is Config.Boot.
	Boot string `json:"boot"`
	// Deadline is when the grace period is over, as the time since the boot, in nanoseconds; 0 when no end was asked for.
	Deadline time.Duration `json:"deadlineNs,omitempty"`
	// PreStopped has the IDs of the containers whose preStop hook has ended. One that was begun and interrupted is not among them.
	PreStopped []string `json:"preStopEnded,omitempty"`
	// Replaced has the IDs of the containers that are stopped because another one takes their place.
	Replaced []string `json:"replaced,omitempty"`
}

func newEntry(r record) *entry {
	e := &entry{record: r}
	e.publish()
	return e
}

// publish lets readers see the record. Called with mu held.
func (e *entry) publish() {
	known := e.record
	known.PreStopped, known.Replaced = slices.Clone(known.PreStopped), slices.Clone(known.Replaced)
	e.known.Store(&known)
}

// Open reads the book in a directory. A file that cannot be understood, or that is of another boot, is removed: its pod then
// has its grace period anew. It fails when the directory cannot be made, read or tidied.
func Open(cfg Config) (*Book, error) {
	b := InMemory(cfg.Now)
	b.cfg = cfg
	if err := os.MkdirAll(cfg.Dir, dirMode); err != nil {
		return nil, fmt.Errorf("the directory of pods that are being ended: %w", err)
	}
	files, err := os.ReadDir(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("the pods that are being ended: %w", err)
	}
	for _, file := range files {
		path := filepath.Join(cfg.Dir, file.Name())
		uid, named := strings.CutSuffix(file.Name(), suffix)
		if r, ok := read(path); named && ok && r.Boot == cfg.Boot {
			b.entries[types.UID(uid)] = newEntry(r)
			continue
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("the pods that are being ended: %w", err)
		}
	}
	return b, nil
}

// InMemory returns an empty book that nothing survives.
func InMemory(now func() time.Duration) *Book {
	return &Book{cfg: Config{Now: now}, entries: map[types.UID]*entry{}}
}

func read(path string) (r record, ok bool) {
	data, err := os.ReadFile(path)
	return r, err == nil && json.Unmarshal(data, &r) == nil
}

// Left notes that a pod is being ended with a grace period, and returns how much of it is left, in whole seconds and at least
// 1: the first call begins it, and a later one with a shorter period that would be over sooner shortens it. The seconds are
// right also when there is an error: then a restarted process would not know of them.
func (b *Book) Left(uid types.UID, grace int64) (int64, error) {
	now := b.cfg.Now()
	var left int64
	err := b.change(uid, func(r *record) bool {
		deadline := now + time.Duration(grace)*time.Second
		sooner := r.Deadline == 0 || deadline < r.Deadline
		if sooner {
			r.Deadline = deadline
		}
		left = seconds(r.Deadline - now)
		return sooner
	})
	return left, err
}

// Remaining returns how much is left of the grace period of a pod that is being ended; ok is false for a pod that is not.
func (b *Book) Remaining(uid types.UID) (left int64, ok bool) {
	deadline, ok := b.Deadline(uid)
	if !ok {
		return 0, false
	}
	return seconds(deadline - b.cfg.Now()), true
}

// Deadline returns until when a pod that is being ended has to stop, as the time since the boot; ok is false for a pod that is
// not being ended.
func (b *Book) Deadline(uid types.UID) (deadline time.Duration, ok bool) {
	known := b.known(uid)
	return known.Deadline, known.Deadline != 0
}

// known is what is known of a pod. It waits for no file.
func (b *Book) known(uid types.UID) record {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.entries[uid]; e != nil {
		return *e.known.Load()
	}
	return record{}
}

// seconds rounds up to whole seconds, at least one.
func seconds(d time.Duration) int64 {
	return max(1, int64((d+time.Second-1)/time.Second))
}

// PreStopped tells whether the preStop hook of a container has ended.
func (b *Book) PreStopped(pod types.UID, container string) bool {
	return slices.Contains(b.known(pod).PreStopped, container)
}

// NotePreStop notes that the preStop hook of a container has ended. This process knows it also when there is an error.
func (b *Book) NotePreStop(pod types.UID, container string) error {
	return b.change(pod, func(r *record) bool { return addTo(&r.PreStopped, container) })
}

// Replaced tells whether a container was stopped because another one takes its place.
func (b *Book) Replaced(pod types.UID, container string) bool {
	return slices.Contains(b.known(pod).Replaced, container)
}

// NoteReplaced notes that a container is about to be stopped because another one takes its place. This process knows it also when
// there is an error.
func (b *Book) NoteReplaced(pod types.UID, container string) error {
	return b.change(pod, func(r *record) bool { return addTo(&r.Replaced, container) })
}

// addTo adds a container to a list that does not have it, and tells whether it was added.
func addTo(list *[]string, container string) bool {
	if slices.Contains(*list, container) {
		return false
	}
	*list = append(*list, container)
	return true
}

// ForgetContainer drops what is known of a container that is gone while its pod stays.
func (b *Book) ForgetContainer(pod types.UID, container string) error {
	b.mu.Lock()
	known := b.entries[pod] != nil
	b.mu.Unlock()
	if !known {
		return nil
	}
	empty := false
	err := b.change(pod, func(r *record) bool {
		had := len(r.PreStopped) + len(r.Replaced)
		isIt := func(id string) bool { return id == container }
		r.PreStopped, r.Replaced = slices.DeleteFunc(r.PreStopped, isIt), slices.DeleteFunc(r.Replaced, isIt)
		has := len(r.PreStopped) + len(r.Replaced)
		empty = r.Deadline == 0 && has == 0
		return has != had
	})
	if empty {
		return errors.Join(err, b.Forget(pod))
	}
	return err
}

// UIDs returns the pods that something is known of, in order.
func (b *Book) UIDs() []types.UID {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Sorted(maps.Keys(b.entries))
}

// Forget drops a pod: nothing of it runs any more.
func (b *Book) Forget(uid types.UID) error {
	b.mu.Lock()
	e := b.entries[uid]
	delete(b.entries, uid)
	b.mu.Unlock()
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.gone = true
	if b.cfg.Dir == "" {
		return nil
	}
	if err := os.Remove(b.path(uid)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget the end of a pod: %w", err)
	}
	return nil
}

// change applies a change to a pod's record, and writes it when there is one.
func (b *Book) change(uid types.UID, apply func(*record) bool) error {
	b.mu.Lock()
	e := b.entries[uid]
	if e == nil {
		e = newEntry(record{Boot: b.cfg.Boot})
		b.entries[uid] = e
	}
	b.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	if !apply(&e.record) {
		return nil
	}
	e.publish()
	if b.cfg.Dir == "" || e.gone {
		return nil
	}
	data, err := json.Marshal(e.record)
	if err != nil {
		return fmt.Errorf("note the end of a pod: %w", err)
	}
	// Not synced: see the package's comment.
	if err := statedir.ReplaceFile(b.path(uid), data, fileMode); err != nil {
		return fmt.Errorf("note the end of a pod: %w", err)
	}
	return nil
}

func (b *Book) path(uid types.UID) string {
	return filepath.Join(b.cfg.Dir, string(uid)+suffix)
}
