package rpc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/internal/layout"
)

const (
	// socketMode lets the owner and the group connect; the peer check then decides by user.
	socketMode = 0o660
	// socketDirMode lets others traverse, but not list, the directory of the sockets.
	socketDirMode = 0o711
	// maxSocketPath is the kernel's maximum length of a unix socket's path (sun_path, without its final zero).
	maxSocketPath = 107
)

// abstractScheme is the prefix of the address of an abstract socket, which has a name and no file: unix-abstract:NAME,
// see unix(7).
const abstractScheme = "unix-abstract:"

const (
	// probes is the number of attempts to connect to an existing socket, and probePause the pause between two of them. A
	// killed process releases its lock shortly before its sockets.
	probes     = 4
	probePause = 50 * time.Millisecond
)

// ListenUnix listens on unix:///ABSOLUTE/PATH, or unix-abstract:NAME, for connections of root, of the process's own
// user, and of the allowed users. It closes and logs other connections. It creates the directory, replaces an unused
// socket, and fails if another process serves the socket. The socket has mode 0660 and the process's group. Clients of
// v0.1.0 find it as nameEarlier has it. The logger may be nil.
func ListenUnix(address string, allowedUIDs []int, logger *slog.Logger) (net.Listener, error) {
	name, err := socketName(address)
	if err != nil {
		return nil, err
	}
	isFile := !strings.HasPrefix(name, "@")
	if isFile {
		if err := makeRoom(name); err != nil {
			return nil, err
		}
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w%s", address, err, remedy(err, filepath.Dir(name)))
	}
	if isFile {
		if err := os.Chmod(name, socketMode); err != nil {
			return nil, errors.Join(fmt.Errorf("set the mode of %s: %w", name, err), listener.Close())
		}
	}
	served := newPeerListener(listener, allowedUIDs, logger)
	if isFile {
		served.earlier = nameEarlier(name)
	}
	return served, nil
}

// makeRoom creates the directory of a socket, and removes an unused socket.
func makeRoom(path string) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, socketDirMode); err != nil {
		return fmt.Errorf("make the directory of the socket %s: %w%s", path, err, remedy(err, dir))
	}
	if err := checkServiceDir(path); err != nil {
		return err
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s is there and is not a socket: move it away, or choose another address", path)
	}
	var err error
	for i := range probes {
		if i > 0 {
			time.Sleep(probePause)
		}
		if err = probe(path); err == nil {
			err = probeEarlier(path)
		}
		if err == nil {
			break
		}
	}
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the old socket %s: %w%s", path, err, remedy(err, path))
	}
	return nil
}

// checkServiceDir fails if the directory of a service's own sockets is another user's, who could take the names in it.
func checkServiceDir(path string) error {
	dir := filepath.Dir(path)
	var stat unix.Stat_t
	if !layout.InServiceDir(path) {
		return nil
	}
	if err := unix.Lstat(dir, &stat); err != nil {
		return fmt.Errorf("look at the directory of the socket %s: %w%s", path, err, remedy(err, dir))
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFDIR || stat.Uid != 0 && int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("%s is not a directory of root or of user %d, but user %d's: remove it as root, or choose another address",
			dir, os.Geteuid(), stat.Uid)
	}
	return nil
}

// probe fails if a process serves a socket, or may serve it. The error names the process.
func probe(path string) error {
	owner, err := serverAt(path)
	switch {
	case errors.Is(err, fs.ErrPermission):
		// The socket may be in use, and if the directory permits it, removing it would disconnect its clients.
		return fmt.Errorf("%s is another user's: %w%s", path, err, remedy(err, path))
	case err != nil:
		return nil //nolint:nilerr // nobody answers, which is what the caller wants
	}
	return taken(owner, path)
}

// taken is the error of a socket that another process serves.
func taken(owner Owner, path string) error {
	return fmt.Errorf(
		"%v serves on %s: stop it when it is the same service of this node; two nodes do not share a directory of sockets, "+
			"so give each its own, or choose another address",
		owner,
		path,
	)
}

// Owner is the process at the other end of a connection to a socket.
type Owner struct {
	// PID is 0 if the process is not visible, because it is in another container.
	PID int
	UID int
	// Name is the command's name; empty if it is unknown.
	Name string
}

// ServerOf connects to an address, or where nobody serves, to the earlier place of the socket, and returns the process
// that listens there. It does not check which user runs that process; see Connect. It fails if no process listens.
func ServerOf(address string) (owner Owner, err error) {
	name, err := socketName(address)
	if err != nil {
		return Owner{}, err
	}
	conn, _, err := dial(context.Background(), name)
	if err != nil {
		return Owner{}, fmt.Errorf("connect to %s: %w", address, err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	return ownerOf(conn)
}

// serverAt returns the process that listens on a socket, and not at its earlier place.
func serverAt(path string) (owner Owner, err error) {
	conn, err := dialOnly(context.Background(), path)
	if err != nil {
		return Owner{}, fmt.Errorf("connect to %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	return ownerOf(conn)
}

// ownerOf returns the process that listens at the other end of a client's connection.
func ownerOf(conn *net.UnixConn) (Owner, error) {
	cred, err := peerOf(conn)
	if err != nil {
		return Owner{}, err
	}
	owner := Owner{PID: int(cred.Pid), UID: int(cred.Uid)}
	if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", owner.PID)); err == nil {
		owner.Name = strings.TrimSpace(string(comm))
	}
	return owner, nil
}

// String returns, for example, "another process (pleg with pid 7 of user 0)".
func (o Owner) String() string {
	switch {
	case o.PID == 0:
		return fmt.Sprintf("a process of another container (user %d)", o.UID)
	case o.Name == "":
		return fmt.Sprintf("another process (pid %d of user %d)", o.PID, o.UID)
	default:
		return fmt.Sprintf("another process (%s with pid %d of user %d)", o.Name, o.PID, o.UID)
	}
}

// remedy returns the advice for a file or directory that cannot be used; empty if there is none.
func remedy(err error, path string) string {
	switch {
	case errors.Is(err, unix.EROFS):
		return ": " + path + " is on a read-only file system: mount it writable, or mount a tmpfs at the directory of the " +
			"sockets before the node starts, see docs/reference/files.md"
	case errors.Is(err, fs.ErrPermission):
		return fmt.Sprintf(
			": user %d may not: run as the owner of %s, or have root give it to that user, see docs/reference/files.md",
			os.Geteuid(),
			path,
		)
	default:
		return ""
	}
}

// addressOf returns the address of a kernel's name.
func addressOf(name string) string {
	if abstract, ok := strings.CutPrefix(name, "@"); ok {
		return abstractScheme + abstract
	}
	return "unix://" + name
}

// socketName returns the kernel's name of the socket of an address: a path, or @NAME for an abstract one.
func socketName(address string) (string, error) {
	if name, ok := strings.CutPrefix(address, abstractScheme); ok && name != "" && len(name) <= maxSocketPath {
		return "@" + name, nil
	}
	path, ok := strings.CutPrefix(address, "unix://")
	if !ok || !filepath.IsAbs(path) {
		return "", fmt.Errorf("address %q: want unix:///ABSOLUTE/PATH", address)
	}
	if len(path) > maxSocketPath {
		return "", fmt.Errorf(
			"address %q: a unix socket's path has at most %d bytes, this has %d: choose a shorter directory",
			address,
			maxSocketPath,
			len(path),
		)
	}
	return path, nil
}
