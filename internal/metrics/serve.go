package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/quartet-node/quartet/internal/httpserve"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/sockets"
)

const (
	// maxScrapes is the maximum number of concurrent scrapes; others are rejected. Two Prometheus servers and an operator
	// are the expected clients.
	maxScrapes = 4
	// Path is the path of the metrics.
	Path = "/metrics"
	// ProbesPath is the path of the metrics of probes, as in the kubelet.
	ProbesPath = "/metrics/probes"
)

// ServeConfig holds the parameters of Serve.
type ServeConfig struct {
	// Address is unix:///ABSOLUTE/PATH or a loopback IP:PORT; empty to serve no metrics.
	Address string
	// Sockets are the sockets that this process has inherited; nil for none.
	Sockets *sockets.Set
	// AllowedUIDs are the users, besides root and the process's own, who may connect to a unix socket.
	AllowedUIDs []int
	// Registry holds the metrics.
	Registry prometheus.Gatherer
	// More holds the metrics at other paths, such as "/metrics/probes"; it may be nil.
	More map[string]prometheus.Gatherer
	// Logger logs the address, refused peers and errors of single metrics; slog's default if nil.
	Logger *slog.Logger
	// Ready is called with the listening address; it may be nil.
	Ready func(net.Addr)
}

// Serve serves GET /metrics, and the paths of More, in Prometheus' formats until ctx ends, and returns nil. Without an
// address it waits for ctx. It fails if it cannot listen on the address, with a remedy, because missing metrics would
// otherwise remain unnoticed.
//
// There is neither TLS nor a password, so a TCP address must be on the loopback interface; a unix socket authorizes its
// peers by user ID.
func Serve(ctx context.Context, cfg ServeConfig) error {
	if cfg.Address == "" {
		<-ctx.Done()
		return nil
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	listener, err := listen(ctx, cfg)
	if err != nil {
		return err
	}
	if cfg.Ready != nil {
		cfg.Ready(listener.Addr())
	}
	cfg.Logger.Info("serving metrics", "address", cfg.Address)
	return serve(ctx, listener, cfg)
}

func serve(ctx context.Context, listener net.Listener, cfg ServeConfig) error {
	warnings := slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelWarn)
	// A metric that cannot be gathered must not hide the others.
	options := promhttp.HandlerOpts{
		ErrorLog:            warnings,
		ErrorHandling:       promhttp.ContinueOnError,
		MaxRequestsInFlight: maxScrapes,
	}
	mux := http.NewServeMux()
	mux.Handle("GET "+Path, promhttp.HandlerFor(cfg.Registry, options))
	for path, more := range cfg.More {
		mux.Handle("GET "+path, promhttp.HandlerFor(more, options))
	}
	return httpserve.Until(ctx, listener, mux, cfg.Logger)
}

func listen(ctx context.Context, cfg ServeConfig) (net.Listener, error) {
	if !strings.HasPrefix(cfg.Address, "unix:") {
		return listenTCP(ctx, cfg)
	}
	listener, err := rpc.ListenUnix(cfg.Address, cfg.AllowedUIDs, cfg.Logger)
	if err != nil {
		return nil, fmt.Errorf("--metrics-listen: %w", err)
	}
	return listener, nil
}

func listenTCP(ctx context.Context, cfg ServeConfig) (net.Listener, error) {
	address := cfg.Address
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf(
			"--metrics-listen %q: want unix:///ABSOLUTE/PATH, or an address such as 127.0.0.1:9101: %w",
			address,
			err,
		)
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return nil, fmt.Errorf("--metrics-listen %q: metrics have no TLS and are served on the loopback interface only: "+
			"set it to 127.0.0.1:%s, or to a unix socket", address, port)
	}
	listener, err := cfg.Sockets.Listen(ctx, sockets.Socket{Name: nodeconfig.SocketMetrics, Address: address}, cfg.Logger)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("--metrics-listen: %s is taken by another process (\"ss -ltnp sport = :%s\" names it): "+
			"stop that, choose another port, or \"none\" to serve no metrics: %w", address, port, err)
	case err != nil:
		return nil, fmt.Errorf("--metrics-listen: listen on %s: %w", address, err)
	}
	return listener, nil
}
