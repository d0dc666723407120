// Package journal keeps on disk what pleg has told its followers, so that a pleg that was killed tells, when it is back, what has
// happened meanwhile: once, as events like any other.
//
// What is kept is a cut through the stream of events: the token of the last event, and of each pod what was told by then
// (record.Told: its sandboxes and containers, and how far these are). The next pleg compares its first relist with it, and
// publishes the differences in a stream that goes on where the cut is (stream.Config.Continues).
//
//	Relister ──Note──► dirty pods, token ──► one goroutine ──► one line in the file
//	(holds its lock)   (memory only)         (may wait for the disk)
//
// # Exactly once
//
// Nothing waits for the disk: an event goes to its followers at once, and its line is written after it, within a
// millisecond on a disk that is well. A pleg that is killed in between leaves a cut that is older than what it has told. The
// next one then publishes those events again, in its own stream; what keeps them from a follower that has them already is the
// token, since a follower's token says up to where it was told:
//
//   - the token of the cut: the follower has been told what the cut says, and is resumed. It gets every event after the cut.
//   - any other: the follower knows more than the cut, or less. It gets a snapshot, and the stream says why (START_SNAPSHOT_EPOCH).
//     It compares that with what it holds, as after every gap; stream.Follow does so. That tells it what it misses, and nothing
//     twice.
//   - none: it is new, and begins with a snapshot.
//
// A pod that the next one cannot inspect until its first relist is over, 10 s, is in that snapshot without what its inspection
// says. When that works at last, the events of it are withheld from each follower of "any other" (stream.Edge.Withhold): he gets another
// snapshot in place of them. His tokens are marked until then, so that a pleg after the next one does the same; all others get
// the events.
//
// So no follower gets an event twice, and none misses one without being told that there is a gap. TestHistories of package relist
// tries it.
//
// # The file
//
// Each line has a checksum and a JSON object (see entry). The first has everything, and each later one the pods that have
// changed; from time to time the file is replaced by one of a single line, so that its size is bounded by the number of
// pods. A line that was cut off at the end is left out: the cut is then the line before. Lines are not synced one by one: they
// have to survive the process, and a crash of the machine ends every container and every follower.
package journal

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/pleg/internal/record"
)

const (
	// FileName is the name of the file in the state directory.
	FileName = "pleg-told"
	// again is how long after a write that failed everything is written anew.
	again = 10 * time.Second
	// maxTokens bounds the runs of pleg in a row in which nothing happened and whose followers are resumed all the same.
	maxTokens = 16
)

// Config says where a Book is kept.
type Config struct {
	// File is where it is written to.
	File File
	// Path is its name, for people.
	Path string
	// Clock times what is tried again.
	Clock clock.Clock
	// Logger gets what an operator should know.
	Logger *slog.Logger
	// Metrics counts.
	Metrics *Metrics
}

// File is what a Book needs of the disk. Its methods are called by one goroutine.
type File interface {
	// Read returns all that is there; an error that is fs.ErrNotExist when there is nothing.
	Read() ([]byte, error)
	// Replace makes data all that is there, or fails and leaves what was there.
	Replace(data []byte) error
	// Append adds data at the end of what Replace has put there. When it fails, a part of data may be there.
	Append(data []byte) error
	// PutAside gives what is there another name, which it returns.
	PutAside() (name string, err error)
	// Close gives up what is held open. Replace opens it again.
	Close() error
}

// Book keeps what was told. Its methods may be called by anyone, and never wait for the disk, but Open and Run. A nil Book
// remembers nothing and keeps nothing: that of a pleg that only reads.
type Book struct {
	cfg Config
	// before and continues are what was told before this process; before is nil when that is not known.
	before    map[string]record.Told
	continues [][]byte

	mu sync.Mutex
	// begin is the token of the stream before its first event, place after what was noted last.
	begin, place []byte
	// dirty are the pods that were noted and not written; those that are gone are the zero value.
	dirty map[string]record.Pod
	// complete is true once the book has every pod.
	complete bool
	// wake has room for one.
	wake chan struct{}

	// The rest is Run's: written has each pod as the file has it, at first as the process before has left it, and at the
	// token that it has.
	written map[string]json.RawMessage
	at      []byte
	// size is that of the file, base what it was when it was replaced last; broken is why the last write failed.
	size, base int
	broken     error
}

// Open reads what was told before this process. A file that cannot be understood is put aside with a line in the log, and one
// that cannot be read is left; then it is as if nothing had been told.
func Open(cfg Config) *Book {
	b := &Book{cfg: cfg, dirty: map[string]record.Pod{}, wake: make(chan struct{}, 1), written: map[string]json.RawMessage{}}
	data, err := cfg.File.Read()
	if errors.Is(err, fs.ErrNotExist) {
		return b
	}
	aside := "the file is left as it is"
	if err == nil {
		var had *cut
		if had, err = decode(data); err == nil {
			b.before, b.written, b.continues, b.complete = had.told, had.pods, had.tokens, true
			return b
		}
		if name, failed := cfg.File.PutAside(); failed != nil {
			aside = fmt.Sprintf("it cannot be put aside: %v", failed)
		} else {
			aside = "it is now " + name
		}
	}
	cfg.Logger.Warn("what pleg had told before its restart cannot be used: what has happened to pods since shows in their state, and makes no events",
		telemetry.KeyFile, cfg.Path, telemetry.KeyError, err, "kept", aside)
	return b
}

