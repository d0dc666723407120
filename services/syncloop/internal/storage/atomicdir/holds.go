package atomicdir

import (
	"bytes"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumecontent"
)

// The kubelet's modes of directories, and the bits that a group adds to those of files and directories.
const (
	folderMode      = fs.FileMode(0o755)
	groupFileMode   = fs.FileMode(0o440)
	groupFolderMode = fs.FileMode(0o550) | fs.ModeSetgid
)

// modeBits are the compared bits of a mode.
const modeBits = fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky

func (w writer) fileMode(f volumecontent.File) fs.FileMode {
	if w.Group != nil {
		return f.Mode | groupFileMode
	}
	return f.Mode
}

func (w writer) folderMode() fs.FileMode {
	if w.Group != nil {
		return folderMode | groupFolderMode
	}
	return folderMode
}

// holds reports whether a version has exactly these files, with their owners and modes. An unreadable one does not, and
// is written again. Empty directories are ignored, because a runtime may have created one as a mount point.
func (w writer) holds(version string, files volumecontent.Files) bool {
	parents, found, same := folders(files), 0, true
	differs := func() error {
		same = false
		return fs.SkipAll
	}
	err := fs.WalkDir(w.root.FS(), version, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		p := "."
		if name != version {
			p = strings.TrimPrefix(name, version+"/")
		}
		if d.IsDir() {
			if slices.Contains(parents, p) && !w.right(info, nil, w.folderMode()) {
				return differs()
			}
			return nil
		}
		file, ok := files[p]
		if !ok || !info.Mode().IsRegular() || info.Size() != int64(len(file.Data)) ||
			!w.right(info, file.UID, w.fileMode(file)) {
			return differs()
		}
		found++
		data, err := w.root.ReadFile(path.Join(version, p))
		if err == nil && !bytes.Equal(data, file.Data) {
			err = differs()
		}
		return err
	})
	return err == nil && same && found == len(files)
}

// right reports whether a file has a mode, a user unless it is nil, and the group.
func (w writer) right(info fs.FileInfo, user *int64, mode fs.FileMode) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && info.Mode()&modeBits == mode &&
		idOr(user, int(stat.Uid)) == int(stat.Uid) && idOr(w.Group, int(stat.Gid)) == int(stat.Gid)
}

// idOr returns an ID of a user or group, or a default if it is nil.
func idOr(id *int64, fallback int) int {
	if id == nil {
		return fallback
	}
	return int(*id)
}
