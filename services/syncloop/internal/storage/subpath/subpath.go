// Package subpath has folders and files of volumes mounted beside the volumes, for the containers that mount not a whole volume but
// what is below a subPath of it. Where is where a kubelet has them:
//
//	ROOT/pods/UID/volume-subpaths/VOLUME/CONTAINER/INDEX
//
// A container that writes to the volume may change the path at any time, to a link that leads out of the volume for example. What is
// mounted is therefore what was opened, and opened it is without following a link. The kubelet's own package of this name is not used:
// it makes a missing folder by its whole path, so that one that is made while a link is put above it is made outside; and it runs
// mount(8).
package subpath

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/rmtree"
)

// Dir is the folder in that of a pod which what is mounted is in.
const Dir = "volume-subpaths"

// The modes of what is made to mount on. Nothing of a container comes there.
const (
	dirMode  = 0o750
	fileMode = 0o640
)

// Mounter mounts what is open, and takes it away: Machine on a node.
type Mounter interface {
	// Mounted tells whether something is mounted at a path itself. It follows no link there, and does not touch what is mounted.
	// That nothing is there is no error.
	Mounted(target string) (bool, error)
	// Bind mounts what a file is open on at a folder, or for all that is no folder, at a file.
	Bind(source *os.File, target string) error
	// Detach takes away what was mounted at a path last, with all that is mounted below it, and from nowhere else. That nothing is
	// mounted there is no error.
	Detach(target string) error
}

// Request is what a container mounts.
type Request struct {
	// Volume is where the volume is on the node, Path the relative path of what is mounted in it: Check has let it pass.
	Volume, Path string
	// PodDir is the folder of the pod, Name the volume's in its spec.
	PodDir, Name string
	// Container is the name of the container, Index the place among its volumeMounts.
	Container string
	Index     int
	// Propagates is true when mounts are to propagate between the volume and the container.
	Propagates bool
}

// target is where it is mounted.
func (r Request) target() string {
	return filepath.Join(r.PodDir, Dir, r.Name, r.Container, strconv.Itoa(r.Index))
}

// MakeError is why a folder that is missing cannot be made.
type MakeError struct{ Err error }

// Error implements error.
func (e *MakeError) Error() string { return fmt.Sprintf("make the folder: %v", e.Err) }

// Unwrap returns the cause.
func (e *MakeError) Unwrap() error { return e.Err }

// Mounts mounts and unmounts. Its methods may be called from any goroutine, for one container by one at a time.
type Mounts struct {
	// Mounter does it. Required.
	Mounter Mounter
}

// Check says whether a path may be a subPath. The error is the kubelet's.
func Check(path string) error {
	if filepath.IsAbs(path) {
		return fmt.Errorf("error SubPath `%s` must not be an absolute path", path)
	}
	if slices.Contains(strings.Split(path, "/"), "..") {
		return fmt.Errorf("unable to provision SubPath `%s`: must not contain '..'", path)
	}
	return nil
}

// Prepare has what is below a path of a volume mounted, and says where. Folders that are missing are made, with the mode of the
// volume's root; links in the path are followed as long as they stay in the volume. It may be called again, for a container that is
// started again: what is mounted stays unless the path leads to something else by now. It fails with a *MakeError when a folder cannot
// be made, and with the error of ctx: of a volume that hangs nothing is mounted later. Its errors name paths of the node, which is not
// for the pod's users to know.
func (m *Mounts) Prepare(ctx context.Context, r Request) (target string, err error) {
	if err := Check(r.Path); err != nil {
		return "", err
	}
	source, err := openBefore(ctx, r.Volume, r.Path)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	target = r.target()
	there, err := m.there(source, r)
	if err != nil || there {
		return target, err
	}
	info, err := source.Stat()
	if err != nil {
		return "", err
	}
	if err := makeTarget(target, info.IsDir()); err != nil {
		return "", err
	}
	if err := m.Mounter.Bind(source, target); err != nil {
		return "", err
	}
	return target, nil
}

// there tells whether what is open is mounted already. What else is mounted there is taken away: the container that had it has ended.
// So is what mounts are to propagate to: whether they do is settled when it is mounted, and the volume may have been made shared since.
func (m *Mounts) there(source *os.File, r Request) (bool, error) {
	for target := r.target(); ; {
		mounted, err := m.Mounter.Mounted(target)
		if err != nil || !mounted {
			return false, err
		}
		var want, now unix.Stat_t
		if err := unix.Fstat(int(source.Fd()), &want); err != nil {
			return false, &os.PathError{Op: "stat", Path: source.Name(), Err: err}
		}
		// What cannot be looked at, as a file system that has lost its server, is another thing.
		if err := unix.Lstat(target, &now); err == nil && !r.Propagates && now.Dev == want.Dev && now.Ino == want.Ino {
			return true, nil
		}
		if err := m.Mounter.Detach(target); err != nil {
			return false, err
		}
	}
}

// makeTarget makes the folder or the file that something is mounted on. Nothing is mounted there.
func makeTarget(target string, folder bool) error {
	if err := os.MkdirAll(filepath.Dir(target), dirMode); err != nil {
		return err
	}
	if info, err := os.Lstat(target); err == nil {
		if folder && info.IsDir() || !folder && info.Mode().IsRegular() {
			return nil
		}
		if err := os.Remove(target); err != nil { // it was for something of the other kind
			return err
		}
	}
	if folder {
		return os.Mkdir(target, dirMode)
	}
	file, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_WRONLY, fileMode)
	if err != nil {
		return err
	}
	return file.Close()
}

// Clean takes away all that is mounted of a volume for the containers of a pod, whoever has mounted it, and removes what it was mounted
// on. The containers have to be gone. Nothing of the volume is touched, and no link followed. It may be called again, after a failure
// or a kill; that nothing is there is no error.
func (m *Mounts) Clean(podDir, volume string) error {
	all := filepath.Join(podDir, Dir)
	if _, err := os.Lstat(all); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	dir := filepath.Join(all, volume)
	containers, err := below(dir)
	if err != nil {
		return err
	}
	for _, container := range containers {
		targets, err := below(container)
		if err != nil {
			return err
		}
		for _, target := range targets {
			if err := m.detach(target); err != nil {
				return fmt.Errorf("unmount a sub-path: %w", err)
			}
		}
	}
	if err := rmtree.All(dir); err != nil {
		return err
	}
	// The last volume's takes the folder of all with it.
	if err := os.Remove(all); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	return nil
}

// detach takes away all that is mounted at a path, one above the other.
func (m *Mounts) detach(target string) error {
	for {
		mounted, err := m.Mounter.Mounted(target)
		if err != nil || !mounted {
			return err
		}
		if err := m.Mounter.Detach(target); err != nil {
			return err
		}
	}
}

// below are the paths in a folder, by its own entries alone. What is no folder, a link above all, has none.
func below(dir string) ([]string, error) {
	file, err := os.OpenFile(dir, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return nil, nil
	case err != nil:
		return nil, err
	}
	names, err := file.Readdirnames(-1)
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, err
	}
	paths := make([]string, 0, len(names))
	for _, name := range names {
		paths = append(paths, filepath.Join(dir, name))
	}
	return paths, nil
}
