package rpc

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// peerListener accepts only connections of root, of the process's own user, and of the allowed users, because the mode
// of the socket alone would admit a whole group. It closes and logs other connections.
type peerListener struct {
	*net.UnixListener
	// allowed lists the users, sorted.
	allowed []int
	logger  *slog.Logger
	// earlier is the second name of the socket, for clients of v0.1.0; empty for none.
	earlier string
}

func newPeerListener(listener *net.UnixListener, allowed []int, logger *slog.Logger) *peerListener {
	if logger == nil {
		logger = slog.Default()
	}
	all := append([]int{0, os.Geteuid()}, allowed...)
	slices.Sort(all)
	return &peerListener{UnixListener: listener, allowed: slices.Compact(all), logger: logger}
}

// Accept waits for the next connection of an allowed user. Its errors are those of the listener.
func (l *peerListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		refusal := l.check(conn)
		if refusal == nil {
			return conn, nil
		}
		l.logger.Warn(
			"refused a peer on the socket: run it as root or as the user of this process, or give its user a role with --observe-uids or another flag, see docs/security.md",
			append(refusal, "allowed_uids", l.allowed, "socket", l.Addr().String())...)
		// The connection was refused; an error of closing it does not matter.
		_ = conn.Close()
	}
}

// Close removes the names of the socket and closes it.
func (l *peerListener) Close() error {
	return errors.Join(removeEarlier(l.Addr().String(), l.earlier), l.UnixListener.Close())
}

// check returns nil for an allowed peer, and otherwise the attributes for the log.
func (l *peerListener) check(conn *net.UnixConn) []any {
	peer, err := peerOf(conn)
	if err != nil {
		return []any{"error", err}
	}
	if slices.Contains(l.allowed, int(peer.Uid)) {
		return nil
	}
	return []any{"uid", peer.Uid, "pid", peer.Pid}
}

// peerOf returns the process that created the other end of a connection; for a client's connection, the process that
// called listen(2).
func peerOf(conn *net.UnixConn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("read the peer of the socket: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(err, credErr); err != nil {
		return nil, fmt.Errorf("read the peer of the socket: %w", err)
	}
	return cred, nil
}
