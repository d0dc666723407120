package metrics

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

func listenUnix(cfg ServeConfig) (net.Listener, error) {
	path, ok := strings.CutPrefix(cfg.Address, "unix://")
	if !ok || !filepath.IsAbs(path) {
		return nil, fmt.Errorf("--metrics-listen %q: want unix:///ABSOLUTE/PATH", cfg.Address)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil {
		return nil, fmt.Errorf("--metrics-listen: make the directory of %s: %w", path, err)
	}
	if conn, err := net.Dial("unix", path); err == nil {
		return nil, errors.Join(fmt.Errorf("--metrics-listen: another process serves on %s: stop it, or choose another address", path), conn.Close())
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("--metrics-listen: remove the old socket %s: %w", path, err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("--metrics-listen: listen on %s: %w", cfg.Address, err)
	}
	if err := os.Chmod(path, 0o660); err != nil {
		return nil, errors.Join(fmt.Errorf("--metrics-listen: set the mode of %s: %w", path, err), listener.Close())
	}
	return &peerListener{Listener: listener, cfg: cfg}, nil
}

// peerListener accepts only root, the process's own user and those that are allowed.
type peerListener struct {
	net.Listener
	cfg ServeConfig
}

// Accept implements net.Listener.
func (l *peerListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		uid, err := uidOf(conn)
		if err == nil && l.allowed(uid) {
			return conn, nil
		}
		l.cfg.Logger.Warn("refused a peer on the metrics socket", "uid", uid, "error", errors.Join(err, conn.Close()))
	}
}

func (l *peerListener) allowed(uid int) bool {
	if uid == 0 || uid == os.Geteuid() {
		return true
	}
	for _, allowed := range l.cfg.AllowedUIDs {
		if uid == allowed {
			return true
		}
	}
	return false
}

func uidOf(conn net.Conn) (int, error) {
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return -1, fmt.Errorf("connection of type %T: want a unix socket", conn)
	}
	raw, err := unixConn.SyscallConn()
	if err != nil {
		return -1, err
	}
	uid, credErr := -1, error(nil)
	err = raw.Control(func(fd uintptr) {
		cred, e := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if e != nil {
			credErr = e
			return
		}
		uid = int(cred.Uid)
	})
	return uid, errors.Join(err, credErr)
}
