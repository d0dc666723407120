package rpc

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
)

const (
	// socketMode lets the owner and the group connect; the peer check then decides by user.
	socketMode = 0o660
	// socketDirMode lets others pass through the directory of the sockets, and not list it.
	socketDirMode = 0o711
	// maxSocketPath is the longest path that the kernel takes for a unix socket (sun_path, less its final zero).
	maxSocketPath = 107
)

// ListenUnix listens on unix:///ABSOLUTE/PATH for connections of root, of the process's own user, and of the allowed
// ones; others are closed and logged. It makes the directory when there is none, takes the place of a socket that nobody
// serves any more, and fails when somebody serves there. The socket has mode 0660 and the process's group. The logger may
// be nil.
func ListenUnix(address string, allowedUIDs []int, logger *slog.Logger) (net.Listener, error) {
	path, err := socketPath(address)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), socketDirMode); err != nil {
		return nil, fmt.Errorf("make the directory of the socket %s: %w", path, err)
	}
	if conn, err := net.Dial("unix", path); err == nil {
		if err := conn.Close(); err != nil {
			return nil, fmt.Errorf("probe the socket %s: %w", path, err)
		}
		return nil, fmt.Errorf("another process serves on %s: stop it, or choose another address", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the old socket %s: %w", path, err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	if err := os.Chmod(path, socketMode); err != nil {
		return nil, errors.Join(fmt.Errorf("set the mode of %s: %w", path, err), listener.Close())
	}
	return newPeerListener(listener, allowedUIDs, logger), nil
}

func socketPath(address string) (string, error) {
	path, ok := strings.CutPrefix(address, "unix://")
	if !ok || !filepath.IsAbs(path) {
		return "", fmt.Errorf("address %q: want unix:///ABSOLUTE/PATH", address)
	}
	if len(path) > maxSocketPath {
		return "", fmt.Errorf("address %q: a unix socket's path has at most %d bytes, this has %d: choose a shorter directory", address, maxSocketPath, len(path))
	}
	return path, nil
}
