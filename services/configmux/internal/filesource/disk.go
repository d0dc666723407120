package filesource

import (
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

// fingerprint tells whether a file is likely the one that was read before. It follows links, so a link that leads
// elsewhere has another one.
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

// list returns the paths that may be manifests, sorted, and whether path is a directory. Hidden entries of a directory
// are left out.
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

// read returns the content of a file and the fingerprint that it had then. It never waits for a writer: a pipe that has
// taken the file's place is opened without blocking, and refused.
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
	data, err = io.ReadAll(io.LimitReader(file, maxManifest+1))
	if err != nil {
		return nil, print, reason(err)
	}
	if len(data) > maxManifest {
		return nil, print, fmt.Errorf("it is larger than the limit of %d MiB: split it into several manifests", maxManifest>>20)
	}
	return data, fingerprintOf(info), nil
}

// reason takes the path out of an error that is shown beside the path.
func reason(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Err
	}
	return err
}

// linkError explains why a link cannot be followed.
func linkError(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("it is a link to something that does not exist: make its target, or remove the link")
	}
	return reason(err)
}

// kindOf names what is not a regular file.
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

// isGone reports whether nothing has that path any more; its directory may be gone with it, or be something else now.
func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR)
}

func isHidden(path string) bool { return strings.HasPrefix(filepath.Base(path), ".") }

func isLink(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode()&fs.ModeSymlink != 0
}
