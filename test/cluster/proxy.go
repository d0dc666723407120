package cluster

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// Proxy is an address of the API server whose connections can be broken, while the API server and its other clients go
// on.
type Proxy struct {
	cluster *Cluster
	port    *port
	work    sync.WaitGroup

	mu sync.Mutex
	// listener is nil while connections are refused.
	listener net.Listener
	links    map[*link]struct{}
}

// link is a connection from a client to the API server. While server is nil, the API server has not been reached.
type link struct {
	client, server net.Conn
	// swallows is true when data of either side is discarded.
	swallows atomic.Bool
}

// Proxy starts a proxy until the test ends. The API server need not run: when the proxy cannot connect to it, it closes
// the client's connection.
func (c *Cluster) Proxy(t testing.TB) *Proxy {
	t.Helper()
	held, err := holdPort()
	if err != nil {
		t.Fatalf("cluster: %v", err)
	}
	p := &Proxy{cluster: c, port: held, links: map[*link]struct{}{}}
	t.Cleanup(func() {
		if err := errors.Join(p.refuse(), held.close()); err != nil {
			t.Errorf("cluster: end a proxy: %v", err)
		}
		p.work.Wait()
	})
	p.Accept(t)
	return p
}

// URL returns the address of the API server through the proxy. It does not change.
func (p *Proxy) URL() string { return "https://" + p.port.address() }

// Kubeconfig is Cluster.Kubeconfig through the proxy.
func (p *Proxy) Kubeconfig(t testing.TB, user string, groups ...string) string {
	t.Helper()
	return p.cluster.writeKubeconfig(t, p.URL(), user, groups)
}

// Accept accepts connections, also again after Refuse.
func (p *Proxy) Accept(t testing.TB) {
	t.Helper()
	p.mu.Lock()
	accepting := p.listener != nil
	p.mu.Unlock()
	if accepting {
		return
	}
	config := net.ListenConfig{Control: reusePort}
	listener, err := config.Listen(context.Background(), "tcp4", p.port.address())
	if err != nil {
		t.Fatalf("cluster: listen as a proxy: %v", err)
	}
	p.mu.Lock()
	p.listener = listener
	p.mu.Unlock()
	p.work.Go(func() { p.serve(listener) })
}

// Refuse breaks every connection and refuses new ones until Accept.
func (p *Proxy) Refuse(t testing.TB) {
	t.Helper()
	if err := p.refuse(); err != nil {
		t.Fatalf("cluster: refuse connections: %v", err)
	}
}

func (p *Proxy) refuse() error {
	p.mu.Lock()
	listener := p.listener
	p.listener = nil
	p.mu.Unlock()
	var err error
	if listener != nil {
		err = listener.Close()
	}
	p.Cut()
	return err
}

// Cut resets every open connection, as a firewall or a replaced load balancer does, and returns their number. New ones
// are accepted.
func (p *Proxy) Cut() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.links)
	for l := range p.links {
		reset(l.client)
		if l.server != nil {
			reset(l.server)
		}
	}
	clear(p.links)
	return n
}

// Swallow discards from now on the data of the open connections in both directions, as a router does that has lost its
// state, and returns their number. The connections stay open, and neither end is notified. New ones work.
func (p *Proxy) Swallow() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.swallows.Store(true)
	}
	return len(p.links)
}

// Write implements io.Writer for a side of the link.
func (s side) Write(data []byte) (int, error) {
	if s.link.swallows.Load() {
		return len(data), nil
	}
	return s.Conn.Write(data)
}

// side is an end of a link. Data of the other end is written to it.
type side struct {
	net.Conn
	link *link
}

// reset closes a connection with a reset. The peer sees that, so errors are dropped.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// serve accepts connections until the listener is closed.
func (p *Proxy) serve(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		l := &link{client: conn}
		p.mu.Lock()
		current := p.listener == listener
		if current {
			p.links[l] = struct{}{}
		}
		p.mu.Unlock()
		if !current {
			reset(conn)
			return
		}
		p.work.Go(func() { p.forward(l) })
	}
}

// forward carries one connection until one end of it is closed, or it is cut.
func (p *Proxy) forward(l *link) {
	defer p.drop(l)
	dialer := net.Dialer{Timeout: probeTimeout}
	server, err := dialer.DialContext(context.Background(), "tcp4", p.cluster.apiPort.address())
	if err != nil {
		return
	}
	p.mu.Lock()
	_, whole := p.links[l]
	l.server = server
	p.mu.Unlock()
	if !whole {
		return
	}
	var back sync.WaitGroup
	back.Go(func() { carry(side{l.client, l}, server) })
	carry(side{server, l}, l.client)
	back.Wait()
}

// carry copies one direction and then closes the other end's side of it. Both ends see by themselves how it ended.
func carry(to side, from net.Conn) {
	// Only the reading part of the TCP connection, because otherwise io.Copy would bypass side.
	_, _ = io.Copy(to, struct{ io.Reader }{from})
	_ = to.Close()
}

// drop removes a link and closes it.
func (p *Proxy) drop(l *link) {
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
	reset(l.client)
	if l.server != nil {
		reset(l.server)
	}
}
