package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/internal/sharedmount"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
)

// enterRoot makes dir the root of this process, unless it is that already. A syncloop in a container so has every path as
// the machine and the container runtime have it, symbolic links included.
func enterRoot(dir string) error {
	if dir == "" || dir == "/" {
		return nil
	}
	if err := unix.Chroot(dir); err != nil {
		return fmt.Errorf("--host-root %s: %w: mount the machine's root there, and give the container CAP_SYS_CHROOT", dir, err)
	}
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("--host-root %s: %w", dir, err)
	}
	return nil
}

const (
	// rootMode is that of the directory of pods' volumes and files.
	rootMode = 0o750
	// rootMountFile is the file in the state directory that says that this node has made the root directory a mount.
	rootMountFile = "root-mount"
	// rootMountFileMode lets only root read it.
	rootMountFileMode = 0o600
)

// rootMount is the mount of the root directory.
type rootMount struct {
	dir, file, boot string
	logger          *slog.Logger
}

// share makes the root directory a shared mount where the machine's mounts are private, so that a volume with mountPropagation
// passes mounts on. A process that may not mount goes on without, because most pods do not need it.
func (r rootMount) share() error {
	if err := os.MkdirAll(r.dir, rootMode); err != nil {
		return fmt.Errorf("making the root directory: %w", err)
	}
	made, err := sharedmount.Make(r.dir)
	switch {
	case errors.Is(err, unix.EPERM):
		r.logger.Warn("the root directory is on a private mount and this process may not mount: volumes with mountPropagation pass no mounts on; "+
			"give it CAP_SYS_ADMIN, or run 'mount --make-rshared /' on the machine", telemetry.KeyFile, r.dir, telemetry.KeyError, err)
		return nil
	case err != nil:
		return fmt.Errorf("making the root directory a shared mount: %w", err)
	case !made:
		return nil
	}
	r.logger.Info("the machine's mounts are private: the root directory is now a shared mount of its own", telemetry.KeyFile, r.dir)
	return statedir.WriteFileAtomic(r.file, []byte(r.mark()), rootMountFileMode)
}

// mark names the mount: one of an earlier boot is gone, and what is there then is somebody else's.
func (r rootMount) mark() string { return r.boot + " " + r.dir + "\n" }

// unshare takes away what share has made, by this process or an earlier one, unless a pod has a directory: the mounts of its
// containers belong to the same peer group, and would be parted from those of the next start.
func (r rootMount) unshare() error {
	if mark, err := os.ReadFile(r.file); err != nil || string(mark) != r.mark() {
		return nil //nolint:nilerr // without the file there is nothing to undo
	}
	if pods, err := os.ReadDir(filepath.Join(r.dir, "pods")); len(pods) > 0 || (err != nil && !errors.Is(err, os.ErrNotExist)) {
		return nil //nolint:nilerr // it stays, as with pods
	}
	err := sharedmount.Undo(r.dir)
	switch {
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EPERM):
		return nil // it is in use, and "quartet down" removes it
	case err != nil:
		return fmt.Errorf("removing the mount of the root directory: %w", err)
	}
	return os.Remove(r.file)
}
