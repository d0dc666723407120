package bundle

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/machine"
	"github.com/quartet-node/quartet/internal/statedir"
)

// sharedMountsFile records the mounts of the machine that were made shared for a node, so that they can be reverted.
func sharedMountsFile(l layout.Layout) string {
	return filepath.Join(l.StateDir(), "shared-mounts.json")
}

// ShareMounts ensures that a container engine can bind the machine's root and a node's state directory into containers
// with mount propagation, so that a mount made by one container is visible to the others. It is a no-op where systemd
// has made all mounts shared at boot. Elsewhere it makes the mounts that contain the two shared, and note receives a
// sentence for each.
func ShareMounts(l layout.Layout, note func(string)) error {
	var changed []string
	for _, dir := range []string{"/", l.StateDir()} {
		at, err := machine.This().MountOf(dir)
		if err != nil {
			return err
		}
		if at == nil || machine.IsShared(at) {
			continue
		}
		// It is recorded first: reverting a mount that was not changed is a no-op.
		changed = append(changed, at.Mountpoint)
		if err := rememberShared(l, changed); err != nil {
			return err
		}
		if err := unix.Mount("", at.Mountpoint, "", unix.MS_SHARED, ""); err != nil {
			return fmt.Errorf(
				"making the mount %s shared: %w: run 'mount --make-shared %s' as root",
				at.Mountpoint,
				err,
				at.Mountpoint,
			)
		}
		note(
			"the mount " + at.Mountpoint + " was private, as on machines without systemd, and is now shared: containers need it to see each other's mounts",
		)
	}
	return nil
}

func rememberShared(l layout.Layout, mounts []string) error {
	content, err := json.Marshal(mounts)
	if err != nil {
		return err
	}
	return statedir.WriteIfChanged(sharedMountsFile(l), content, fileMode)
}

// UnshareMounts reverts ShareMounts. It is a no-op if that changed nothing.
func UnshareMounts(l layout.Layout) error {
	content, err := os.ReadFile(sharedMountsFile(l))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading which mounts were made shared: %w", err)
	}
	var mounts []string
	if err := json.Unmarshal(content, &mounts); err != nil {
		return fmt.Errorf(
			"%s: %w: remove the file, and run 'mount --make-private /' if the root was private",
			sharedMountsFile(l),
			err,
		)
	}
	for _, mount := range mounts {
		if err := unix.Mount("", mount, "", unix.MS_PRIVATE, ""); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("making the mount %s private again: %w", mount, err)
		}
	}
	return os.Remove(sharedMountsFile(l))
}
