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

// maxRefusal bounds the text of an error of the runtime's streaming server.
const maxRefusal = 4 << 10

// tunnel connects a client that speaks SPDY inside of a WebSocket, for port-forward, with the runtime's streaming
// server, which only speaks SPDY.
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

// tunneled returns the protocols over SPDY that a client can speak inside of a WebSocket.
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

// upgrade opens a SPDY connection to the runtime's streaming server with one of the protocols. It returns the
// connection and the chosen protocol. It returns any other answer as an error with its code and text.
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
		return nil, "", fmt.Errorf("reaching the runtime's streaming server at %s: %w", target.Host, err)
	}
	if conn, ok := answer.Body.(io.ReadWriteCloser); ok && answer.StatusCode == http.StatusSwitchingProtocols {
		return conn, strings.TrimSpace(answer.Header.Get(httpstream.HeaderProtocolVersion)), nil
	}
	defer answer.Body.Close() //nolint:errcheck // it was only read
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxRefusal))
	if err != nil {
		return nil, "", fmt.Errorf("reading an answer of the runtime's streaming server at %s: %w", target.Host, err)
	}
	if answer.StatusCode < http.StatusBadRequest {
		return nil, "", fmt.Errorf("the runtime's streaming server at %s answers %s instead of switching to SPDY", target.Host, answer.Status)
	}
	return nil, "", &problem{answer.StatusCode, string(bytes.TrimSpace(text))}
}

// join copies both ways until one of the connections ends, and then closes both.
func join(a, b io.ReadWriteCloser) {
	ended := make(chan struct{}, 2) // one for each direction
	forward := func(to io.Writer, from io.Reader) {
		_, _ = io.Copy(to, from) // an error ends the stream like an EOF
		ended <- struct{}{}
	}
	go forward(a, b)
	go forward(b, a)
	<-ended
	_, _ = a.Close(), b.Close() // ends the other direction
	<-ended
}

// idleSocket is a WebSocket connection that times out after a period without reads and writes.
type idleSocket struct {
	*websocket.Conn
	idle time.Duration
}

// Read implements io.Reader.
func (s *idleSocket) Read(b []byte) (int, error) {
	s.extend()
	return s.Conn.Read(b)
}

// Write implements io.Writer. It also extends the deadline of a concurrent Read.
func (s *idleSocket) Write(b []byte) (int, error) {
	s.extend()
	return s.Conn.Write(b)
}

// extend extends the deadline. It ignores errors, because a closed connection also fails the following call.
func (s *idleSocket) extend() { _ = s.SetDeadline(time.Now().Add(s.idle)) }
