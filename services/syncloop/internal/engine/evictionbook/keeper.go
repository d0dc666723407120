package evictionbook

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
)

// keeper reads and writes the file of a book. Each call of the file has a goroutine of its own, one at a time, so that
// the spare file is kept up to date while the disk of the file hangs. Only run and what it calls use the fields.
type keeper struct {
	book *Book
	// tried is closed after the first attempt to read the file.
	tried chan struct{}
	// done has the end of the call of the file that is under way; busy is true until it was taken.
	done chan func()
	busy bool
	// found is what an earlier process has left in the spare file; nil for nothing, or if it was not read yet.
	found     *spareRecord
	spareRead bool
	// spared is the version that was written into the spare file last.
	spared int
	// failed is true while writes fail, and unspared while the spare file cannot be written either.
	failed, unspared bool
	// retry is the time after which a failed call is repeated; 0 for none.
	retry time.Duration
}

// spareRecord is the content of the spare file.
type spareRecord struct {
	Evictions map[types.UID]podstore.Eviction `json:"evictions"`
	// Partial is true for what is to be added to the file, which could not be read. Otherwise the spare file is the whole
	// book, and newer than the file.
	Partial bool `json:"partial,omitempty"`
	// Deleted are pods whose eviction is to be removed from the file.
	Deleted []types.UID `json:"deleted,omitempty"`
}

func newKeeper(b *Book) *keeper {
	return &keeper{book: b, tried: make(chan struct{}), done: make(chan func(), 1)}
}

// run reads the file, writes it whenever that is requested, and repeats what fails. After close it makes a last
// attempt.
func (k *keeper) run() {
	w := k.book.writer
	defer close(w.ended)
	k.attempt()
	for closing := w.closing; closing != nil || k.busy; {
		again, stop := k.again()
		select {
		case <-w.requested:
			k.attempt()
		case <-again:
			k.attempt()
		case end := <-k.done:
			k.busy = false
			end()
		case <-closing:
			closing = nil
			k.attempt()
		}
		stop()
	}
}

// again returns when the next attempt is due; nil if none is.
func (k *keeper) again() (due <-chan time.Time, stop func()) {
	if k.retry == 0 || k.busy {
		return nil, func() {}
	}
	timer := k.book.cfg.Clock.NewTimer(k.retry)
	return timer.C(), func() { timer.Stop() }
}

// attempt writes the spare file, and begins to read or to write the file unless it is busy.
func (k *keeper) attempt() {
	b, w := k.book, k.book.writer
	if !k.spareRead && !k.readSpare() {
		return
	}
	b.mu.Lock()
	version, unread, record := b.version, b.unread, spareRecord{Evictions: maps.Clone(b.entries)}
	if record.Partial = unread != nil; record.Partial {
		record.Deleted = slices.Sorted(maps.Keys(b.dropped))
	}
	b.mu.Unlock()
	if w.has(version) && unread == nil {
		k.retry = 0
		return
	}
	if version != k.spared {
		k.saveSpare(version, record)
	}
	if unread != nil {
		w.report(version, unread)
		k.call(k.read)
		return
	}
	k.call(func() func() { return k.write(version, record.Evictions) })
}

// call calls the file in a goroutine, which ends with the call, however long the disk hangs. What the call returns is
// run by the goroutine of run.
func (k *keeper) call(file func() func()) {
	if k.busy {
		return
	}
	k.busy = true
	go func() { k.done <- file() }()
}

// readSpare reads the spare file, and reports whether the file is to be read or written now.
func (k *keeper) readSpare() bool {
	b := k.book
	record, err := spareRecord{}, error(fs.ErrNotExist)
	if b.cfg.Spare != "" {
		valid := func() error {
			if record.Evictions == nil {
				return errors.New("it has no evictions")
			}
			return nil
		}
		err = statedir.LoadChecked(b.cfg.Spare, b.cfg.Node, &record, valid)
	}
	switch {
	case statedir.IsUnreadable(err):
		k.wasRead(err)
		b.writer.report(b.present(), err)
		return false
	case err == nil:
		k.found = &record
	case !errors.Is(err, fs.ErrNotExist):
		b.cfg.Logger.Error("the spare record of the evicted pods is damaged: those of the time when the disk could not be used start again if a source still names them",
			telemetry.KeyFile, b.cfg.Spare, telemetry.KeyError, err)
	}
	k.spareRead = true
	if k.found == nil {
		return true
	}
	if !record.Partial {
		b.add(record.Evictions, true)
		k.wasRead(nil)
		return true
	}
	b.add(record.Evictions, false)
	b.mu.Lock()
	for _, uid := range record.Deleted {
		b.dropped[uid] = true
	}
	b.mu.Unlock()
	return true
}

