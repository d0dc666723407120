package apiclient

import (
	"net"
	"time"

	"k8s.io/client-go/util/connrotation"
)

const (
	// dialTimeout and keepAlive are client-go's own: how long the making of a connection may take, and how often the kernel
	// asks whether the other end of an idle one is there.
	dialTimeout = 30 * time.Second
	keepAlive   = 30 * time.Second
)

// newDialer returns what makes the connections of a client and knows them all.
func newDialer() *connrotation.Dialer {
	return connrotation.NewDialer((&net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}).DialContext)
}

// CloseConnections closes every connection of the client, also those that are in use: what is under way fails, or is asked
// again if it only reads, and what is asked next makes a new connection. That is for a client whose requests fail again and again. Its connection may be one on which
// nothing arrives any more, and a new one may lead to another API server.
func (c *Client) CloseConnections() { c.dialer.CloseAll() }
