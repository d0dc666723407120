// Package filesource is the source "file": the pods of a manifest file, or of all manifests in a directory.
//
// It passes its full set of pods to a source.Sink: at the start, within a millisecond or two of a change noticed by
// inotify, and after a full read every fileCheckFrequency, for changes that inotify misses. staticpod decodes the
// manifests; the mux compares the pods with the previous ones.
//
// One goroutine owns all state. Events and timers only trigger it:
//
//	event on a file ──► look at that file ─────────────┐
//	event on the path, a link or the watched parent ──► look at files with another fingerprint ──► pass the set
//	every fileCheckFrequency ──► read everything ──────┘
//
// A file that is renamed into place is complete and is read at once. A file that is written in place may be half
// written, and a missing file may be between two renames of an editor: they are looked at when they have been unchanged
// for a moment. A file that cannot be read or decoded keeps its last pods, also across a restart.
//
// A file that was removed and created again within that moment is present in every reading. Its pods then have another
// life.
package filesource

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/privilege"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/internal/watchdog"
	"github.com/quartet-node/quartet/services/configmux/internal/sealing"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
	"github.com/quartet-node/quartet/services/configmux/internal/staticpod"
)

// Name is the name of this source.
const Name = "file"

const (
	// pollInterval is the polling interval while inotify is unavailable.
	pollInterval = time.Second
	// settleTime is how long a missing file, or one that is written in place, must be unchanged before it is read. A
	// writer that does not rename writes a manifest at once, or in pieces that are microseconds apart.
	settleTime = 20 * time.Millisecond
	// maxSettleTime bounds the wait for a file that changes repeatedly.
	maxSettleTime = time.Second
)

// Config holds the parameters of a file source. All fields except Standalone are required.
type Config struct {
	// Path is the file or directory; absolute.
	Path string
	// Node is the node's name.
	Node string
	// Allowed lists the sources whose pods may have access to the host.
	Allowed privilege.Allowed
	// Standalone is true for a node without an API server, where manifests may contain config maps and secrets too.
	Standalone bool
	// Seals encrypts the secrets of the checkpoint.
	Seals *sealing.Keyring
	// Period is the interval of full reads.
	Period time.Duration
	// Checkpoint is the path of the checkpoint, in an existing directory, for manifests that are broken at a restart.
	Checkpoint string
	Clock      clock.WithTicker
	Tracer     trace.Tracer
	Logger     *slog.Logger
	Metrics    *Metrics
}

// Source is the file source. It implements source.Source.
type Source struct {
	cfg   Config
	sink  source.Sink
	steps *watchdog.Steps

	// newWatcher starts inotify; tests make it fail.
	newWatcher func() (*fsnotify.Watcher, error)
	watch      *watch
	mode       string

	// isDir reports whether Path was a directory when it was last examined.
	isDir bool
	// files maps the path of every manifest to its state.
	files map[string]*file
	// failure is the error of reading Path itself; nil if it is readable.
	failure error
	// missing is true while Path does not exist.
	missing bool
	// readAt is the end of the last full read.
	readAt time.Time

	// restored maps paths to the content of the checkpoint, until the first full read.
	restored map[string]staticpod.Held
	// unread is why the checkpoint cannot be read; nil if it was, or is not needed.
	unread error
	keeper *keeper

	// dirty is the set of files to look at now.
	dirty map[string]bool
	// unsettled maps files that may be between two states to the time to look at them.
	unsettled map[string]settling
	// removed is the set of manifests whose names were removed, until they are seen again or known to be gone.
	removed map[string]bool
	// lives counts the lives of manifests.
	lives uint64
	// relook requests a look at the path and everything in it.
	relook bool
	// causes maps paths to the traces of this turn's changes.
	causes map[string]context.Context
	// changed is true if this turn has something new for the sink.
	changed bool
}

// settling is the schedule of a file that may be between two states.
type settling struct {
	since, due time.Time
}

