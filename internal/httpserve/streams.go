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

// maxHeaderBytes bounds the line and the headers of a request: commands that are run in containers stand in the line.
const maxHeaderBytes = 1 << 20

// Streams is Until with TLS and for answers that take as long as their clients want, on connections that handlers may take over. A
// handler sets deadlines of its own, for the server has none once it has read the headers. The contexts of requests end with ctx, and
// Streams returns when every handler has.
func Streams(ctx context.Context, listener net.Listener, config *tls.Config, handler http.Handler, logger *slog.Logger) error {
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

// quietHandshakes takes what clients do wrong before a request for what it is: anybody can make a server say it as often as they like.
type quietHandshakes struct{ slog.Handler }

// handshakeError begins what net/http logs of such a client.
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
