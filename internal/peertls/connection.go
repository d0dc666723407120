package peertls

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/quartet-node/quartet/internal/telemetry"
)

// recheckEvery is the interval at which the certificate of the peer of an open connection is verified again. A watch
// stream, and so its connection, may last for months.
const recheckEvery = time.Minute

// alertPatience bounds the wait for the reason of a closed connection, which has arrived before its end.
const alertPatience = 100 * time.Millisecond

// alertOp is the operation in the error of package tls for an alert of the other end.
const alertOp = "remote error"

// connection is an open connection. It is closed when the certificate of its peer is not valid any more.
type connection struct {
	net.Conn
	verify func() error
	// expired logs why the connection is closed.
	expired func(error)
	every   time.Duration

	mu     sync.Mutex
	timer  *time.Timer
	closed bool
}

// keep returns the connection with a check of its peer's certificate in each interval.
func (e ends) keep(conn net.Conn, info credentials.AuthInfo, usage x509.ExtKeyUsage) net.Conn {
	state := info.(credentials.TLSInfo).State //nolint:forcetypeassert // it is that of credentials.NewTLS
	chain := state.PeerCertificates
	intermediates := x509.NewCertPool()
	for _, certificate := range chain[1:] {
		intermediates.AddCert(certificate)
	}
	c := &connection{Conn: conn, every: e.recheck}
	c.verify = func() error {
		_, authorities, _ := e.id.current() // the next handshake logs files that cannot be read
		_, err := chain[0].Verify(x509.VerifyOptions{
			Roots: authorities, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{usage},
		})
		return err
	}
	c.expired = func(err error) {
		e.logger.Warn("closed a connection on the network: the certificate of the peer is not valid any more",
			"peer", conn.RemoteAddr().String(), "names", NamesOf(chain[0]), telemetry.KeyError, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer = time.AfterFunc(c.every, c.look)
	return c
}

// look closes the connection if the certificate is not valid any more.
func (c *connection) look() {
	err := c.verify()
	c.mu.Lock()
	closed := c.closed
	if !closed && err == nil {
		c.timer.Reset(c.every)
	}
	c.mu.Unlock()
	if !closed && err != nil {
		c.expired(err)
		_ = c.Close() // its reader sees the end
	}
}

// Write implements net.Conn. With TLS 1.3 a server refuses a certificate after the handshake of the client, so the
// client may see a closed connection first. The error then has the reason that the server has sent.
func (c *connection) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err == nil {
		return n, nil
	}
	if deadlineErr := c.SetReadDeadline(time.Now().Add(alertPatience)); deadlineErr != nil {
		return n, err
	}
	_, readErr := c.Read(make([]byte, 1)) // nothing can be sent any more, so nothing else is read
	if alert := (*net.OpError)(nil); errors.As(readErr, &alert) && alert.Op == alertOp {
		return n, fmt.Errorf("%w (%w)", readErr, err)
	}
	return n, err
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.mu.Lock()
	c.closed = true
	c.timer.Stop()
	c.mu.Unlock()
	return c.Conn.Close()
}
