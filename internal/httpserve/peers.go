package httpserve

import (
	"container/list"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Limits bounds the connections of a server. A stranger is a connection on which no user was let in yet; see LetIn.
type Limits struct {
	// Connections and ConnectionsOfPeer bound all connections. One more is closed at once.
	Connections, ConnectionsOfPeer int
	// Strangers and StrangersOfPeer bound the strangers. The oldest one makes room for a new one: that of the peer, or of
	// the peer that has the most.
	Strangers, StrangersOfPeer int
}

// StreamLimits are the limits for Streams. An API server holds a connection for each stream, so a peer may have many;
// a stranger costs at most maxHeaderBytes and a handshake.
func StreamLimits() Limits {
	return Limits{Connections: 4000, ConnectionsOfPeer: 3000, Strangers: 512, StrangersOfPeer: 128}
}

// reportEvery is how often closed connections are logged at most.
const reportEvery = time.Minute

// ipv6Site is the length of the prefix that one user of IPv6 usually has.
const ipv6Site = 64

// Peer returns the peer of a remote address: the IP address, or its network of 64 bits for IPv6, because one machine
// has all addresses of that.
func Peer(remote string) string {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return remote
	}
	ip := at.Addr().Unmap().WithZone("")
	if ip.Is4() {
		return ip.String()
	}
	site, err := ip.Prefix(ipv6Site)
	if err != nil {
		return ip.String()
	}
	return site.String()
}

// connKey is the context key of a request's connection.
type connKey struct{}

// LetIn notes that a known user was let in on the connection of a request. It is then no longer a stranger. It does
// nothing on a server without limits.
func LetIn(ctx context.Context) {
	if c, ok := ctx.Value(connKey{}).(*peerConn); ok {
		c.of.letIn(c)
	}
}

// withConn is the ConnContext of a server.
func withConn(ctx context.Context, c net.Conn) context.Context {
	if outer, ok := c.(*tls.Conn); ok {
		c = outer.NetConn()
	}
	if limited, ok := c.(*peerConn); ok {
		return context.WithValue(ctx, connKey{}, limited)
	}
	return ctx
}

// peers is a listener that bounds connections.
type peers struct {
	net.Listener
	limits Limits
	logger *slog.Logger

	mu  sync.Mutex
	all map[string]*peer
	// total and strangers count connections.
	total, strangers int

	// closed counts the connections that were closed since reported. Only Accept uses the two.
	closed   int
	reported time.Time
}

// peer has the connections of one peer. Strangers are in the order in which they came.
type peer struct {
	total     int
	strangers *list.List
}

// peerConn is a connection of a peer.
type peerConn struct {
	net.Conn
	of   *peers
	peer string
	// stranger is the connection's place among the strangers of its peer, or nil. Guarded by of.mu, as ended.
	stranger *list.Element
	ended    bool
}

func limited(listener net.Listener, limits Limits, logger *slog.Logger) *peers {
	return &peers{Listener: listener, limits: limits, logger: logger, all: make(map[string]*peer)}
}

// Accept implements net.Listener.
func (p *peers) Accept() (net.Conn, error) {
	for {
		conn, err := p.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &peerConn{Conn: conn, of: p, peer: Peer(conn.RemoteAddr().String())}
		closing := p.add(c)
		if closing != nil {
			_ = closing.Close() // its handler sees the error of its next read
			p.report(closing.peer)
		}
		if closing != c {
			return c, nil
		}
	}
}

// add adds a connection, and returns the connection that must be closed for it: the new one if there is no room, or
// nil.
func (p *peers) add(c *peerConn) (closing *peerConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	from := p.all[c.peer]
	if p.total >= p.limits.Connections || (from != nil && from.total >= p.limits.ConnectionsOfPeer) {
		c.ended = true // it was never counted
		return c
	}
	if from == nil {
		from = &peer{strangers: list.New()}
		p.all[c.peer] = from
	}
	var oldest *peerConn
	switch {
	case from.strangers.Len() >= p.limits.StrangersOfPeer:
		oldest = first(from)
	case p.strangers >= p.limits.Strangers:
		oldest = first(p.most())
	}
	from.total, p.total, p.strangers = from.total+1, p.total+1, p.strangers+1
	c.stranger = from.strangers.PushBack(c)
	if oldest != nil {
		p.forget(oldest)
	}
	return oldest
}

// first returns the oldest stranger of a peer.
func first(of *peer) *peerConn {
	c, _ := of.strangers.Front().Value.(*peerConn)
	return c
}

// most returns the peer with the most strangers. There is at least one.
func (p *peers) most() *peer {
	var most *peer
	for _, one := range p.all {
		if most == nil || one.strangers.Len() > most.strangers.Len() {
			most = one
		}
	}
	return most
}

// letIn takes a connection from the strangers.
func (p *peers) letIn(c *peerConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget(c)
}

// forget takes a connection from the strangers. The caller holds the lock.
func (p *peers) forget(c *peerConn) {
	if c.stranger == nil {
		return
	}
	p.all[c.peer].strangers.Remove(c.stranger)
	c.stranger = nil
	p.strangers--
}

// report counts a connection that is closed for room, and logs their number now and then. Only Accept calls it.
func (p *peers) report(from string) {
	p.closed++
	now := time.Now()
	if !p.reported.IsZero() && now.Sub(p.reported) < reportEvery {
		return
	}
	p.mu.Lock()
	open, strangers := p.total, p.strangers
	p.mu.Unlock()
	p.logger.Warn("connections to the HTTP API are closed because there are too many", "closed", p.closed,
		"peer", from, "open", open, "not let in", strangers)
	p.closed, p.reported = 0, now
}

// Close implements net.Conn.
func (c *peerConn) Close() error {
	c.of.remove(c)
	return c.Conn.Close()
}

// remove removes a connection that ends.
func (p *peers) remove(c *peerConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.ended {
		return
	}
	c.ended = true
	p.forget(c)
	p.total--
	from := p.all[c.peer]
	if from.total--; from.total == 0 {
		delete(p.all, c.peer)
	}
}