// read reads the file. What was recorded since the start, and what is in the spare file, is added to it.
func (k *keeper) read() func() {
	b := k.book
	entries := map[types.UID]podstore.Eviction{}
	err := statedir.LoadChecked(b.cfg.Path, b.cfg.Node, &entries, nil)
	if statedir.IsUnreadable(err) {
		return func() { k.wasRead(err) }
	}
	changed := k.found != nil
	var damaged *statedir.DamagedError
	if errors.As(err, &damaged) {
		entries = salvage(damaged.Now())
		b.cfg.Logger.Error("the record of the evicted pods is damaged: those that it lost start again if a source still names them",
			telemetry.KeyFile, b.cfg.Path, "recovered", len(entries), telemetry.KeyError, err)
		changed = true // what was recovered is written
	}
	return func() {
		b.add(entries, changed)
		k.wasRead(nil)
		k.attempt()
	}
}

// wasRead notes whether the book is complete.
func (k *keeper) wasRead(unread error) {
	b := k.book
	b.complete(unread)
	isFirst := false
	select {
	case <-k.tried:
	default:
		isFirst = true
		close(k.tried)
	}
	if k.retry = nextRetry(k.retry, unread); unread == nil && !isFirst {
		b.cfg.Logger.Info("the record of the evicted pods is read", telemetry.KeyFile, b.cfg.Path, "pods", len(b.UIDs()))
	}
}

// saveSpare writes the spare file.
func (k *keeper) saveSpare(version int, record spareRecord) {
	b := k.book
	if b.cfg.Spare == "" {
		k.unspared = true
		return
	}
	data, err := encode(record, b.cfg.Node)
	if err == nil {
		err = statedir.ReplaceFile(b.cfg.Spare, data, fileMode)
	}
	if err != nil && !k.unspared {
		b.cfg.Logger.Warn("the spare record of the evicted pods cannot be written: evictions are lost if syncloop is killed before they are in the record itself",
			telemetry.KeyFile, b.cfg.Spare, telemetry.KeyError, err)
	}
	if k.unspared = err != nil; err == nil {
		k.spared = version
	}
}

// write writes the file.
func (k *keeper) write(version int, entries map[types.UID]podstore.Eviction) func() {
	b := k.book
	data, err := encode(entries, b.cfg.Node)
	if err == nil {
		err = b.cfg.Reserve.Write(func() error { return statedir.WriteFileAtomic(b.cfg.Path, data, fileMode) })
	}
	return func() { k.wasWritten(version, err) }
}

// wasWritten removes the spare file, unless that has a later version, and reports the end of a write.
func (k *keeper) wasWritten(version int, err error) {
	b := k.book
	if err == nil && b.cfg.Spare != "" && k.spared <= version {
		err = statedir.RemoveFile(b.cfg.Spare) // otherwise it would count at the next start
	}
	b.writer.report(version, err)
	switch {
	case err != nil && !k.failed:
		b.cfg.Logger.Error("the record of the evicted pods cannot be written, and is retried: "+k.consequence()+
			"; check the disk of the state directory", telemetry.KeyFile, b.cfg.Path, telemetry.KeyError, err)
	case err == nil && k.failed:
		b.cfg.Logger.Info("the record of the evicted pods is written again", telemetry.KeyFile, b.cfg.Path)
	}
	k.failed, k.retry = err != nil, nextRetry(k.retry, err)
	if err == nil {
		k.attempt()
	}
}

// consequence returns what the end of this process would do while the book cannot be written.
func (k *keeper) consequence() string {
	if !k.unspared {
		return "until then it is in " + k.book.cfg.Spare + ", which a restart of the machine removes"
	}
	return "a syncloop that is killed now would start evicted pods again"
}

// encode returns the content of a file.
func encode(content any, node string) ([]byte, error) {
	data, err := json.MarshalIndent(content, "", "  ")
	if err != nil {
		return nil, err
	}
	return statedir.WithChecksum(data, node)
}
