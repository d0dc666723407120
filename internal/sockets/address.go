package sockets

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// fileOf returns a copy of a listener's descriptor, close-on-exec. It does not use the method File of the listener: the
// method Fd of that file would switch both descriptors to blocking mode, in which Accept cannot be interrupted.
func fileOf(listener net.Listener) (*os.File, error) {
	tcp, ok := listener.(*net.TCPListener)
	if !ok {
		return nil, fmt.Errorf("%s is no TCP socket", listener.Addr())
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd int
	var dupErr error
	if err := raw.Control(
		func(from uintptr) { fd, dupErr = unix.FcntlInt(from, unix.F_DUPFD_CLOEXEC, firstFD) },
	); err != nil {
		return nil, err
	}
	if dupErr != nil {
		return nil, dupErr
	}
	return os.NewFile(uintptr(fd), listener.Addr().String()), nil
}

// has reports whether a socket receives the connections to an address.
func has(file *os.File, address string) bool {
	listener, err := net.FileListener(file)
	if err != nil {
		return false
	}
	defer listener.Close() //nolint:errcheck // it has a copy of the descriptor
	return fits(listener, address) == nil
}

// addressOf returns the address of a socket for a log line.
func addressOf(file *os.File) string {
	listener, err := net.FileListener(file)
	if err != nil {
		return err.Error()
	}
	defer listener.Close() //nolint:errcheck // it has a copy of the descriptor
	return listener.Addr().String()
}

// fits returns nil if a listener receives the connections to an address, and otherwise the difference. No listener fits
// port 0.
func fits(listener net.Listener, address string) error {
	tcp, ok := listener.(*net.TCPListener)
	if !ok {
		return fmt.Errorf("it is no TCP socket: %s", listener.Addr().Network())
	}
	want, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return err
	}
	listens, only6, err := options(tcp)
	if err != nil {
		return err
	}
	at, ok := tcp.Addr().(*net.TCPAddr)
	switch {
	case !ok || !listens:
		return errors.New("it does not listen")
	case at.Port != want.Port:
		return fmt.Errorf("it listens on port %d", at.Port)
	case at.IP.Equal(want.IP) && at.Zone == want.Zone && !(only6 && at.IP.IsUnspecified()):
		return nil
	case all(want.IP) && at.IP.Equal(net.IPv6unspecified) && !only6:
		return nil // it listens on all addresses of IPv4, too
	default:
		return fmt.Errorf("it listens on %s", at)
	}
}

// all reports whether an address of the configuration stands for all addresses of the machine.
func all(ip net.IP) bool { return len(ip) == 0 || ip.IsUnspecified() }

// options reports whether a socket listens, and whether it is for IPv6 only.
func options(tcp *net.TCPListener) (listens, only6 bool, err error) {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return false, false, err
	}
	var listening, v6only int
	var getErr error
	if err := raw.Control(func(fd uintptr) {
		if listening, getErr = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ACCEPTCONN); getErr != nil {
			return
		}
		if domain, err := unix.GetsockoptInt(
			int(fd),
			unix.SOL_SOCKET,
			unix.SO_DOMAIN,
		); err != nil ||
			domain != unix.AF_INET6 {
			getErr = err
			return
		}
		v6only, getErr = unix.GetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_V6ONLY)
	}); err != nil {
		return false, false, err
	}
	return listening == 1, v6only == 1, getErr
}

// shutdown ends a listening socket for all holders of its descriptor. Waiting connections are reset.
func shutdown(file *os.File) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var shutErr error
	if err := raw.Control(func(fd uintptr) { shutErr = unix.Shutdown(int(fd), unix.SHUT_RDWR) }); err != nil {
		return err
	}
	if errors.Is(shutErr, unix.ENOTCONN) {
		return nil // it was shut down before, or does not listen
	}
	return shutErr
}
