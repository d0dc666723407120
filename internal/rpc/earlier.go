package rpc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/internal/layout"
)

// v0.1.0 has all sockets of a node in one directory: /run/quartet/pleg.sock is now /run/quartet/pleg/pleg.sock. Its
// clients find a process of today by a second name of the socket at the earlier place. Root alone makes that name, in a
// directory in which nobody else can make one, so no part gets another's name by it. It is a hard link: a process of
// v0.1.0 replaces a socket whose process was killed, and refuses to replace a symbolic link.

// nameEarlier gives a socket its second name, and returns it; empty if the socket has none, or this process may not.
// Only clients of v0.1.0 miss it, so there is no error.
func nameEarlier(path string) string {
	earlier := layout.EarlierSocket(path)
	if earlier == "" || os.Geteuid() != 0 || !onlyRootNames(filepath.Dir(earlier)) {
		return ""
	}
	if info, err := os.Lstat(earlier); err == nil && info.Mode().Type() != fs.ModeSocket {
		return "" // a symbolic link that root has made for services without root
	}
	link := path + ".link" // only this service makes names there
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	if err := os.Link(path, link); err != nil {
		return ""
	}
	if err := os.Rename(link, earlier); err != nil {
		_ = os.Remove(link) // the file system of the earlier place is read-only or another one
		return ""
	}
	return earlier
}

// removeEarlier removes the second name of a socket, unless it is another's by now.
func removeEarlier(path, earlier string) error {
	if earlier == "" {
		return nil
	}
	own, err := os.Lstat(path)
	if err != nil {
		return nil //nolint:nilerr // somebody has removed the socket
	}
	if second, err := os.Lstat(earlier); err != nil || !os.SameFile(own, second) {
		return nil //nolint:nilerr // it is not the name of this socket
	}
	if err := os.Remove(earlier); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the socket's name for v0.1.0: %w", err)
	}
	return nil
}

// onlyRootNames reports whether root alone can make names in a directory.
func onlyRootNames(dir string) bool {
	var stat unix.Stat_t
	return unix.Lstat(dir, &stat) == nil && stat.Mode&unix.S_IFMT == unix.S_IFDIR && stat.Uid == 0 &&
		stat.Mode&(unix.S_IWGRP|unix.S_IWOTH) == 0
}

// probeEarlier fails if a process of v0.1.0 serves at the earlier place of a socket, because it is of another node: two
// of the same node exclude each other by the lock of the state directory. A process of another user does not count,
// because no client talks to it.
func probeEarlier(path string) error {
	earlier := layout.EarlierSocket(path)
	if earlier == "" {
		return nil
	}
	if info, err := os.Lstat(earlier); err != nil || info.Mode().Type() != fs.ModeSocket {
		return nil //nolint:nilerr // there is none, or it is a link to this socket
	}
	owner, err := serverAt(earlier)
	if err != nil || owner.UID != 0 && owner.UID != os.Geteuid() {
		return nil //nolint:nilerr // nobody serves there
	}
	return taken(owner, earlier)
}