// Before returns what had been told of each pod before this process, by UID; known is false when nothing is known of that.
func (b *Book) Before() (pods map[string]record.Told, known bool) {
	if b == nil || b.before == nil {
		return nil, false
	}
	return b.before, true
}

// Continues returns the tokens that followers hold who have been told just what Before returns.
func (b *Book) Continues() [][]byte {
	if b == nil {
		return nil
	}
	return b.continues
}

// Begin says which token this process' stream has before its first event. It is called once, before Note.
func (b *Book) Begin(token []byte) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.begin, b.place = token, token
}

// Note takes what is on record of a pod once all of it was told, and the token of the last event. The caller sees to it that
// no event is told between these two.
func (b *Book) Note(uid string, pod record.Pod, token []byte) {
	if b == nil {
		return
	}
	if pod.Gone() && pod.Inspected() {
		pod = record.Pod{}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dirty[uid], b.place = pod, token
	b.signal()
}

// Complete says that every pod that there is has been noted. Until then nothing is written, unless there was a file: half of the
// pods look like a node on which the others do not exist.
func (b *Book) Complete() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.complete = true
	b.signal()
}

// signal wakes Run. Called with mu held.
func (b *Book) signal() {
	if !b.complete {
		return
	}
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// Run writes what is noted until ctx ends, and then once more what is left. What cannot be written is said in the log, and
// tried again; it returns nil.
func (b *Book) Run(ctx context.Context) error {
	if b == nil {
		return nil
	}
	defer func() {
		b.write()
		if err := b.cfg.File.Close(); err != nil {
			b.cfg.Logger.Warn("cannot close what pleg has told", telemetry.KeyFile, b.cfg.Path, telemetry.KeyError, err)
		}
	}()
	for {
		var retry <-chan time.Time
		stop := func() {}
		wake := b.wake
		if b.broken != nil {
			timer := b.cfg.Clock.NewTimer(again)
			// What is noted meanwhile is written with the rest: a disk that is full is not asked for each event.
			retry, stop, wake = timer.C(), func() { timer.Stop() }, nil
		}
		select {
		case <-ctx.Done():
			stop()
			return nil
		case <-wake:
		case <-retry:
		}
		b.write()
	}
}

// write brings the file up to what was noted.
func (b *Book) write() {
	b.mu.Lock()
	dirty, place, begin, complete := b.dirty, b.place, b.begin, b.complete
	if !complete {
		b.mu.Unlock()
		return
	}
	b.dirty = map[string]record.Pod{}
	b.mu.Unlock()

	line := entry{Version: version, Tokens: [][]byte{place}}
	if bytes.Equal(place, begin) {
		line.Tokens = last(append(slices.Clone(b.continues), place), maxTokens)
	}
	b.fold(&line, dirty)
	if b.base > 0 && b.broken == nil && len(line.Pods) == 0 && len(line.Gone) == 0 && bytes.Equal(b.at, place) {
		return
	}
	b.at = place
	b.outcome(b.put(line))
}

// fold puts the pods that differ from what is written into a line, and takes them for written.
func (b *Book) fold(line *entry, dirty map[string]record.Pod) {
	for _, uid := range slices.Sorted(maps.Keys(dirty)) {
		told := dirty[uid].Told()
		if told.Status == nil {
			if _, known := b.written[uid]; known {
				line.Gone = append(line.Gone, uid)
				delete(b.written, uid)
			}
			continue
		}
		pod, err := encodePod(told)
		if err != nil {
			// Its parts are what a runtime has said, which may be no UTF-8.
			b.cfg.Logger.Warn("what was told of a pod cannot be kept over a restart", telemetry.KeyPodUID, uid, telemetry.KeyError, err)
			continue
		}
		if !bytes.Equal(b.written[uid], pod) {
			line.Pods = append(line.Pods, pod)
			b.written[uid] = pod
		}
	}
}

// put adds a line to the file, or replaces the file when it has grown, and when it is not known what it has.
func (b *Book) put(line entry) error {
	// slack is how much more than its pods the file may have: a few thousand events of a small node, four times the pods
	// of a large one.
	const slack = 256 << 10
	if b.broken == nil && b.base > 0 && b.size < 4*b.base+slack {
		data, err := line.encode()
		if err != nil {
			return err
		}
		if err := b.cfg.File.Append(data); err != nil {
			return err
		}
		b.size += len(data)
		return nil
	}
	full := entry{Version: version, Tokens: line.Tokens}
	for _, uid := range slices.Sorted(maps.Keys(b.written)) {
		full.Pods = append(full.Pods, b.written[uid])
	}
	data, err := full.encode()
	if err != nil {
		return err
	}
	if err := b.cfg.File.Replace(data); err != nil {
		return err
	}
	b.size, b.base = len(data), len(data)
	return nil
}

// outcome says when writing begins to fail, and when it works again.
func (b *Book) outcome(err error) {
	b.cfg.Metrics.wrote(b.size, err)
	switch {
	case err != nil && b.broken == nil:
		b.cfg.Logger.Warn("cannot keep what pleg has told; events go on, but a pleg that is restarted now may show what happened meanwhile in the state of pods only; trying again every 10 s",
			telemetry.KeyFile, b.cfg.Path, telemetry.KeyError, err)
	case err == nil && b.broken != nil:
		b.cfg.Logger.Info("what pleg has told is kept again", telemetry.KeyFile, b.cfg.Path)
	}
	b.broken = err
}

func last(tokens [][]byte, n int) [][]byte { return tokens[max(0, len(tokens)-n):] }
