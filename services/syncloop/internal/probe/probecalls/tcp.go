package probecalls

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"k8s.io/kubernetes/pkg/probe"
)

// tcpSocket opens a connection. It succeeds if the connection is accepted.
func tcpSocket(ctx context.Context, t Target) Answer {
	host, err := t.host(t.Probe.TCPSocket.Host)
	if err != nil {
		return unknown(err)
	}
	port, err := probe.ResolveContainerPort(t.Probe.TCPSocket.Port, t.Container)
	if err != nil {
		return unknown(fmt.Errorf("tcpSocket: %w", err))
	}
	dialer := probe.ProbeDialer()
	dialer.Timeout = t.timeout()
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return failure(plain(err))
	}
	_ = conn.Close() // nothing was written to it
	return success("")
}
