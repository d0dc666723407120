package plugins

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const (
	// dirMode is the kubelet's mode of the folder.
	dirMode = 0o750
	// maxFolders bounds the number of folders that are read and watched.
	maxFolders = 256
)

// listing is the content of the folder.
type listing struct {
	// sockets are the sockets by path.
	sockets map[string]identity
	// failed are the paths that could not be read, and err is the joined error.
	failed []string
	err    error
	// folders is the number of folders that were read.
	folders int
}

// unknown reports whether nothing can be said about the socket of a path.
func (l *listing) unknown(path string) bool {
	for _, failed := range l.failed {
		if path == failed || failed == "/" || strings.HasPrefix(path, failed+"/") {
			return true
		}
	}
	return false
}

func (l *listing) fail(path string, err error) {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ELOOP) {
		return // it has disappeared meanwhile, or is a link to nothing
	}
	l.failed = append(l.failed, path)
	l.err = errors.Join(l.err, err)
}

// list reads the sockets in a folder and its sub-folders. Names that begin with a dot, other files and links to folders
// are skipped, as in the kubelet. Watch is called with each folder before it is read, so that no change is missed.
func list(dir string, watch func(dir string) error) *listing {
	l := &listing{sockets: map[string]identity{}}
	if err := os.MkdirAll(dir, dirMode); err != nil {
		l.fail(dir, fmt.Errorf("make the folder of plugins: %w", err))
		return l
	}
	l.read(dir, watch)
	return l
}

func (l *listing) read(dir string, watch func(dir string) error) {
	if l.folders++; l.folders > maxFolders {
		l.fail(dir, fmt.Errorf("%s: there are more than %d folders", dir, maxFolders))
		return
	}
	if err := watch(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.err = errors.Join(l.err, fmt.Errorf("watch %s: %w", dir, err))
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		l.fail(dir, err)
		return
	}
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		switch {
		case strings.HasPrefix(entry.Name(), "."):
		case entry.IsDir():
			l.read(path, watch)
		default:
			l.look(path)
		}
	}
}

// look adds a socket, or the target of a link to one.
func (l *listing) look(path string) {
	info, err := os.Stat(path)
	if err != nil {
		l.fail(path, err)
		return
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || info.Mode().Type() != fs.ModeSocket {
		return
	}
	l.sockets[path] = identity{device: stat.Dev, inode: stat.Ino, modified: info.ModTime()}
}
