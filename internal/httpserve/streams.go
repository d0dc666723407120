package httpserve

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// maxHeaderBytes bounds the request line and the headers. The request line contains the command of an exec.
const maxHeaderBytes = 1 << 20

const (
	// maxStreams is how many requests a connection of HTTP/2 has at once; it is the kubelet's number.
	maxStreams = 250
	// pingAfter and pingTimeout end a connection of HTTP/2 whose peer is silent and does not answer.
	pingAfter, pingTimeout = 30 * time.Second, 15 * time.Second
)

// Streams is Until with TLS for responses without a time limit, on connections that handlers may hijack. The server
// sets no deadline after it has read the headers, so a handler sets its own. Connections are bounded by limits. The
// contexts of requests end with ctx, and Streams returns when every handler has returned.
func Streams(
	ctx context.Context,
	listener net.Listener,
	limits Limits,
	config *tls.Config,
	handler http.Handler,
	logger *slog.Logger,
) error {
	var handlers sync.WaitGroup
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			handlers.Add(1)
			defer handlers.Done()
			handler.ServeHTTP(w, r)
		}),
		TLSConfig: config, ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		BaseContext: func(net.Listener) context.Context { return ctx }, ConnContext: withConn,
		HTTP2:    &http.HTTP2Config{MaxConcurrentStreams: maxStreams, SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
		ErrorLog: slog.NewLogLogger(quietHandshakes{logger.Handler()}, slog.LevelWarn),
	}
	serve := func(listener net.Listener) error { return server.ServeTLS(listener, "", "") }
	err := until(ctx, limited(listener, limits, logger), serve, server)
	handlers.Wait()
	return err
}

// quietHandshakes logs failed TLS handshakes at debug level, because any client can cause any number of them.
type quietHandshakes struct{ slog.Handler }

// handshakeError is the prefix of net/http's log message for such a client.
const handshakeError = "http: TLS handshake error"

// Handle implements slog.Handler.
func (h quietHandshakes) Handle(ctx context.Context, record slog.Record) error {
	if strings.HasPrefix(record.Message, handshakeError) {
		record.Level = slog.LevelDebug
		if !h.Enabled(ctx, record.Level) {
			return nil
		}
	}
	return h.Handler.Handle(ctx, record)
}
