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
	// maxScrapes is how many scrapes may run at once; further ones are told to come again. Two servers and a person
	// look at a node, not more.
	maxScrapes = 4
	// Path is where the metrics are.
	Path = "/metrics"
	// ProbesPath is where those of probes are, as a kubelet's.
	ProbesPath = "/metrics/probes"
)

// ServeConfig says what to serve and where.
type ServeConfig struct {
	// Address is unix:///ABSOLUTE/PATH or a loopback IP:PORT; empty to serve nothing.
	Address string
	// Sockets are those that this process was passed; nil for none.
	Sockets *sockets.Set
	// AllowedUIDs are users, besides root and the process's own, who may connect to a unix socket.
	AllowedUIDs []int
	// Registry has what is served.
	Registry prometheus.Gatherer
	// More has what is served at paths of its own, such as "/metrics/probes"; it may be nil.
	More map[string]prometheus.Gatherer
	// Logger gets the address, refused peers and errors of single metrics; the default one when nil.
	Logger *slog.Logger
	// Ready is called with the address that is listened on; it may be nil.
	Ready func(net.Addr)
}

// Serve answers GET /metrics, and what there is More of, in Prometheus' formats until ctx ends, and returns nil. With no address it waits for ctx. It
// fails when the address cannot be listened on, and says what to do: the metrics of a node that nobody can read would
// not be missed before they are needed.
//
// There is neither TLS nor a password, so a TCP address has to be the loopback interface's; a unix socket asks the kernel
// who connects.
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
	// One metric that cannot be gathered must not hide the others.
	options := promhttp.HandlerOpts{ErrorLog: warnings, ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: maxScrapes}
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
		return nil, fmt.Errorf("--metrics-listen %q: want unix:///ABSOLUTE/PATH, or an address such as 127.0.0.1:9101: %w", address, err)
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
