// Package atomicdir writes the files of a volume so that whoever reads it sees them as they were before or as they are after, and
// never some of each. A folder that it writes looks as a kubelet's does, on which programs rely that watch for changes:
//
//	DIR/..data -> ..2026_01_02_15_04_05.123456789   the version that is in force; a change of it is one rename
//	DIR/..2026_01_02_15_04_05.123456789/            its files, which never change
//	DIR/NAME -> ..data/NAME                         what is seen, a file or a folder
//
// The kubelet's own AtomicWriter was not taken: it does not get over what it leaves when it is killed between two steps, and brings in
// much of Kubernetes. Nothing is synced to the disk: containers do not outlive the machine, and what a crash of it leaves is compared,
// and written anew, before others start.
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

// The names that a folder has for itself, which begin with "..": no file of a volume does.
const (
	dataLink    = "..data"
	newDataLink = "..data_tmp"
	// versionLayout is that of a version's time, in UTC; a number follows.
	versionLayout = "..2006_01_02_15_04_05."
)

// Options says how files are written.
type Options struct {
	// Group is the pod's: it owns all files and may read them, and enter all folders, whatever their modes say. Nil is for none.
	Group *int64
	// Now names a new version.
	Now time.Time
}

// changes are the calls that change something, relative to the folder. *os.Root does them, and follows no link out of it.
type changes interface {
	Mkdir(name string, mode fs.FileMode) error
	WriteFile(name string, data []byte, mode fs.FileMode) error
	Lchown(name string, uid, gid int) error
	Chmod(name string, mode fs.FileMode) error
	Symlink(target, name string) error
	Rename(from, to string) error
	RemoveAll(name string) error
}

// writer writes one folder once.
type writer struct {
	root *os.Root
	do   changes
	Options
}

// Write has a folder, which is there, hold just these files, with what was in it before as the only other thing that a reader can
// see meanwhile. What is right already stays as it is: then it writes nothing, and changed is false. It may be killed at any time, and
// the next one clears up after it. Folders in it that it has not made stay, and hide a file of their name.
//
// It fails with what files.Check says, and with errors of the disk, the old files then in force still or the new ones already. No
// error has another text when the same is tried again.
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
	if err := w.tidy(version); err != nil { // first, for the room
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

// version is the one in force; empty when there is none, or one that is no version.
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

// next writes a new version and puts it in force. When it fails it leaves nothing.
func (w writer) next(files volumecontent.Files) (string, error) {
	version := w.Now.UTC().Format(versionLayout) + strconv.FormatUint(uint64(rand.Uint32()), 10) //nolint:gosec // a name, and no secret
	err := w.fill(version, files)
	if err == nil {
		err = w.publish(version)
	}
	if err != nil {
		_ = w.do.RemoveAll(version) // the next one tries again, and says why it cannot be
		return "", err
	}
	return version, nil
}

// fill makes a version that nobody sees yet.
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

// own gives what was made its owners and then its mode, past the umask.
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

// publish puts a version in force.
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

// link has the names be seen that the version in force has, and no others of an earlier one.
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
		case wanted[name] || ours: // in the way of ours, or of an earlier version
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

// tidy removes all versions but one, and what a killed process has left.
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

// entries lists the folder.
func (w writer) entries() ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(w.root.FS(), ".")
	if err != nil {
		return nil, fmt.Errorf("list it: %w", cause(err))
	}
	return entries, nil
}

// isVersion tells whether a name is that of a version.
func isVersion(name string) bool {
	return len(name) > 2 && name[:2] == ".." && '0' <= name[2] && name[2] <= '9' && !strings.Contains(name, "/")
}

// folders are those that files are in, "." first and each after the one that it is in.
func folders(files volumecontent.Files) []string {
	all := map[string]bool{".": true}
	for p := range files {
		for parent := path.Dir(p); !all[parent]; parent = path.Dir(parent) {
			all[parent] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// cause is what went wrong in a call, without the names that it was given: that of a version is another one each time.
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
