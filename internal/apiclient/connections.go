package apiclient

import (
	"net"
	"time"

	"k8s.io/client-go/util/connrotation"
)

const (
	// dialTimeout and keepAlive are client-go's defaults: the time limit for opening a connection, and the interval of TCP
	// keepalives.
	dialTimeout = 30 * time.Second
	keepAlive   = 30 * time.Second
)

// newDialer returns the dialer of a client, which keeps track of all its connections.
func newDialer() *connrotation.Dialer {
	return connrotation.NewDialer((&net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}).DialContext)
}

// CloseConnections closes every connection of the client, including those in use. A request in flight fails, or is sent
// again if it only reads; the next request opens a new connection. Call it for a client whose requests fail repeatedly:
// its connection may be dead, and a new one may reach another API server.
func (c *Client) CloseConnections() { c.dialer.CloseAll() }
