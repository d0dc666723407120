// Package httpserve serves HTTP with limits that keep slow and idle clients from holding connections, and with a
// graceful stop. Package rpc serves gRPC.
package httpserve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// readHeaderTimeout bounds the reading of request headers.
	readHeaderTimeout = 5 * time.Second
	// idleTimeout is longer than Prometheus' usual scrape interval, so that its connections stay open.
	idleTimeout = 5 * time.Minute
	// writeTimeout is long enough for a slow client to read the pods of a full node, or some hundred kilobytes of metrics.
	writeTimeout = 30 * time.Second
	// stopTimeout bounds the wait for responses in flight.
	stopTimeout = 2 * time.Second
)

// Until serves on listener until ctx ends, closes it, and returns nil. It fails if connections cannot be accepted, or
// if responses are still in flight stopTimeout after the end of ctx. The server's own errors go to logger.
func Until(ctx context.Context, listener net.Listener, handler http.Handler, logger *slog.Logger) error {
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout, WriteTimeout: writeTimeout,
		ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelWarn),
	}
	return until(ctx, listener, server.Serve, server)
}

// until runs serve on listener until ctx ends, and then shuts the server down.
func until(ctx context.Context, listener net.Listener, serve func(net.Listener) error, server *http.Server) error {
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve HTTP on %s: %w", listener.Addr(), err)
		}
		return nil
	})
	group.Go(func() error {
		<-groupCtx.Done()
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if err := server.Shutdown(stopCtx); err != nil {
			return errors.Join(fmt.Errorf("stop serving HTTP on %s: %w", listener.Addr(), err), server.Close())
		}
		return nil
	})
	return group.Wait()
}
