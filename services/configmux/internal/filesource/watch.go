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

// How changes are noticed, as operators see it.
const (
	modeInotify = "inotify"
	modePolling = "polling"
)

// maxRewatch bounds how often the watches are set anew while the directories around the path keep changing; the next
// event, or the next full read, tries again.
const maxRewatch = 5

// watch is one set of inotify watches. When anything of it is to be different, all of it is replaced: that happens
// rarely, and a set is either what it should be or thrown away. All methods work on nil, which watches nothing.
type watch struct {
	watcher *fsnotify.Watcher
	targets targets
	// stale is true when a watched directory may not be the one of that name any more.
	stale bool
}

// targets is what has to be watched.
type targets struct {
	// dirs are directories by path, the one of the manifests first. The first is needed; the others are only not
	// readable for this user when they are not.
	dirs []directory
	// names are the base names in those directories whose change concerns the path. Everything in the directory of the
	// manifests does.
	names map[string]bool
	// followed are the links whose targets are watched.
	followed map[string]bool
}

// directory is a directory that is told from another one of its name.
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

// concerns reports whether an event outside the directory of the manifests has to do with them.
func (w *watch) concerns(path string) bool {
	return w != nil && (w.targets.names[filepath.Base(path)] ||
		slices.ContainsFunc(w.targets.dirs, func(d directory) bool { return d.path == path }))
}

// follows reports whether the target of a link is watched.
func (w *watch) follows(link string) bool { return w != nil && w.targets.followed[link] }

// leadsThrough reports whether a path is a directory that is watched, or a link whose target is.
func (w *watch) leadsThrough(path string) bool {
	return w.follows(path) || slices.ContainsFunc(w.targets.dirs, func(d directory) bool { return d.path == path })
}

// rewatch makes the watches what they should be. It has to come before looking at the files, so that no change falls
// between the two. Without inotify it says so once, and tries again only when everything is read.
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

// newWatch watches the targets. Its error is fs.ErrNotExist when one of them has gone in the meantime.
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

// remedy says what to do about a limit that inotify has reached: the kernel's own words for it speak of files and of
// space on a device.
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

// unwatch gives up the watches. Events that nobody has taken are lost with them, so who calls it looks at everything.
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
		s.cfg.Logger.Warn("cannot be notified of changes to the manifests; they are polled for instead",
			telemetry.KeyFile, s.cfg.Path, "interval", min(pollInterval, s.cfg.Period), telemetry.KeyError, err)
	} else if s.mode == modePolling {
		s.cfg.Logger.Info("notified of changes to the manifests again", telemetry.KeyFile, s.cfg.Path)
	}
	s.mode, s.changed = mode, true
}

// targets finds what has to be watched now: the directory of the manifests, what a link leads to, and, for the path
// itself to come, go or be replaced, its nearest existing parent.
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
			// A file that is a link of a config map: the swap is that of the hidden link beside it.
			t.names[configMapLink] = true
		}
	}
	return t
}

// configMapLink is the hidden link through which the files of a mounted config map lead, and which is replaced to swap
// all of them at once.
const configMapLink = "..data"

// add adds a directory, unless it is there already or is none, and reports whether it is one.
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
