// Package gracebook keeps on disk which pods are being terminated and until when. A syncloop that was killed during a
// termination gives the pod the rest of its grace period after the restart, and does not repeat a preStop hook that has
// ended. The book also has the containers that were stopped because another one takes their place, because their end is
// not the end of the pod. Neither the source nor the runtime knows of these.
//
// Each pod has one small file. It is written with the first of these facts and removed when nothing of the pod runs. It
// has to survive this process, but not a reboot, which ends every pod. Therefore no write is synced to the disk.
package gracebook

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
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
	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	dirMode  = 0o700
	fileMode = 0o600
	suffix   = ".json"
)

// errUnlisted is why the file of a pod was not read, if the directory could not be read.
var errUnlisted = errors.New("the directory of the records cannot be read")

// Config has the place of a Book and its clock.
type Config struct {
	// Dir is the directory of the files. It is created if it does not exist.
	Dir string
	// Node is the name of this node. A file of another one is damaged; empty accepts any.
	Node string
	// Boot identifies this boot of the machine. Files of another boot are removed.
	Boot string
	// Now returns the time since the boot: boottime.Now. That clock cannot be set, so a step of the wall clock does not
	// lengthen or shorten a grace period.
	Now    func() time.Duration
	Logger *slog.Logger
}

// Book has the pods that are being terminated. Its methods may be called concurrently. Those that write wait only for
// the file of their own pod.
type Book struct {
	cfg Config

	// unlisted is true if the directory could not be read, so that any pod may have a file that is not known.
	unlisted bool

	mu      sync.Mutex
	entries map[types.UID]*entry
}

// entry is one pod.
type entry struct {
	// mu is held over a write, which statedir.Inform bounds, because it orders the versions of the pod's file.
	mu     sync.Mutex
	record record
	file   statedir.Writer
	// known is a copy of record for readers, which must not wait for the disk.
	known atomic.Pointer[record]
	// unsaved is true if the last write failed; the next change writes again.
	unsaved bool
	// unread is why the file cannot be read; nil if it was read or there is none.
	unread error
	// gone is true once the pod is forgotten. Nothing is written after that.
	gone bool
}

// record is the content of a file.
type record struct {
	// Boot is Config.Boot.
	Boot string `json:"boot"`
	// Deadline is the end of the grace period, as the time since the boot in nanoseconds; 0 if the pod is not being
	// terminated.
	Deadline time.Duration `json:"deadlineNs,omitempty"`
	// PreStopped has the IDs of the containers whose preStop hook has ended. A hook that was interrupted is not among
	// them.
	PreStopped []string `json:"preStopEnded,omitempty"`
	// Replaced has the IDs of the containers that are stopped because another one takes their place.
	Replaced []string `json:"replaced,omitempty"`
}

func newEntry(r record) *entry {
	e := &entry{record: r}
	e.publish()
	return e
}

// publish makes the record visible to readers. Called with mu held.
func (e *entry) publish() {
	known := e.record
	known.PreStopped, known.Replaced = slices.Clone(known.PreStopped), slices.Clone(known.Replaced)
	e.known.Store(&known)
}

// Open reads the book in a directory. A damaged file is set aside, and the grace period of its pod starts again. A file
// that cannot be read stays, and each change of its pod reads it again. A file of another boot is removed. If the
// directory cannot be created or read, the log says so, and each file is read when its pod is ended.
func Open(cfg Config) *Book {
	b := InMemory(cfg.Now)
	b.cfg = cfg
	files, err := statedir.OpenDir(cfg.Dir)
	var damaged *statedir.DamagedError
	if err != nil {
		cfg.Logger.Error("the records of terminating pods cannot be read: their grace periods start again",
			telemetry.KeyFile, cfg.Dir, telemetry.KeyError, err)
		b.unlisted = !errors.As(err, &damaged)
	}
	for _, file := range files {
		if statedir.IsAside(file.Name()) {
			continue
		}
		path := filepath.Join(cfg.Dir, file.Name())
		uid, named := strings.CutSuffix(file.Name(), suffix)
		var r record
		if named {
			if err := statedir.LoadChecked(path, cfg.Node, &r, nil); err != nil {
				cfg.Logger.Error("the record of a terminating pod is lost: its grace period starts again, unless the file can be read later",
					telemetry.KeyPodUID, uid, telemetry.KeyError, err)
				if statedir.IsUnreadable(err) {
					e := newEntry(record{Boot: cfg.Boot})
					e.unread = err
					b.entries[types.UID(uid)] = e
				}
				continue
			}
			if r.Boot == cfg.Boot {
				b.entries[types.UID(uid)] = newEntry(r)
				continue
			}
		}
		if err := os.Remove(path); err != nil { // of another boot, or half written
			cfg.Logger.Warn("cannot remove an old record of a terminating pod; it is not used",
				telemetry.KeyFile, path, telemetry.KeyError, err)
		}
	}
	return b
}

// InMemory returns an empty book without files.
func InMemory(now func() time.Duration) *Book {
	return &Book{cfg: Config{Now: now}, entries: map[types.UID]*entry{}}
}

// Left records that a pod is being terminated with a grace period, and returns the remaining whole seconds, at least 1.
// The first call starts the period. A later call with an earlier end shortens it. The seconds are also right with an
// error, which means that a restarted process would not know the deadline.
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