// New returns the file source. It does nothing before Run.
func New(cfg Config) *Source {
	cfg.Path = filepath.Clean(cfg.Path)
	return &Source{
		cfg: cfg, newWatcher: fsnotify.NewWatcher, keeper: newKeeper(), steps: watchdog.NewSteps(cfg.Clock, 0),
		files: map[string]*file{}, dirty: map[string]bool{}, unsettled: map[string]settling{}, removed: map[string]bool{},
	}
}

// Name implements source.Source.
func (s *Source) Name() string { return Name }

// Target implements source.Source.
func (s *Source) Target() string { return s.cfg.Path }

// Stands returns why the loop of the source stands still; nil if it turns, or waits for a disk.
func (s *Source) Stands() error { return s.steps.Stands() }

// Run implements source.Source. It never fails: problems with the path are reported through the sink, and may be solved
// at any time.
func (s *Source) Run(ctx context.Context, sink source.Sink) error {
	s.sink = sink
	defer s.unwatch()
	defer s.startKeeper()()
	full := s.cfg.Clock.NewTicker(s.cfg.Period)
	defer full.Stop()
	poll := s.cfg.Clock.NewTicker(min(pollInterval, s.cfg.Period))
	defer poll.Stop()

	s.turn(ctx, true)
	for {
		settled, stop := s.settled()
		var polled <-chan time.Time
		if s.watch == nil {
			polled = poll.C()
		}
		everything := false
		select {
		case <-ctx.Done():
			stop()
			return nil
		case event, ok := <-s.watch.events():
			s.note(event, ok)
			s.notePending()
		case err := <-s.watch.errors():
			s.cfg.Logger.Warn("file notifications were lost; everything is read again", telemetry.KeyError, err)
			everything = true
		case <-settled:
		case <-polled:
			s.relook = true
		case <-full.C():
			everything = true
		}
		stop()
		s.turn(ctx, everything)
	}
}

// note processes one event. It decides what to look at, and does no I/O.
func (s *Source) note(event fsnotify.Event, ok bool) {
	if !ok {
		s.unwatch()
		s.relook = true
		return
	}
	if s.isDir && filepath.Dir(event.Name) == s.cfg.Path {
		s.noteEntry(event)
		return
	}
	if s.watch.concerns(event.Name) {
		s.relook = true
		if event.Name == s.cfg.Path {
			s.noteRemoval(event)
		}
		if !event.Has(fsnotify.Write) {
			// The watched inode may be gone or replaced: a new directory can have the inode of the old one. A file is watched
			// through its directory, which stays; another watch would lose pending events, including a removal.
			s.watch.stale = s.watch.stale || event.Name != s.cfg.Path || s.watch.leadsThrough(s.cfg.Path)
		} else if !s.isDir {
			s.putOff(s.cfg.Path)
		}
	}
}

// noteEntry processes an event on an entry of the directory.
func (s *Source) noteEntry(event fsnotify.Event) {
	if isHidden(event.Name) {
		// A hidden entry is no manifest, but links may lead through it, as for a mounted config map.
		s.relook = s.relook || len(s.watch.targets.followed) > 0
		return
	}
	if event.Has(fsnotify.Write) {
		s.putOff(event.Name)
		return
	}
	s.noteRemoval(event)
	s.dirty[event.Name] = true
}

// noteRemoval records that the name of a manifest was removed, by a deletion or by a rename to another name. The next
// file of that name is a new manifest, even with the same content. A rename onto the name removes nothing.
func (s *Source) noteRemoval(event fsnotify.Event) {
	if s.files[event.Name] != nil && (event.Has(fsnotify.Remove) || event.Has(fsnotify.Rename)) {
		s.removed[event.Name] = true
	}
}

// putOff delays a file until it has been unchanged for a moment.
func (s *Source) putOff(path string) {
	now := s.cfg.Clock.Now()
	w, known := s.unsettled[path]
	if !known {
		w.since = now
	}
	w.due = now.Add(settleTime)
	if last := w.since.Add(maxSettleTime); w.due.After(last) {
		w.due = last
	}
	s.unsettled[path] = w
}

