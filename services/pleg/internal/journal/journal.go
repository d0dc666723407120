// Package journal stores on disk what pleg has published, so that a restarted pleg publishes what has happened in the
// meantime: once, as normal events. It also stores what pleg has observed, so that a restarted pleg inspects only the
// pods of which the runtime's lists show something else.
//
// It stores a cut through the stream of events: the token of the last event, and for each pod its published state at
// that event (record.Published: its sandboxes and containers, and their phases). The next pleg compares its first
// relist with the cut, and publishes the differences in a stream that continues from the cut (stream.Config.Continues).
//
//	Relister ──Note──► dirty pods, token ──► one goroutine ──► one line in the file
//	(holds its lock)   (memory only)         (may wait for the disk)
//
// # Exactly once
//
// Nothing waits for the disk: an event is published at once, and its line is written afterwards, within a millisecond
// on a healthy disk. A pleg that is killed in between leaves a cut that is older than its last events. The next pleg
// publishes those events again in its own stream. The tokens of followers prevent duplicates, because they identify the
// last received event:
//
//   - A follower with the token of the cut is resumed. It receives every event after the cut. So does a follower whose
//     snapshot is of the same event, and shows no container that was created since the cut (stream.Edge.Moved).
//   - A follower with any other token knows more or less than the cut. It receives a snapshot, and the stream reports
//     the reason (START_SNAPSHOT_EPOCH). It compares the snapshot with its state, as after every gap (stream.Follow),
//     so that it misses nothing and receives nothing twice.
//   - A follower without a token is new, and begins with a snapshot.
//
// A pod that the next pleg cannot inspect before the end of its first relist, 10 s, is in that snapshot without the
// results of its inspection. When the inspection succeeds, its events are withheld from each follower with another
// token (stream.Edge.Withhold), which receives another snapshot instead. The tokens of these followers are marked until
// then, so that a later pleg does the same; all others receive the events.
//
// So no follower receives an event twice, and none misses one without being notified of a gap. TestHistories of package
// relist verifies this.
//
// # The file
//
// Each line has a checksum and a JSON object (see entry). The first line has all pods, and each later one the changed
// pods. From time to time the file is replaced by one with a single line, so that its size is bounded by the number of
// pods. Lines have numbers, so that a file that was emptied while it was written does not pass for one with fewer pods.
// An incomplete last line is ignored: the cut is then the line before. Lines are not synced individually: they
// must survive the process, while a crash of the machine ends every container and every follower.
package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/pleg/internal/record"
)

const (
	// FileName is the name of the file in the state directory.
	FileName = "pleg-told"
	// again is the delay after a failed write before everything is written again.
	again = 10 * time.Second
	// maxTokens bounds the number of consecutive pleg runs without events whose followers are still resumed.
	maxTokens = 16
)

// Config holds the parameters of a Book.
type Config struct {
	// File is the file of the journal.
	File File
	// Path is the path of the file, for people.
	Path string
	// Observer identifies who makes the observations that are stored: the boot of the machine and the version of the
	// program. Those of another observer are compared with, and not taken over. Empty takes over none.
	Observer string
	// Clock times the retries.
	Clock clock.Clock
	// Logger logs problems for the operator.
	Logger *slog.Logger
	// Metrics counts the writes.
	Metrics *Metrics
}

// File is the interface of a Book to the disk. One goroutine calls its methods.
type File interface {
	// Read returns the content; fs.ErrNotExist if there is no file.
	Read() ([]byte, error)
	// Replace replaces the content, or fails and leaves it unchanged.
	Replace(data []byte) error
	// Append appends data to the content of Replace. If it fails, a part of data may have been written.
	Append(data []byte) error
	// SetAside renames the file, and returns its new name.
	SetAside() (name string, err error)
	// Close closes the file. Replace opens it again.
	Close() error
}

// Book stores what was published. Its methods are safe for concurrent use, and only Open and Run wait for the disk. A
// nil Book, that of a read-only pleg, stores nothing.
type Book struct {
	cfg Config
	// before and continues are the state at the end of the previous process; before is nil if that is unknown, and after
	// Complete.
	before    map[string]record.Published
	continues [][]byte

	mu sync.Mutex
	// begin is the token of the stream before its first event, and place the token after the last Note.
	begin, place []byte
	// dirty holds the noted and unwritten pods; the zero value for removed pods.
	dirty map[string]record.Pod
	// complete is true when the book has every pod.
	complete bool
	// wake has capacity one.
	wake chan struct{}

	// Only Run uses the following fields. written holds each pod as in the file, at first as the previous process has left
	// it, and at is its token.
	written map[string]pod
	at      []byte
	// size is the size of the file, base its size after the last Replace, and lines the number of its lines; broken is the
	// error of the last write.
	size, base, lines int
	broken            error
}

