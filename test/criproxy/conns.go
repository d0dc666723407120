package criproxy

import (
	"context"
	"net"
	"strconv"
	"sync"

	"google.golang.org/grpc/peer"
)

// connections has the clients' connections by an assigned address, because peers of unix sockets have no address of
// their own.
type connections struct {
	mu     sync.Mutex
	serial int
	open   map[string]net.Conn
}

// watch returns a listener that records every accepted connection.
func (c *connections) watch(l net.Listener) net.Listener {
	c.open = map[string]net.Conn{}
	return &watched{Listener: l, conns: c}
}

// breakOff closes the connection of a call; every call on it ends.
func (c *connections) breakOff(ctx context.Context) {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return
	}
	c.mu.Lock()
	conn := c.open[from.Addr.String()]
	c.mu.Unlock()
	if conn != nil {
		_ = conn.Close() // an error means that it is closed already
	}
}

// watched is a listener that records its connections.
type watched struct {
	net.Listener
	conns *connections
}

// Accept implements net.Listener.
func (w *watched) Accept() (net.Conn, error) {
	conn, err := w.Listener.Accept()
	if err != nil {
		return nil, err
	}
	w.conns.mu.Lock()
	defer w.conns.mu.Unlock()
	w.conns.serial++
	n := &numbered{Conn: conn, conns: w.conns, name: address(strconv.Itoa(w.conns.serial))}
	w.conns.open[string(n.name)] = n
	return n, nil
}

// numbered is a connection with an assigned address.
type numbered struct {
	net.Conn
	conns *connections
	name  address
}

// RemoteAddr implements net.Conn.
func (n *numbered) RemoteAddr() net.Addr { return n.name }

// Close implements net.Conn.
func (n *numbered) Close() error {
	n.conns.mu.Lock()
	delete(n.conns.open, string(n.name))
	n.conns.mu.Unlock()
	return n.Conn.Close()
}

// address is the number of a connection.
type address string

// Network implements net.Addr.
func (address) Network() string { return "unix" }

// String implements net.Addr.
func (a address) String() string { return string(a) }