// notePending processes the pending events, so that many changes at once become few readings.
func (s *Source) notePending() {
	for range maxPending {
		if s.watch == nil {
			return
		}
		select {
		case event, ok := <-s.watch.events():
			s.note(event, ok)
		default:
			return
		}
	}
}

// maxPending bounds the number of events to process before acting on them, so that a busy directory is read
// nevertheless.
const maxPending = 4096

// settled returns a channel that fires when the next file has been unchanged long enough, and a function that releases
// its timer.
func (s *Source) settled() (<-chan time.Time, func()) {
	if len(s.unsettled) == 0 {
		return nil, func() {}
	}
	var next time.Time
	for _, w := range s.unsettled {
		if next.IsZero() || w.due.Before(next) {
			next = w.due
		}
	}
	timer := s.cfg.Clock.NewTimer(next.Sub(s.cfg.Clock.Now()))
	return timer.C(), func() { timer.Stop() }
}

// turn looks at everything that was noted, or at all files, and passes the result to the sink.
func (s *Source) turn(ctx context.Context, everything bool) {
	began := s.cfg.Clock.Now()
	// The first read does not delay files, because the first set must be complete.
	everything = everything || s.readAt.IsZero()
	s.restoreAgain()
	s.causes, s.changed = map[string]context.Context{}, everything
	for path, w := range s.unsettled {
		if !w.due.After(began) {
			delete(s.unsettled, path)
			s.look(ctx, path, lookForSure, began)
		}
	}
	if everything || s.relook {
		s.relook = false
		s.rewatch(everything)
		s.lookAtAll(ctx, everything, began)
	}
	for path := range s.dirty {
		delete(s.dirty, path)
		if s.isDir || path == s.cfg.Path {
			s.look(ctx, path, lookPatiently, began)
		}
	}
	if s.relook {
		// A link was found whose target is not watched yet.
		s.relook = false
		s.rewatch(false)
		s.lookAtAll(ctx, false, began)
	}
	if s.unread != nil && s.failure == nil && s.lacksCheckpoint() {
		s.failure = s.unread
	}
	if everything && s.failure == nil {
		s.readAt, s.restored, s.unread = s.cfg.Clock.Now(), nil, nil
	}
	s.cfg.Metrics.countPresent(s.files)
	s.steps.Do(func() {
		if s.changed {
			s.give()
		}
		if len(s.causes) > 0 && s.unread == nil {
			s.keep()
		}
	})
}

// lookAtAll determines the kind of the path and looks at each manifest in it: at all of them for a full read, and
// otherwise at those with another fingerprint.
func (s *Source) lookAtAll(ctx context.Context, everything bool, began time.Time) {
	paths, isDir, err := list(s.cfg.Path)
	missing := errors.Is(err, fs.ErrNotExist)
	if missing {
		if !s.missing {
			s.cfg.Logger.Info(
				"the path of the manifests does not exist; it counts as empty, and its creation is watched for",
				telemetry.KeyFile,
				s.cfg.Path,
			)
		}
		err = nil
	}
	s.changed = s.changed || (err == nil) != (s.failure == nil) || missing != s.missing
	s.failure, s.missing = err, missing
	if err != nil {
		return
	}
	s.isDir = isDir
	present := make(map[string]bool, len(paths))
	for _, path := range paths {
		present[path] = true
		if _, changing := s.unsettled[path]; changing && s.files[path] != nil {
			continue
		}
		how := lookIfChanged
		if everything {
			how = lookForSure
		}
		s.look(ctx, path, how, began)
	}
	for path, f := range s.files {
		switch {
		case present[path]:
		case !f.held.Empty():
			s.putOff(path)
		default:
			s.forget(ctx, path, began)
		}
	}
}