// Open reads the state of the previous process. It renames and logs an invalid file, and leaves an unreadable one; then
// nothing is known of the previous process.
func Open(cfg Config) *Book {
	b := &Book{
		cfg:     cfg,
		dirty:   map[string]record.Pod{},
		wake:    make(chan struct{}, 1),
		written: map[string]pod{},
	}
	data, err := cfg.File.Read()
	if errors.Is(err, fs.ErrNotExist) {
		return b
	}
	outcome := "the file is left as it is"
	if err == nil {
		var read *cut
		if read, err = decode(data, cfg.Observer); err == nil {
			b.before, b.written, b.continues, b.complete = read.published, read.pods, read.tokens, true
			return b
		}
		if name, failed := cfg.File.SetAside(); failed != nil {
			outcome = fmt.Sprintf("it cannot be renamed: %v", failed)
		} else {
			outcome = "it is now " + name
		}
	}
	cfg.Logger.Warn("the journal of the previous pleg cannot be used: changes of pods since then are visible in their state, but not published as events",
		telemetry.KeyFile, cfg.Path, telemetry.KeyError, err, "kept", outcome)
	return b
}

// Before returns the published state of each pod at the end of the previous process, by UID; known is false if it is
// unknown. It is called before Run and Complete.
func (b *Book) Before() (pods map[string]record.Published, known bool) {
	if b == nil || b.before == nil {
		return nil, false
	}
	return b.before, true
}

// Continues returns the tokens of followers that know exactly what Before returns.
func (b *Book) Continues() [][]byte {
	if b == nil {
		return nil
	}
	return b.continues
}

// Begin sets the token of this process's stream before its first event. It is called once, before Note.
func (b *Book) Begin(token []byte) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.begin, b.place = token, token
}

// Note stores the record of a pod after all its changes were published, and the token of the last event. The caller
// ensures that no event is published in between.
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

// Complete declares that every existing pod has been noted. Until then nothing is written, unless there was a file,
// because the next process would take missing pods for nonexistent ones. Before is over then.
func (b *Book) Complete() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.before, b.complete = nil, true
	b.signal()
}

// signal wakes Run. The caller holds mu.
func (b *Book) signal() {
	if !b.complete {
		return
	}
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// Run writes noted pods until ctx ends, and then the last ones. It logs and retries failed writes; it returns nil.
func (b *Book) Run(ctx context.Context) error {
	if b == nil {
		return nil
	}
	defer func() {
		b.write()
		if err := b.cfg.File.Close(); err != nil {
			b.cfg.Logger.Warn("cannot close the journal", telemetry.KeyFile, b.cfg.Path, telemetry.KeyError, err)
		}
	}()
	for {
		var retry <-chan time.Time
		stop := func() {}
		wake := b.wake
		if b.broken != nil {
			timer := b.cfg.Clock.NewTimer(again)
			// Pods that are noted in the meantime are written with the rest, so that a full disk is not tried for each event.
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

// write updates the file.
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
	if stream.SameEvent(place, begin) {
		line.Tokens = last(append(slices.Clone(b.continues), place), maxTokens)
	}
	b.fold(&line, dirty)
	if b.base > 0 && b.broken == nil && len(line.Pods) == 0 && len(line.Gone) == 0 && bytes.Equal(b.at, place) {
		return
	}
	b.at = place
	b.outcome(b.put(line))
}

// fold adds the pods that differ from the file to a line, and records them as written.
func (b *Book) fold(line *entry, dirty map[string]record.Pod) {
	for _, uid := range slices.Sorted(maps.Keys(dirty)) {
		published := dirty[uid].Published()
		if published.Status == nil {
			if _, known := b.written[uid]; known {
				line.Gone = append(line.Gone, uid)
				delete(b.written, uid)
			}
			continue
		}
		encoded, err := encodePod(published, b.cfg.Observer)
		if err != nil {
			// The runtime's text may be invalid UTF-8.
			b.cfg.Logger.Warn("cannot write a pod to the journal", telemetry.KeyPodUID, uid, telemetry.KeyError, err)
			continue
		}
		if before, known := b.written[uid]; !known || !before.same(encoded) {
			line.Pods = append(line.Pods, encoded)
			b.written[uid] = encoded
		}
	}
}

// put appends a line to the file, or replaces the file if it has grown or its content is unknown.
func (b *Book) put(line entry) error {
	// slack is the size that the file may exceed its pods by: a few thousand events of a small node, four times the pods
	// of a large one.
	const slack = 256 << 10
	if b.broken == nil && b.base > 0 && b.size < 4*b.base+slack {
		line.Line = b.lines + 1
		data, err := line.encode()
		if err != nil {
			return err
		}
		if err := b.cfg.File.Append(data); err != nil {
			return err
		}
		b.size, b.lines = b.size+len(data), b.lines+1
		return nil
	}
	full := entry{Version: version, Line: 1, Tokens: line.Tokens}
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
	b.size, b.base, b.lines = len(data), len(data), 1
	return nil
}

// outcome logs when writing begins to fail, and when it succeeds again.
func (b *Book) outcome(err error) {
	b.cfg.Metrics.wrote(b.size, err)
	switch {
	case err != nil && b.broken == nil:
		b.cfg.Logger.Warn("cannot write the journal; events continue, but a pleg that is restarted now may publish no events for changes in the meantime; retrying every 10 s",
			telemetry.KeyFile, b.cfg.Path, telemetry.KeyError, err)
	case err == nil && b.broken != nil:
		b.cfg.Logger.Info("the journal is written again", telemetry.KeyFile, b.cfg.Path)
	}
	b.broken = err
}

func last(tokens [][]byte, n int) [][]byte { return tokens[max(0, len(tokens)-n):] }
