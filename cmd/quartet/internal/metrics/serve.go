package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"github.com/quartet-node/quartet/internal/httpserve"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/metrics"
)

// maxRequests is the maximum number of concurrent requests, each of which scrapes all four services.
const maxRequests = 4

// serve serves the metrics of the node at a loopback address until ctx ends. It writes its log to log.
func serve(ctx context.Context, n *node, address string, log io.Writer) error {
	listener, err := listenLoopback(ctx, address)
	if err != nil {
		return err
	}
	fmt.Fprintf(log, "serving the metrics of the services in %s at http://%s/metrics\n", n.socketDir, listener.Addr())
	return httpserve.Until(ctx, listener, handler(ctx, n, log), slog.New(slog.NewTextHandler(log, nil)))
}

// listenLoopback refuses an address that other machines reach, because the metrics are confidential and have no
// authentication.
func listenLoopback(ctx context.Context, address string) (net.Listener, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("--listen %q: want an address and a port, for example 127.0.0.1:10256: %w", address, err)
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return nil, fmt.Errorf(
			"--listen %q: the metrics have neither TLS nor a password and are served on the loopback interface only: set it to 127.0.0.1:%s, "+
				"and let Prometheus run on this machine or in this network namespace",
			address,
			port,
		)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf(
			"--listen: %s is taken by another process (\"ss -ltnp sport = :%s\" names it; a kube-proxy's health check has 10256): stop that, or choose another port: %w",
			address,
			port,
			err,
		)
	case err != nil:
		return nil, fmt.Errorf("--listen: listen on %s: %w", address, err)
	}
	return listener, nil
}

func handler(ctx context.Context, n *node, log io.Writer) http.Handler {
	mux := http.NewServeMux()
	for path, services := range map[string]func() []layout.Service{
		nodePath:           n.services,
		metrics.ProbesPath: func() []layout.Service { return []layout.Service{layout.SyncLoop} },
	} {
		changes := &changeLog{log: log, last: map[string]string{}}
		gather := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
			answers := n.ask(ctx, path, services())
			families, problems := ofService.Merge(nil, answers)
			changes.logAll(answers, problems)
			return families, nil
		})
		mux.Handle("GET "+path, promhttp.HandlerFor(gather, promhttp.HandlerOpts{MaxRequestsInFlight: maxRequests}))
	}
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintln(w, "ok")
	})
	return mux
}

// changeLog logs the problem of each service once, and its end, because scrapes are frequent.
type changeLog struct {
	mu   sync.Mutex
	log  io.Writer
	last map[string]string
}

func (l *changeLog) logAll(answers []metrics.Answer, problems []error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range answers {
		now := ""
		if a.Err != nil {
			now = a.Err.Error()
		}
		l.logOne(a.Process, now, a.Process+": its metrics are there again")
	}
	now := ""
	if err := errors.Join(problems...); err != nil {
		now = err.Error()
	}
	l.logOne("", now, "the metrics of all services fit together again")
}

func (l *changeLog) logOne(name, now, recovered string) {
	if l.last[name] == now {
		return
	}
	l.last[name] = now
	if now == "" {
		now = recovered
	}
	fmt.Fprintln(l.log, now)
}
