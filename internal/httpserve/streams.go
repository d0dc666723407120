package httpserve

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
)

// maxHeaderBytes bounds the request line and the headers. The request line contains the command of an exec.
const maxHeaderBytes = 1 << 20

// Streams is Until with TLS for responses without a time limit, on connections that handlers may hijack. The server
// sets no deadline after it has read the headers, so a handler sets its own. The contexts of requests end with ctx, and
// Streams returns when every handler has returned.
func Streams(
	ctx context.Context,
	listener net.Listener,
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
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(quietHandshakes{logger.Handler()}, slog.LevelWarn),
	}
	err := until(ctx, listener, func(listener net.Listener) error { return server.ServeTLS(listener, "", "") }, server)
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
