package syncloop

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

// enterRoot makes dir the root directory of this process, unless it is that already. In a container, syncloop then sees
// every path as the machine and the container runtime do, including symbolic links.
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
	// rootMode is the mode of the root directory of pods.
	rootMode = 0o750
	// rootMountFile is the file in the state directory that records that this node has mounted the root directory.
	rootMountFile = "root-mount"
	// rootMountFileMode lets only the owner read the file.
	rootMountFileMode = 0o600
)

// rootMount is the mount of the root directory.
type rootMount struct {
	dir, file, boot string
	logger          *slog.Logger
}

// share makes the root directory a shared mount if the machine's mounts are private, so that mounts propagate through
// volumes with mountPropagation. Without the right to mount it only logs a warning, because most pods do not need that.
func (r rootMount) share() error {
	if err := os.MkdirAll(r.dir, rootMode); err != nil {
		return fmt.Errorf("making the root directory: %w", err)
	}
	made, err := sharedmount.Make(r.dir)
	switch {
	case errors.Is(err, unix.EPERM):
		r.logger.Warn("the root directory is on a private mount and this process may not mount: "+
			"mounts do not propagate through volumes with mountPropagation; "+
			"give syncloop CAP_SYS_ADMIN, or run 'mount --make-rshared /' on the machine",
			telemetry.KeyFile, r.dir, telemetry.KeyError, err)
		return nil
	case err != nil:
		return fmt.Errorf("making the root directory a shared mount: %w", err)
	case !made:
		return nil
	}
	r.logger.Info("the machine's mounts are private: the root directory is now a shared mount of its own", telemetry.KeyFile, r.dir)
	err = statedir.Inform(func() error { return statedir.WriteFileAtomic(r.file, []byte(r.mark()), rootMountFileMode) })
	if err != nil {
		r.logger.Warn("the mount of the root directory is not recorded, so it stays when the node stops; 'quartet down' removes it",
			telemetry.KeyFile, r.dir, telemetry.KeyError, err)
	}
	return nil
}

// mark identifies the mount. A mount of an earlier boot does not exist any more, and a mount found there now belongs to
// somebody else.
func (r rootMount) mark() string { return r.boot + " " + r.dir + "\n" }

// unshare removes the mount that share made in this process or an earlier one, unless a pod still has a directory: the
// mounts of its containers are in the mount's peer group, and would not be in that of the next one.
func (r rootMount) unshare() error {
	if mark, err := os.ReadFile(r.file); err != nil || string(mark) != r.mark() {
		return nil //nolint:nilerr // without the file there is nothing to undo
	}
	pods, err := os.ReadDir(filepath.Join(r.dir, "pods"))
	if len(pods) > 0 || (err != nil && !errors.Is(err, os.ErrNotExist)) {
		return nil //nolint:nilerr // the mount stays, as it does with pods
	}
	switch err := sharedmount.Undo(r.dir); {
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EPERM):
		return nil // it is in use; "quartet down" removes it
	case err != nil:
		return fmt.Errorf("removing the mount of the root directory: %w", err)
	}
	return os.Remove(r.file)
}
