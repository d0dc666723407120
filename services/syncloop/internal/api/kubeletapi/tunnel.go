package kubeletapi

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/net/websocket"
	constants "k8s.io/apimachinery/pkg/util/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// maxRefusal bounds what is read of why the runtime's own server does not do what it is asked.
const maxRefusal = 4 << 10

// tunnel has a client that speaks SPDY inside of WebSocket, for port-forward, talk to the runtime's own server, which
// speaks SPDY alone.
func (n *node) tunnel(w http.ResponseWriter, r *http.Request, target *url.URL) {
	runtime, protocol, err := n.upgrade(r.Context(), target, tunneled(r))
	if err != nil {
		n.refuse(w, r, err)
		return
	}
	defer runtime.Close() //nolint:errcheck // it is over
	server := websocket.Server{
		Handshake: func(config *websocket.Config, _ *http.Request) error {
			config.Protocol = nil
			if protocol != "" {
				config.Protocol = []string{constants.WebsocketsSPDYTunnelingPrefix + protocol}
			}
			return nil
		},
		Handler: func(client *websocket.Conn) {
			client.PayloadType = websocket.BinaryFrame
			join(&idleSocket{Conn: client, idle: n.idle()}, runtime)
		},
	}
	server.ServeHTTP(patient{ResponseWriter: w, idle: n.idle()}, r)
}

// tunneled are the protocols over SPDY that a client can speak inside of WebSocket.
func tunneled(r *http.Request) []string {
	var protocols []string
	for text := range strings.SplitSeq(strings.Join(r.Header.Values(wsstream.WebSocketProtocolHeader), ","), ",") {
		protocol, found := strings.CutPrefix(strings.TrimSpace(text), constants.WebsocketsSPDYTunnelingPrefix)
		if found && strings.HasSuffix(protocol, constants.KubernetesSuffix) {
			protocols = append(protocols, protocol)
		}
	}
	return protocols
}

// upgrade has the runtime's own server speak SPDY on a connection, in one of some protocols, and returns the connection
// and which. An answer that is not that becomes an error with its code and text.
func (n *node) upgrade(ctx context.Context, target *url.URL, protocols []string) (io.ReadWriteCloser, string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), nil)
	if err != nil {
		return nil, "", err
	}
	request.Header.Set(httpstream.HeaderConnection, httpstream.HeaderUpgrade)
	request.Header.Set(httpstream.HeaderUpgrade, spdy.HeaderSpdy31)
	for _, protocol := range protocols {
		request.Header.Add(httpstream.HeaderProtocolVersion, protocol)
	}
	answer, err := n.streams.RoundTrip(request) //nolint:bodyclose // the connection is closed by the caller
	if err != nil {
		return nil, "", fmt.Errorf("reaching the runtime's server of streams at %s: %w", target.Host, err)
	}
	if conn, ok := answer.Body.(io.ReadWriteCloser); ok && answer.StatusCode == http.StatusSwitchingProtocols {
		return conn, strings.TrimSpace(answer.Header.Get(httpstream.HeaderProtocolVersion)), nil
	}
	defer answer.Body.Close() //nolint:errcheck // it was only read
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxRefusal))
	if err != nil {
		return nil, "", fmt.Errorf("reading an answer of the runtime's server of streams at %s: %w", target.Host, err)
	}
	if answer.StatusCode < http.StatusBadRequest {
		return nil, "", fmt.Errorf("the runtime's server of streams at %s answers %s where it was to change to SPDY", target.Host, answer.Status)
	}
	return nil, "", &problem{answer.StatusCode, string(bytes.TrimSpace(text))}
}

// join copies both ways until one of the two ends, and closes both.
func join(a, b io.ReadWriteCloser) {
	ended := make(chan struct{}, 2) // one for each way
	way := func(to io.Writer, from io.Reader) {
		_, _ = io.Copy(to, from) // an end is an end
		ended <- struct{}{}
	}
	go way(a, b)
	go way(b, a)
	<-ended
	_, _ = a.Close(), b.Close() // so that the other one ends
	<-ended
}

// idleSocket is a connection of WebSocket that fails when nothing is said on it for some time.
type idleSocket struct {
	*websocket.Conn
	idle time.Duration
}

// Read implements io.Reader.
func (s *idleSocket) Read(b []byte) (int, error) {
	s.extend()
	return s.Conn.Read(b)
}

// Write implements io.Writer. What is written keeps a read waiting that goes on at the same time.
func (s *idleSocket) Write(b []byte) (int, error) {
	s.extend()
	return s.Conn.Write(b)
}

// extend moves the deadline on. An error is that of a closed connection, which the call that follows has too.
func (s *idleSocket) extend() { _ = s.SetDeadline(time.Now().Add(s.idle)) }
