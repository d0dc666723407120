// Package subpath mounts directories and files of volumes for containers that mount only a subPath of a volume. The
// mount points are the kubelet's:
//
//	ROOT/pods/UID/volume-subpaths/VOLUME/CONTAINER/INDEX
//
// A container that writes to the volume may change the path at any time, for example to a link out of the volume.
// Therefore this package opens the path without following links, and mounts the open file. The kubelet's package of
// this name is not used: it creates a missing directory by its whole path, so that a link that is created at the same
// time can move the directory out of the volume. It also runs mount(8).
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

// Dir is the directory in that of a pod for the mounts.
const Dir = "volume-subpaths"

// The modes of mount points, which are never visible to a container.
const (
	dirMode  = 0o750
	fileMode = 0o640
)

// Mounter mounts and unmounts open files: Machine on a node.
type Mounter interface {
	// Mounted reports whether a path is a mount point. It follows no link and does not touch the mount. A missing path is
	// no error.
	Mounted(target string) (bool, error)
	// Bind mounts an open file or directory on a file or directory.
	Bind(source *os.File, target string) error
	// Detach unmounts the last mount at a path, with the mounts below it, and from no other place. A missing mount is no
	// error.
	Detach(target string) error
}

// Request is a sub-path of a volume for a container.
type Request struct {
	// Volume is the volume's path on the node, and Path the relative path in it, which Check has accepted.
	Volume, Path string
	// PodDir is the directory of the pod, and Name the volume's name in its spec.
	PodDir, Name string
	// Container is the name of the container, and Index the index of its volumeMount.
	Container string
	Index     int
	// Propagates is true if mounts should propagate between the volume and the container.
	Propagates bool
}

// target returns the mount point.
func (r Request) target() string {
	return filepath.Join(r.PodDir, Dir, r.Name, r.Container, strconv.Itoa(r.Index))
}

// MakeError is the error of creating a missing directory.
type MakeError struct{ Err error }

// Error implements error.
func (e *MakeError) Error() string { return fmt.Sprintf("make the folder: %v", e.Err) }

// Unwrap returns the cause.
func (e *MakeError) Unwrap() error { return e.Err }

// Mounts mounts and unmounts sub-paths. Its methods are safe for concurrent use, except for the same container.
type Mounts struct {
	// Mounter executes the mounts. Required.
	Mounter Mounter
}

// Check reports whether a path is a valid subPath. The error is the kubelet's.
func Check(path string) error {
	if filepath.IsAbs(path) {
		return fmt.Errorf("error SubPath `%s` must not be an absolute path", path)
	}
	if slices.Contains(strings.Split(path, "/"), "..") {
		return fmt.Errorf("unable to provision SubPath `%s`: must not contain '..'", path)
	}
	return nil
}

// Prepare mounts a sub-path of a volume, and returns the mount point. It creates missing directories with the mode of
// the volume's root, and follows links in the path as long as they stay in the volume. It may be called again for a
// restarted container: the mount stays unless the path leads elsewhere by now. It fails with a *MakeError if a
// directory cannot be created, and with the error of ctx: nothing of a hanging volume is mounted later. Its errors
// contain paths of the node, which must not be shown to the pod's users.
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
	mounted, err := m.isMounted(source, r)
	if err != nil || mounted {
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

// mounted reports whether an open file is already mounted. It unmounts anything else at the mount point, because the
// container that used it has ended. It also unmounts a mount that should propagate, because propagation is set at mount
// time, and the volume may have been made shared since.
func (m *Mounts) isMounted(source *os.File, r Request) (bool, error) {
	for target := r.target(); ; {
		mounted, err := m.Mounter.Mounted(target)
		if err != nil || !mounted {
			return false, err
		}
		var want, now unix.Stat_t
		if err := unix.Fstat(int(source.Fd()), &want); err != nil {
			return false, &os.PathError{Op: "stat", Path: source.Name(), Err: err}
		}
		// A mount that cannot be examined, such as one of a lost file server, counts as another one.
		if err := unix.Lstat(target, &now); err == nil && !r.Propagates && now.Dev == want.Dev && now.Ino == want.Ino {
			return true, nil
		}
		if err := m.Mounter.Detach(target); err != nil {
			return false, err
		}
	}
}

// makeTarget creates the directory or the file for a mount point without a mount.
func makeTarget(target string, folder bool) error {
	if err := os.MkdirAll(filepath.Dir(target), dirMode); err != nil {
		return err
	}
	if info, err := os.Lstat(target); err == nil {
		if folder && info.IsDir() || !folder && info.Mode().IsRegular() {
			return nil
		}
		if err := os.Remove(target); err != nil { // it was for a mount of the other kind
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

// Clean unmounts all sub-paths of a volume for the containers of a pod, including those of earlier processes, and
// removes the mount points. The containers must have ended. It does not touch the volume, and follows no link. It may
// be repeated after a failure or a kill; missing mounts are no error.
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
	// The last volume's call removes the common directory.
	if err := os.Remove(all); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	return nil
}

// detach unmounts all mounts at a path.
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

// below returns the paths in a directory by its own entries. A file, or a link, has none.
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