// Remaining returns the remaining seconds of the grace period of a pod; ok is false if the pod is not being terminated.
func (b *Book) Remaining(uid types.UID) (left int64, ok bool) {
	deadline, ok := b.Deadline(uid)
	if !ok {
		return 0, false
	}
	return seconds(deadline - b.cfg.Now()), true
}

// Deadline returns the end of the grace period of a pod, as the time since the boot; ok is false if the pod is not
// being terminated.
func (b *Book) Deadline(uid types.UID) (deadline time.Duration, ok bool) {
	known := b.known(uid)
	return known.Deadline, known.Deadline != 0
}

// known returns the record of a pod, empty if there is none. It does not wait for the disk.
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

// PreStopped reports whether the preStop hook of a container has ended.
func (b *Book) PreStopped(pod types.UID, container string) bool {
	return slices.Contains(b.known(pod).PreStopped, container)
}

// NotePreStop records that the preStop hook of a container has ended. After an error only this process knows it.
func (b *Book) NotePreStop(pod types.UID, container string) error {
	return b.change(pod, func(r *record) bool { return addTo(&r.PreStopped, container) })
}

// Replaced reports whether a container was stopped because another one takes its place.
func (b *Book) Replaced(pod types.UID, container string) bool {
	return slices.Contains(b.known(pod).Replaced, container)
}

// NoteReplaced records that a container is about to be stopped because another one takes its place. After an error only
// this process knows it.
func (b *Book) NoteReplaced(pod types.UID, container string) error {
	return b.change(pod, func(r *record) bool { return addTo(&r.Replaced, container) })
}

// addTo adds a container to a list, and reports whether it was missing.
func addTo(list *[]string, container string) bool {
	if slices.Contains(*list, container) {
		return false
	}
	*list = append(*list, container)
	return true
}

// ForgetContainer drops the records of a container that was removed while its pod stays.
func (b *Book) ForgetContainer(pod types.UID, container string) error {
	b.mu.Lock()
	known := b.entries[pod] != nil
	b.mu.Unlock()
	if !known {
		return nil
	}
	empty := false
	err := b.change(pod, func(r *record) bool {
		before := len(r.PreStopped) + len(r.Replaced)
		isIt := func(id string) bool { return id == container }
		r.PreStopped, r.Replaced = slices.DeleteFunc(r.PreStopped, isIt), slices.DeleteFunc(r.Replaced, isIt)
		has := len(r.PreStopped) + len(r.Replaced)
		empty = r.Deadline == 0 && has == 0
		return has != before
	})
	if empty {
		return errors.Join(err, b.Forget(pod))
	}
	return err
}

// UIDs returns the pods in the book, sorted.
func (b *Book) UIDs() []types.UID {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Sorted(maps.Keys(b.entries))
}

// Forget drops a pod, because nothing of it runs any more.
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
	err := e.file.Write(func() error { return os.Remove(b.path(uid)) })
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the record of a terminating pod: %w", err)
	}
	return nil
}

// change applies a change to a pod's record, and writes the record if apply returns true.
func (b *Book) change(uid types.UID, apply func(*record) bool) error {
	b.mu.Lock()
	e := b.entries[uid]
	if e == nil {
		e = newEntry(record{Boot: b.cfg.Boot})
		if b.unlisted {
			e.unread = errUnlisted
		}
		b.entries[uid] = e
	}
	b.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	b.readAgain(uid, e)
	if !apply(&e.record) && !e.unsaved {
		return nil
	}
	e.publish()
	if b.cfg.Dir == "" || e.gone {
		return nil
	}
	if e.unsaved = e.unread != nil; e.unsaved {
		return fmt.Errorf("the record of a terminating pod is not replaced: %w", e.unread)
	}
	data, err := json.Marshal(e.record)
	if err == nil {
		data, err = statedir.WithChecksum(data, b.cfg.Node)
	}
	if err != nil {
		return fmt.Errorf("write the record of a terminating pod: %w", err)
	}
	// Not synced: see the package comment.
	err = e.file.Write(func() error {
		return statedir.WriteIn(b.cfg.Dir, func() error { return statedir.ReplaceFile(b.path(uid), data, fileMode) })
	})
	e.unsaved = err != nil
	if err != nil {
		return fmt.Errorf("write the record of a terminating pod: %w", err)
	}
	return nil
}

// readAgain reads a file that could not be read, and adds what it has to the record: the earlier deadline counts.
// Called with the entry's mu held.
func (b *Book) readAgain(uid types.UID, e *entry) {
	if e.unread == nil {
		return
	}
	var r record
	if err := statedir.LoadChecked(b.path(uid), b.cfg.Node, &r, nil); statedir.IsUnreadable(err) {
		e.unread = err
		return
	} else if e.unread = nil; err != nil || r.Boot != b.cfg.Boot {
		return // missing, damaged and set aside, or of another boot
	}
	if e.record.Deadline == 0 || r.Deadline != 0 && r.Deadline < e.record.Deadline {
		e.record.Deadline = r.Deadline
	}
	for _, id := range r.PreStopped {
		addTo(&e.record.PreStopped, id)
	}
	for _, id := range r.Replaced {
		addTo(&e.record.Replaced, id)
	}
	e.publish()
}

func (b *Book) path(uid types.UID) string {
	return filepath.Join(b.cfg.Dir, string(uid)+suffix)
}
