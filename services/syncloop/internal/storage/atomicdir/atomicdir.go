// Package atomicdir writes the files of a volume atomically: a reader sees either all old files or all new ones. The
// layout is the kubelet's, because programs that watch for changes rely on it:
//
//	DIR/..data -> ..2026_01_02_15_04_05.123456789   the current version; an update is one rename of this link
//	DIR/..2026_01_02_15_04_05.123456789/            the files of a version, which never change
//	DIR/NAME -> ..data/NAME                         what containers see, a file or a directory
//
// The kubelet's AtomicWriter is not used, because it cannot clean up after a kill between two steps, and depends on
// much of Kubernetes. Nothing is synced to the disk: containers do not survive a crash of the machine, and before
// others start, the content is compared and written again if necessary.
package atomicdir

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumecontent"
)

// The names reserved for the directory itself, which begin with "..": no file of a volume does.
const (
	dataLink    = "..data"
	newDataLink = "..data_tmp"
	// versionLayout is the layout of a version's time, in UTC; a number follows.
	versionLayout = "..2006_01_02_15_04_05."
)

// Options holds the settings of files.
type Options struct {
	// Group is the pod's group: it owns all files and may read them, and enter all directories, regardless of their modes;
	// nil for none.
	Group *int64
	// Now is the time in the name of a new version.
	Now time.Time
}

// changes are the calls that change the directory. *os.Root implements them, and follows no link out of it.
type changes interface {
	Mkdir(name string, mode fs.FileMode) error
	WriteFile(name string, data []byte, mode fs.FileMode) error
	Lchown(name string, uid, gid int) error
	Chmod(name string, mode fs.FileMode) error
	Symlink(target, name string) error
	Rename(from, to string) error
	RemoveAll(name string) error
}

// writer writes one directory once.
type writer struct {
	root *os.Root
	do   changes
	Options
}

// Write makes an existing directory contain exactly these files. Readers see either the old or the new files. If they
// are already right, it writes nothing, and changed is false. It may be killed at any time, and the next call cleans
// up. Directories that it has not created stay, and hide a file of their name.
//
// It fails with the error of files.Check, and with errors of the disk, either with the old or the new files in effect.
// A repeated failure has the same text.
func Write(dir string, files volumecontent.Files, o Options) (changed bool, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	w := writer{root: root, do: root, Options: o}
	changed, err = w.write(files)
	if err != nil {
		err = fmt.Errorf("write the files of %s: %w", dir, err)
	}
	return changed, err
}

func (w writer) write(files volumecontent.Files) (changed bool, err error) {
	if err := files.Check(); err != nil {
		return false, err
	}
	version, err := w.version()
	if err != nil {
		return false, err
	}
	if err := w.tidy(version); err != nil { // first, to free space
		return false, err
	}
	if version == "" || !w.holds(version, files) {
		changed = true
		if version, err = w.next(files); err != nil {
			return false, err
		}
	}
	if err := w.link(files); err != nil {
		return changed, err
	}
	return changed, w.tidy(version)
}

// version returns the version in effect; empty if there is none, or the link is invalid.
func (w writer) version() (string, error) {
	target, err := w.root.Readlink(dataLink)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("%s is not the link that it has to be; remove it: %w", dataLink, cause(err))
	}
	if !isVersion(target) {
		return "", nil
	}
	return target, nil
}

// next writes a new version and puts it into effect. On failure it leaves nothing.
func (w writer) next(files volumecontent.Files) (string, error) {
	version := w.Now.UTC().Format(versionLayout) + strconv.FormatUint(uint64(rand.Uint32()), 10) //nolint:gosec // a name, and no secret
	err := w.fill(version, files)
	if err == nil {
		err = w.publish(version)
	}
	if err != nil {
		_ = w.do.RemoveAll(version) // the next call tries again, and returns its error
		return "", err
	}
	return version, nil
}

