package main

import (
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
)

// meter is an address of the API server that counts the bytes and connections of its clients, with those of TLS.
type meter struct {
	listener net.Listener
	server   string
	// sent are the bytes of the API server, received those of clients.
	sent, received, connections atomic.Int64

	refused atomic.Bool

	work sync.WaitGroup
	mu   sync.Mutex
	open map[net.Conn]bool
}

// newMeter starts a meter before the API server at a URL.
func newMeter(server string) (*meter, error) {
	u, err := url.Parse(server)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	m := &meter{listener: listener, server: u.Host, open: map[net.Conn]bool{}}
	m.work.Go(m.serve)
	return m, nil
}

// url returns the address of the API server by the meter.
func (m *meter) url() string { return "https://" + m.listener.Addr().String() }

func (m *meter) serve() {
	for {
		client, err := m.listener.Accept()
		if err != nil {
			return
		}
		if m.refused.Load() {
			_ = client.Close()
			continue
		}
		server, err := net.Dial("tcp", m.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		m.connections.Add(1)
		m.mu.Lock()
		m.open[client], m.open[server] = true, true
		m.mu.Unlock()
		m.work.Go(func() { m.carry(server, client, &m.received) })
		m.work.Go(func() { m.carry(client, server, &m.sent) })
	}
}

// carry copies one direction, and then ends both.
func (m *meter) carry(to, from net.Conn, count *atomic.Int64) {
	_, _ = io.Copy(counter{to, count}, from) // its ends see how it ended
	_, _ = to.Close(), from.Close()
}

// counter counts what is written.
type counter struct {
	io.Writer

	count *atomic.Int64
}

func (c counter) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	c.count.Add(int64(n))
	return n, err
}

// refuse closes new connections.
func (m *meter) refuse() { m.refused.Store(true) }

// close ends all connections.
func (m *meter) close() error {
	err := m.listener.Close()
	m.mu.Lock()
	for conn := range m.open {
		_ = conn.Close()
	}
	m.mu.Unlock()
	m.work.Wait()
	return err
}
