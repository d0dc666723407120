package main

import (
	"fmt"

	"golang.org/x/sys/unix"
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
