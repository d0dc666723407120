package filesource

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/internal/telemetry"
)

// The modes of noticing changes, for operators.
const (
	modeInotify = "inotify"
	modePolling = "polling"
)

// maxRewatch bounds how often the watches are recreated while the directories around the path keep changing; the next
// event, or the next full read, tries again.
const maxRewatch = 5

// watch is one set of inotify watches. A change replaces the whole set, because changes are rare and a set is then
// either correct or closed. A nil watch is valid and watches nothing.
type watch struct {
	watcher *fsnotify.Watcher
	targets targets
	// stale is true if a watched directory may have been replaced.
	stale bool
}

// targets is the set of directories and names to watch.
type targets struct {
	// dirs are the directories, the one of the manifests first. The first one is required; the others are missing only if
	// this user cannot read them.
	dirs []directory
	// names are the base names in those directories whose changes affect the path. Every change in the directory of the
	// manifests does.
	names map[string]bool
	// followed is the set of links whose targets are watched.
	followed map[string]bool
}

// directory identifies a directory by path and inode.
type directory struct {
	path          string
	device, inode uint64
}

func (w *watch) events() <-chan fsnotify.Event {
	if w == nil {
		return nil
	}
	return w.watcher.Events
}

func (w *watch) errors() <-chan error {
	if w == nil {
		return nil
	}
	return w.watcher.Errors
}

// concerns reports whether an event outside of the manifests' directory affects them.
func (w *watch) concerns(path string) bool {
	return w != nil && (w.targets.names[filepath.Base(path)] ||
		slices.ContainsFunc(w.targets.dirs, func(d directory) bool { return d.path == path }))
}

// follows reports whether the target of a link is watched.
func (w *watch) follows(link string) bool { return w != nil && w.targets.followed[link] }

// leadsThrough reports whether a path is a watched directory, or a link whose target is watched.
func (w *watch) leadsThrough(path string) bool {
	return w.follows(path) || slices.ContainsFunc(w.targets.dirs, func(d directory) bool { return d.path == path })
}

// rewatch updates the watches. It must precede the look at the files, so that no change is missed in between. Without
// inotify it reports that once, and retries only with a full read.
func (s *Source) rewatch(tryAgain bool) {
	if s.watch == nil && s.mode == modePolling && !tryAgain {
		return
	}
	for range maxRewatch {
		want := s.targets()
		if s.watch != nil && !s.watch.stale && want.equal(s.watch.targets) {
			s.watch.targets = want
			return
		}
		s.unwatch()
		fresh, err := s.newWatch(want)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			s.setMode(modePolling, err)
			return
		}
		s.watch = fresh
		s.setMode(modeInotify, nil)
	}
}

// newWatch watches the targets. The error is fs.ErrNotExist if one of them has disappeared.
func (s *Source) newWatch(want targets) (*watch, error) {
	watcher, err := s.newWatcher()
	if err != nil {
		return nil, fmt.Errorf("begin to use inotify: %w%s", err, remedy(err))
	}
	for i, dir := range want.dirs {
		err := watcher.Add(dir.path)
		if err == nil || i > 0 && errors.Is(err, fs.ErrPermission) {
			continue
		}
		return nil, errors.Join(fmt.Errorf("watch %s: %w%s", dir.path, err, remedy(err)), watcher.Close())
	}
	return &watch{watcher: watcher, targets: want}, nil
}

// remedy returns the advice for an exhausted inotify limit, because the kernel's error messages for it are about files
// and disk space.
func remedy(err error) string {
	switch {
	case errors.Is(err, unix.ENOSPC):
		return ": the limit of inotify watches is reached: raise the sysctl fs.inotify.max_user_watches"
	case errors.Is(err, unix.EMFILE):
		return ": the limit of inotify instances is reached: raise the sysctl fs.inotify.max_user_instances, or the limit of open files of this process"
	case errors.Is(err, unix.ENFILE):
		return ": the limit of open files of the machine is reached: raise the sysctl fs.file-max"
	default:
		return ""
	}
}

// unwatch closes the watches. Pending events are lost, so the caller looks at everything.
func (s *Source) unwatch() {
	if s.watch == nil {
		return
	}
	if err := s.watch.watcher.Close(); err != nil {
		s.cfg.Logger.Warn("cannot close inotify", telemetry.KeyError, err)
	}
	s.watch = nil
}

func (s *Source) setMode(mode string, err error) {
	if s.mode == mode {
		return
	}
	if err != nil {
		s.cfg.Logger.Warn("cannot watch the manifests with inotify; polling for changes instead",
			telemetry.KeyFile, s.cfg.Path, "interval", min(pollInterval, s.cfg.Period), telemetry.KeyError, err)
	} else if s.mode == modePolling {
		s.cfg.Logger.Info("watching the manifests with inotify again", telemetry.KeyFile, s.cfg.Path)
	}
	s.mode, s.changed = mode, true
}

// targets returns what to watch now: the directory of the manifests, the targets of links, and, to notice changes of
// the path itself, its nearest existing parent.
func (s *Source) targets() targets {
	t := targets{names: map[string]bool{}, followed: map[string]bool{}}
	paths, isDir, err := list(s.cfg.Path)
	if err == nil && isDir {
		t.add(s.cfg.Path)
	}
	for child := s.cfg.Path; ; child = filepath.Dir(child) {
		parent := filepath.Dir(child)
		if t.add(parent) || parent == child {
			t.names[filepath.Base(child)] = true
			break
		}
	}
	if isDir {
		paths = append(paths, s.cfg.Path)
	}
	for _, path := range paths {
		if !isLink(path) {
			continue
		}
		t.followed[path] = true
		if end, err := filepath.EvalSymlinks(path); err == nil {
			t.add(filepath.Dir(end))
			t.names[filepath.Base(end)] = true
		}
		if !isDir {
			// The file is a link into a mounted config map, which is updated by replacing the hidden link beside it.
			t.names[configMapLink] = true
		}
	}
	return t
}

// configMapLink is the hidden link of a mounted config map, which is replaced to update all its files at once.
const configMapLink = "..data"

// add adds a directory, unless it is present or not a directory, and reports whether it is one.
func (t *targets) add(path string) bool {
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return false
	}
	print := fingerprintOf(info)
	dir := directory{path: path, device: print.device, inode: print.inode}
	for _, known := range t.dirs {
		if known.device == dir.device && known.inode == dir.inode {
			return true
		}
	}
	t.dirs = append(t.dirs, dir)
	return true
}

// equal reports whether the same directories have to be watched.
func (t targets) equal(other targets) bool { return slices.Equal(t.dirs, other.dirs) }