// fill creates a version that is not in effect yet.
func (w writer) fill(version string, files volumecontent.Files) error {
	for _, p := range folders(files) {
		name := path.Join(version, p)
		if err := w.do.Mkdir(name, 0o700); err != nil {
			return fmt.Errorf("make the folder %q: %w", p, cause(err))
		}
		if err := w.own(name, p, nil, w.folderMode()); err != nil {
			return err
		}
	}
	for _, p := range slices.Sorted(maps.Keys(files)) {
		name, file := path.Join(version, p), files[p]
		if err := w.do.WriteFile(name, file.Data, 0o600); err != nil {
			return fmt.Errorf("write %q: %w", p, cause(err))
		}
		if err := w.own(name, p, file.UID, w.fileMode(file)); err != nil {
			return err
		}
	}
	return nil
}

// own sets the owners and then the mode of a new file or directory, regardless of the umask.
func (w writer) own(name, p string, user *int64, mode fs.FileMode) error {
	if user != nil || w.Group != nil {
		if err := w.do.Lchown(name, idOr(user, -1), idOr(w.Group, -1)); err != nil {
			return fmt.Errorf("change the owners of %q: %w", p, cause(err))
		}
	}
	if err := w.do.Chmod(name, mode); err != nil {
		return fmt.Errorf("change the mode of %q: %w", p, cause(err))
	}
	return nil
}

// publish puts a version into effect.
func (w writer) publish(version string) error {
	if err := w.do.Symlink(version, newDataLink); err != nil {
		return fmt.Errorf("make the link %s: %w", newDataLink, cause(err))
	}
	if err := w.do.Rename(newDataLink, dataLink); err != nil {
		_ = w.do.RemoveAll(newDataLink) // as above
		return fmt.Errorf("rename %s to %s: %w", newDataLink, dataLink, cause(err))
	}
	return nil
}

// link creates the links to the names of the version in effect, and removes those of earlier ones.
func (w writer) link(files volumecontent.Files) error {
	wanted := map[string]bool{}
	for p := range files {
		name, _, _ := strings.Cut(p, "/")
		wanted[name] = true
	}
	entries, err := w.entries()
	if err != nil {
		return err
	}
	for _, entry := range entries {
		name := entry.Name()
		target := ""
		if entry.Type() == fs.ModeSymlink {
			if target, err = w.root.Readlink(name); err != nil {
				return fmt.Errorf("read the link %q: %w", name, cause(err))
			}
		}
		ours := target == path.Join(dataLink, name)
		switch {
		case wanted[name] && (ours || entry.IsDir()):
			delete(wanted, name)
		case wanted[name] || ours: // it is in the way of a link, or belongs to an earlier version
			if err := w.do.RemoveAll(name); err != nil {
				return fmt.Errorf("remove %q: %w", name, cause(err))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if err := w.do.Symlink(path.Join(dataLink, name), name); err != nil {
			return fmt.Errorf("make the link %q: %w", name, cause(err))
		}
	}
	return nil
}

// tidy removes all versions except one, and the remains of a killed process.
func (w writer) tidy(keep string) error {
	entries, err := w.entries()
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if name := entry.Name(); name == newDataLink || (isVersion(name) && name != keep) {
			if err := w.do.RemoveAll(name); err != nil {
				return fmt.Errorf("remove an earlier version: %w", cause(err))
			}
		}
	}
	return nil
}

// entries lists the directory.
func (w writer) entries() ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(w.root.FS(), ".")
	if err != nil {
		return nil, fmt.Errorf("list it: %w", cause(err))
	}
	return entries, nil
}

// isVersion reports whether a name is that of a version.
func isVersion(name string) bool {
	return len(name) > 2 && name[:2] == ".." && '0' <= name[2] && name[2] <= '9' && !strings.Contains(name, "/")
}

// folders returns the directories of files, "." first and parents before children.
func folders(files volumecontent.Files) []string {
	all := map[string]bool{".": true}
	for p := range files {
		for parent := path.Dir(p); !all[parent]; parent = path.Dir(parent) {
			all[parent] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// cause returns the error of a call without its file names, because that of a version always differs.
func cause(err error) error {
	var pathError *fs.PathError
	var linkError *os.LinkError
	switch {
	case errors.As(err, &pathError):
		return pathError.Err
	case errors.As(err, &linkError):
		return linkError.Err
	}
	return err
}
