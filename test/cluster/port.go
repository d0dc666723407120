package cluster

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// port is a TCP port of 127.0.0.1 that nobody else gets until it is closed. It is held by a socket that is bound to it and does
// not listen: while no server of ours listens there, connections are refused, as with a server that is down; and whoever sets
// SO_REUSEPORT, as the servers are told to do, can listen there again and again.
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

// address is the host and port.
func (p *port) address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.number)) }

func (p *port) close() error { return unix.Close(p.fd) }

// reusePort is for net.ListenConfig.Control: it lets a listener share a port that is held.
func reusePort(_, _ string, conn syscall.RawConn) error {
	var inner error
	err := conn.Control(func(fd uintptr) {
		inner = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	})
	return errors.Join(err, inner)
}
