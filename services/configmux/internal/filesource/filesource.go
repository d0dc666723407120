// Package filesource is the source "file": the pods of a manifest file, or of all manifests in a directory.
//
// It gives its full set of pods to a source.Sink, at once at the start, within a millisecond or two of a change through
// inotify, and after a full read every fileCheckFrequency, for what inotify cannot see. Manifests are decoded by
// staticpod; what the pods mean for those given before is for the mux to say.
//
// One goroutine owns everything: events and timers only tell it what to look at.
//
//	event on a file ──► look at that file ─────────────┐
//	event on the path, a link or the watched parent ──► look at what has another fingerprint ──► give the set
//	every fileCheckFrequency ──► read all again ───────┘
//
// A file that is renamed into place is whole and is read at once. One that is written in place may be half written, and
// one that is gone may be an editor's between two renames: those are looked at when they have been still for a moment.
// A file that cannot be read or decoded keeps the pods that it last had, through a restart too.
//
// A file that was removed and made again in that moment has not gone in any reading. Its pods have another life then.
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

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/configmux/internal/privilege"
	"github.com/quartet-node/quartet/services/configmux/internal/sealing"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
	"github.com/quartet-node/quartet/services/configmux/internal/staticpod"
)

// Name is the name of this source.
const Name = "file"

const (
	// pollInterval is how often the path is looked at while inotify is not to be had.
	pollInterval = time.Second
	// settleTime is how long a file that is written in place or gone must have been still before that counts. A writer
	// that does not rename writes a manifest in one go, or in pieces that are microseconds apart.
	settleTime = 20 * time.Millisecond
	// maxSettleTime is how long a file that changes again and again is waited for.
	maxSettleTime = time.Second
)

// Config is what a file source needs. All fields but Standalone must be set.
type Config struct {
	// Path is the file or directory; absolute.
	Path string
	// Node is the node's name.
	Node string
	// Allowed says which sources' pods may reach beyond their own walls.
	Allowed privilege.Allowed
	// Standalone is true on a node without an API server, where manifests may have config maps and secrets too.
	Standalone bool
	// Seals encrypts the secrets of the checkpoint.
	Seals *sealing.Keyring
	// Period is the time between full reads.
	Period time.Duration
	// Checkpoint is the file, in an existing directory, that keeps the pods for manifests which are broken at a restart.
	Checkpoint string
	Clock      clock.WithTicker
	Tracer     trace.Tracer
	Logger     *slog.Logger
	Metrics    *Metrics
}

// Source is the file source. It implements source.Source.
type Source struct {
	cfg  Config
	sink source.Sink

	// newWatcher begins to use inotify; tests make it fail.
	newWatcher func() (*fsnotify.Watcher, error)
	watch      *watch
	mode       string

	// isDir says what Path was when it was last looked at.
	isDir bool
	// files has every manifest by path.
	files map[string]*file
	// failure is why Path itself cannot be read; nil when it can.
	failure error
	// missing is true while Path does not exist.
	missing bool
	// readAt is when the last full read ended.
	readAt time.Time

	// restored has what the checkpoint has, by path, until the first full read.
	restored map[string]staticpod.Held
	keeper   *keeper

	// dirty has the files to look at now.
	dirty map[string]bool
	// unsettled has the files that may be between two states, and when to look at them.
	unsettled map[string]settling
	// removed has the manifests whose names were removed, until they are seen again or known to be gone.
	removed map[string]bool
	// lives counts the lives of manifests.
	lives uint64
	// relook asks to look at the path and everything in it.
	relook bool
	// causes has the traces of this turn's changes, by path.
	causes map[string]context.Context
	// changed says that this turn has something new to give.
	changed bool
}

// settling is a file that may be between two states.
type settling struct {
	since, due time.Time
}

// New returns the file source. It does nothing before Run.
func New(cfg Config) *Source {
	cfg.Path = filepath.Clean(cfg.Path)
	return &Source{
		cfg: cfg, newWatcher: fsnotify.NewWatcher, keeper: newKeeper(),
		files: map[string]*file{}, dirty: map[string]bool{}, unsettled: map[string]settling{}, removed: map[string]bool{},
	}
}

// Name implements source.Source.
func (s *Source) Name() string { return Name }

// Target implements source.Source.
func (s *Source) Target() string { return s.cfg.Path }

// Run implements source.Source. It never fails: whatever is wrong with the path is reported through the sink, and may
// be mended at any time.
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

// note takes in one event. It decides what to look at, and looks at nothing itself.
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
			// What is watched may be gone or another: a new one can have the inode of the old one. A file is watched by its
			// directory, which stays; another watch would lose the events that nobody has taken, a removal among them.
			s.watch.stale = s.watch.stale || event.Name != s.cfg.Path || s.watch.leadsThrough(s.cfg.Path)
		} else if !s.isDir {
			s.putOff(s.cfg.Path)
		}
	}
}

// noteEntry takes in an event on something in the directory.
func (s *Source) noteEntry(event fsnotify.Event) {
	if isHidden(event.Name) {
		// A hidden entry is no manifest, but links may lead through it: that is how config maps are swapped.
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

// noteRemoval takes in that the name of a manifest was removed, by a deletion or by a rename to another name. The file that has the
// name next is a new manifest, also when it has the same content. A rename onto the name removes nothing.
func (s *Source) noteRemoval(event fsnotify.Event) {
	if s.files[event.Name] != nil && (event.Has(fsnotify.Remove) || event.Has(fsnotify.Rename)) {
		s.removed[event.Name] = true
	}
}

// putOff leaves a file for when it has been still for a moment.
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

// notePending takes in the events that are there already, so that many changes at once become few readings.
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

// maxPending bounds how many events are taken in before they are acted on, so that a directory in which something
// happens all the time is read nevertheless.
const maxPending = 4096

// settled returns a channel that tells when the next file has been still long enough, and what releases its timer.
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

// turn looks at everything that was noted, or at all there is, and gives the outcome to the sink.
func (s *Source) turn(ctx context.Context, everything bool) {
	began := s.cfg.Clock.Now()
	// Until it has been read once, all of it counts at once: the first set must not lack what is only put off.
	everything = everything || s.readAt.IsZero()
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
		// A link has been found whose target is not watched yet.
		s.relook = false
		s.rewatch(false)
		s.lookAtAll(ctx, false, began)
	}
	if everything && s.failure == nil {
		s.readAt, s.restored = s.cfg.Clock.Now(), nil
	}
	s.cfg.Metrics.there(s.files)
	if s.changed {
		s.give()
	}
	if len(s.causes) > 0 {
		s.keep()
	}
}

// lookAtAll finds out what the path is now and looks at each manifest in it: for sure at all of them when everything
// is to be read again, else at those that have another fingerprint.
func (s *Source) lookAtAll(ctx context.Context, everything bool, began time.Time) {
	paths, isDir, err := list(s.cfg.Path)
	missing := errors.Is(err, fs.ErrNotExist)
	if missing {
		if !s.missing {
			s.cfg.Logger.Info("the path of the manifests does not exist; it counts as empty and is watched for", telemetry.KeyFile, s.cfg.Path)
		}
		err = nil
	}
	s.changed = s.changed || (err == nil) != (s.failure == nil) || missing != s.missing
	s.failure, s.missing = err, missing
	if err != nil {
		return
	}
	s.isDir = isDir
	there := make(map[string]bool, len(paths))
	for _, path := range paths {
		there[path] = true
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
		case there[path]:
		case !f.held.Empty():
			s.putOff(path)
		default:
			s.forget(ctx, path, began)
		}
	}
}
