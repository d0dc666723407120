// Package evictionbook keeps on disk which pods were evicted and are still named by their source. A restarted syncloop
// reads it and does not start them again, because neither the source nor the runtime knows of an eviction. The book
// also has the pods of the API server that ran to their end and whose ended containers were removed because the disk
// was full: only the book shows that they ran.
//
// What the book says counts at once, also while it cannot be written: a pod is evicted above all when the disk is full.
// One goroutine writes the file, and retries until it succeeds. Meanwhile a spare file on another disk has the book,
// or, while the book cannot be read either, the evictions of that time.
package evictionbook

import (
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

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
	// Spare is a file for the book on another disk, for example in memory, while it cannot be written at Path; empty for
	// none. Beside it is a file for the evictions of the time in which the book cannot be read.
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
	// spared is true if the spare file has the last change that was to be written. Only the goroutine that writes uses it.
	spared bool
	// kept is the version in the file of meanwhile, and attempt is closed when the last read of readAgain has ended. Only
	// the goroutine that writes uses them.
	kept    int
	attempt <-chan struct{}
}

// Open reads the book; it is empty if there is no file. A damaged file is set aside: what can be read of it counts, and
// evicted pods that are missing in it start again. A file that cannot be read stays, see Unread. The log says so. A
// spare file counts instead, because it is there only if it is newer.
func Open(cfg Config) *Book {
	ended := make(chan struct{})
	close(ended)
	b := &Book{cfg: cfg, entries: map[types.UID]podstore.Eviction{}, dropped: map[types.UID]bool{}, attempt: ended}
	b.recall()
	b.read()
	if err := b.Unread(); err != nil {
		cfg.Logger.Error("the record of the evicted pods cannot be read, and is tried again: pods of which nothing runs are not started before",
			telemetry.KeyFile, cfg.Path, telemetry.KeyError, err)
	}
	b.writer = newWriter(cfg.Clock)
	go b.write()
	if b.version > 0 || b.unread != nil {
		b.writer.request()
	}
	return b
}

// read reads the file, and adds to it what has changed since the start. It sets unread.
func (b *Book) read() {
	entries, changed := b.readSpare()
	var err error
	if !changed {
		entries = map[types.UID]podstore.Eviction{}
		err = statedir.LoadChecked(b.cfg.Path, b.cfg.Node, &entries, nil)
	}
	var damaged *statedir.DamagedError
	if errors.As(err, &damaged) {
		entries = salvage(damaged.Now())
		b.cfg.Logger.Error("the record of the evicted pods is damaged: those that it lost start again if a source still names them",
			telemetry.KeyFile, b.cfg.Path, "recovered", len(entries), telemetry.KeyError, err)
		changed = true // what was recovered is written
	}
	before := len(entries)
	maps.DeleteFunc(entries, b.ofAnotherBoot)
	changed = changed || len(entries) < before

	b.mu.Lock()
	defer b.mu.Unlock()
	b.unread = nil
	if statedir.IsUnreadable(err) {
		b.unread = err
		return
	}
	for uid, e := range entries {
		if !b.dropped[uid] {
			b.entries[uid] = e // a pod that was evicted before keeps its first reason
		}
	}
	if clear(b.dropped); changed {
		b.version++
	}
}

// ofAnotherBoot reports whether an eviction is valid for an earlier boot only.
func (b *Book) ofAnotherBoot(_ types.UID, e podstore.Eviction) bool {
	return e.Boot != "" && e.Boot != b.cfg.Boot
}

// readSpare reads the spare file; ok is false if there is none or it is damaged.
func (b *Book) readSpare() (entries map[types.UID]podstore.Eviction, ok bool) {
	data, err := os.ReadFile(b.cfg.Spare)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false
	}
	if err == nil {
		data, err = statedir.Checked(data, b.cfg.Node)
	}
	if err == nil {
		err = json.Unmarshal(data, &entries)
	}
	if err != nil {
		b.cfg.Logger.Error("the spare record of the evicted pods is damaged: those of the time when the disk could not be written start again if a source still names them",
			telemetry.KeyFile, b.cfg.Spare, telemetry.KeyError, err)
	}
	return entries, err == nil
}

// Unread returns why the file cannot be read; nil if the book is complete. Until then any pod may have been evicted,
// and changes are not written. The file is tried again and again.
func (b *Book) Unread() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.unread
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

// Close writes what is not on disk yet, unless the disk hangs, and ends the writer.
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

// await returns whether a version is on disk.
func (b *Book) await(version int) bool {
	b.writer.request()
	return b.writer.await(version)
}

// write writes the file whenever that is requested, and again after a while if it fails.
func (b *Book) write() {
	defer close(b.writer.ended)
	failed := false
	for retry := time.Duration(0); b.writer.next(retry); {
		if !b.readAgain() {
			b.writer.report(b.present())
			retry = nextRetry(retry, errUnwritten)
			continue
		}
		b.mu.Lock()
		version, entries := b.version, maps.Clone(b.entries)
		b.mu.Unlock()
		if b.writer.has(version) {
			retry = 0
			continue
		}
		err := b.save(entries)
		b.writer.report(version, err)
		switch {
		case err != nil && !failed:
			b.cfg.Logger.Error("the record of the evicted pods cannot be written, and is retried: "+b.consequence()+
				"; check the disk of the state directory", telemetry.KeyFile, b.cfg.Path, telemetry.KeyError, err)
		case err == nil && failed:
			b.cfg.Logger.Info("the record of the evicted pods is written again", telemetry.KeyFile, b.cfg.Path)
		}
		failed, retry = err != nil, nextRetry(retry, err)
	}
}

// present returns the version of the book, and why it cannot be written.
func (b *Book) present() (version int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.version, b.unread
}

// encode returns the content of a file with evictions.
func (b *Book) encode(entries map[types.UID]podstore.Eviction) ([]byte, error) {
	data, err := json.MarshalIndent(entries, "", "  ")
	if err != nil {
		return nil, err
	}
	return statedir.WithChecksum(data, b.cfg.Node)
}

func (b *Book) save(entries map[types.UID]podstore.Eviction) error {
	data, err := b.encode(entries)
	if err != nil {
		return err
	}
	b.spared = b.cfg.Spare != "" && statedir.ReplaceFile(b.cfg.Spare, data, fileMode) == nil
	err = b.cfg.Reserve.Write(func() error {
		return statedir.WriteFileAtomic(b.cfg.Path, data, fileMode)
	})
	if err == nil && b.cfg.Spare != "" {
		// otherwise they would count at the next start
		err = errors.Join(statedir.RemoveFile(b.cfg.Spare), statedir.RemoveFile(b.meanwhile()))
	}
	return err
}

// consequence returns what the end of this process would do while the book cannot be written.
func (b *Book) consequence() string {
	if b.spared {
		return "until then it is in " + b.cfg.Spare + ", which a restart of the machine removes"
	}
	return "a syncloop that is killed now would start evicted pods again"
}
