package cluster

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// port is a reserved TCP port of 127.0.0.1. It is reserved until it is closed by a socket that is bound to it and does
// not listen. While no server of the cluster listens there, connections are refused, as with a server that is down. A
// server that sets SO_REUSEPORT, which the servers get a flag for, can listen there any number of times.
type port struct {
	fd     int
	number int
}

func holdPort() (*port, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("hold a port: %w", err)
	}
	p := &port{fd: fd}
	if err := p.bind(); err != nil {
		return nil, errors.Join(fmt.Errorf("hold a port: %w", err), p.close())
	}
	return p, nil
}

func (p *port) bind() error {
	if err := unix.SetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return err
	}
	if err := unix.Bind(p.fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return err
	}
	name, err := unix.Getsockname(p.fd)
	if err != nil {
		return err
	}
	address, ok := name.(*unix.SockaddrInet4)
	if !ok {
		return fmt.Errorf("the socket has an address of type %T", name)
	}
	p.number = address.Port
	return nil
}

// address returns the host and port.
func (p *port) address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.number)) }

func (p *port) close() error { return unix.Close(p.fd) }

// reusePort is for net.ListenConfig.Control: it lets a listener share a reserved port.
func reusePort(_, _ string, conn syscall.RawConn) error {
	var inner error
	err := conn.Control(func(fd uintptr) {
		inner = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	})
	return errors.Join(err, inner)
}
