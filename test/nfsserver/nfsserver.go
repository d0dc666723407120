// Package nfsserver is the kernel's NFS server in a virtual machine of package vm. Instead of the programs of
// nfs-utils, it tells the kernel what rpc.mountd(8) would answer.
package nfsserver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Port is the port of the server.
const Port = 2049

// Modules returns the kernel modules of the server and of its clients.
func Modules() []string { return []string{"nfs", "nfsv4", "nfsd"} }

// Programs returns the programs of the node that mount its exports.
func Programs() []string {
	return []string{
		"/bin/mount", "/bin/umount", "/sbin/mount.nfs", "/sbin/umount.nfs", "/sbin/mount.nfs4", "/sbin/umount.nfs4",
	}
}

// threads is the file with the number of the server's threads.
const threads = "/proc/fs/nfsd/threads"

// Server is a server, version 4, for this machine alone.
type Server struct{ export string }

// Start starts a server that exports a new directory, in memory, as "/".
func Start(export string) (Server, error) {
	const recovery = "/var/lib/nfs/v4recovery"
	if err := errors.Join(os.MkdirAll(export, 0o777), os.MkdirAll(recovery, 0o700)); err != nil {
		return Server{}, err
	}
	// Files have no handles on the first file system of the machine.
	if err := unix.Mount("export", export, "tmpfs", 0, "mode=777"); err != nil {
		return Server{}, fmt.Errorf("mount %s: %w", export, err)
	}
	if err := unix.Mount("nfsd", filepath.Dir(threads), "nfsd", 0, ""); err != nil {
		return Server{}, fmt.Errorf("mount %s: %w", filepath.Dir(threads), err)
	}
	s := Server{export: export}
	return s, s.Resume()
}

// Stop stops the server. It refuses connections, and its clients wait.
func (Server) Stop() error { return write(threads, "0") }

// Resume starts a server that is stopped. The kernel has forgotten its exports.
func (s Server) Resume() error {
	const (
		client = "machine"
		never  = "2147483647"
		// insecure port, async, no subtree check, fsid; see nfsd/export.h
		flags = 0x2 | 0x10 | 0x400 | 0x2000
	)
	for _, one := range [][2]string{
		{"/proc/fs/nfsd/versions", "-2 -3 +4"},
		{"/proc/fs/nfsd/nfsv4gracetime", "10"},
		{"/proc/fs/nfsd/nfsv4leasetime", "10"},
		{"/proc/fs/nfsd/portlist", fmt.Sprint("tcp ", Port)},
		{threads, "2"},
		{"/proc/fs/nfsd/v4_end_grace", "Y"},
		{"/proc/net/rpc/auth.unix.ip/channel", "nfsd 127.0.0.1 " + never + " " + client},
		{"/proc/net/rpc/nfsd.export/channel", fmt.Sprint(client, " ", s.export, " ", never, " ", flags, " 65534 65534 0")},
		{"/proc/net/rpc/nfsd.fh/channel", client + ` 1 \x00000000 ` + never + " " + s.export},
	} {
		if err := write(one[0], one[1]); err != nil {
			return err
		}
	}
	return nil
}

// write writes a line to a file of the kernel.
func write(file, line string) error {
	if err := os.WriteFile(file, []byte(line+"\n"), 0o600); err != nil {
		return fmt.Errorf("write %q to %s: %w", line, file, err)
	}
	return nil
}
