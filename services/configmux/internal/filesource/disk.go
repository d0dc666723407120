package filesource

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxManifest is the kubelet's limit for the size of a manifest.
const maxManifest = 10 << 20

// fingerprint detects whether a file is unchanged. It follows links, so it changes if a link's target changes.
type fingerprint struct {
	device, inode  uint64
	size           int64
	modTime, cTime time.Time
}

func fingerprintOf(info fs.FileInfo) fingerprint {
	p := fingerprint{size: info.Size(), modTime: info.ModTime()}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		p.device, p.inode = stat.Dev, stat.Ino
		p.cTime = time.Unix(stat.Ctim.Unix())
	}
	return p
}

// list returns the sorted paths of potential manifests, and whether path is a directory. It skips hidden entries of a
// directory.
func list(path string) (paths []string, isDir bool, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, false, err
	}
	if !info.IsDir() {
		return []string{path}, false, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, true, err
	}
	for _, entry := range entries {
		if !isHidden(entry.Name()) {
			paths = append(paths, filepath.Join(path, entry.Name()))
		}
	}
	return paths, true, nil
}

// read returns the content of a file and its fingerprint at that time. It never blocks on a pipe in the place of the
// file, which it opens without blocking and refuses. It does not read files that are too large.
func read(path string) (data []byte, print fingerprint, err error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, print, reason(err)
	}
	defer func() {
		if closeErr := file.Close(); err == nil {
			err = closeErr
		}
	}()
	info, err := file.Stat()
	if err != nil {
		return nil, print, reason(err)
	}
	if !info.Mode().IsRegular() {
		return nil, print, fmt.Errorf("it is %s: put only manifest files here", kindOf(info.Mode()))
	}
	if info.Size() > maxManifest {
		return nil, print, tooLarge()
	}
	// The size is only a hint: a growing file is read up to the limit.
	content := bytes.NewBuffer(make([]byte, 0, info.Size()+bytes.MinRead))
	if _, err := content.ReadFrom(io.LimitReader(file, maxManifest+1)); err != nil {
		return nil, print, reason(err)
	}
	if content.Len() > maxManifest {
		return nil, print, tooLarge()
	}
	return content.Bytes(), fingerprintOf(info), nil
}

func tooLarge() error {
	return fmt.Errorf("it is larger than the limit of %d MiB: split it into several manifests", maxManifest>>20)
}

// reason removes the path from an error that is reported beside the path.
func reason(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Err
	}
	return err
}

// leadsNowhere reports whether an error is that of a dangling link. Other errors, such as that of an unreadable
// directory, do not tell whether the target exists.
func leadsNowhere(err error) bool { return isGone(err) || errors.Is(err, unix.ELOOP) }

// linkError explains why a link cannot be followed.
func linkError(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("it is a link to a file that does not exist: create its target, or remove the link")
	}
	return reason(err)
}

// kindOf returns the kind of a file that is not regular.
func kindOf(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "a directory, and directories are not searched"
	case mode&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	case mode&fs.ModeDevice != 0:
		return "a device"
	default:
		return "not a regular file"
	}
}

// isGone reports whether a path does not exist any more. Its directory may be gone too, or replaced by a file.
func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR)
}

func isHidden(path string) bool { return strings.HasPrefix(filepath.Base(path), ".") }

func isLink(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode()&fs.ModeSymlink != 0
}
