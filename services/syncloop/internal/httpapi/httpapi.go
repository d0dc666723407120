// Package httpapi serves the kubelet's read-only HTTP API, so that what reads a kubelet's pods reads Quartet's:
//
//	/pods               v1.PodList in JSON, of the pods that a source names, with full status
//	/healthz            "ok", or 500 and a line for each reason
//	/healthz/syncloop   the same of the sync loop alone
//	/metrics            the metrics of syncloop, in Prometheus' formats
//	/metrics/probes     those of probes
//
// It has neither TLS nor authentication, so it is served on the loopback interface and nowhere else.
package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/loop"
	"github.com/quartet-node/quartet/services/syncloop/internal/metrics"
	"github.com/quartet-node/quartet/services/syncloop/internal/podstore"
)

// Pods tells the pods that a source names, with their status; it fails with podstore.NotReadyError.
type Pods interface {
	Pods() ([]*v1.Pod, error)
}

// Listen listens on address and port, fields of the KubeletConfiguration. It fails when the address is not the loopback
// interface's, and names who to look for when the port is taken.
func Listen(ctx context.Context, address string, port int32) (net.Listener, error) {
	ip := net.ParseIP(address)
	if ip == nil || !ip.IsLoopback() {
		return nil, fmt.Errorf("readOnlyPort %d on address %q: the read-only API has no TLS and is served on the loopback interface only: "+
			"set address to 127.0.0.1, or readOnlyPort to 0 to leave it off", port, address)
	}
	at := net.JoinHostPort(address, strconv.Itoa(int(port)))
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", at)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("readOnlyPort: %s is taken by another process (a kubelet, or another node of Quartet? \"ss -ltnp sport = :%d\" names it): "+
			"stop that, set readOnlyPort to another port, or to 0 to leave the read-only API off: %w", at, port, err)
	case err != nil:
		return nil, fmt.Errorf("readOnlyPort: listen on %s: %w", at, err)
	}
	return listener, nil
}

// Config is what the API tells.
type Config struct {
	Pods   Pods
	Health func() loop.Health
	// Gatherer has the metrics of the process. Metrics counts the requests.
	Gatherer prometheus.Gatherer
	Metrics  *metrics.Metrics
	Logger   *slog.Logger
}

// maxScrapes is how many scrapes may run at once, so that those that pile up cost no memory.
const maxScrapes = 4

// Handler returns the API.
func Handler(cfg Config) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /pods", func(w http.ResponseWriter, _ *http.Request) { servePods(w, cfg.Pods, cfg.Logger) })
	mux.HandleFunc("GET /pods/", func(w http.ResponseWriter, _ *http.Request) { servePods(w, cfg.Pods, cfg.Logger) })
	serveHealth := func(w http.ResponseWriter, _ *http.Request) { serveHealth(w, cfg.Health(), cfg.Logger) }
	mux.HandleFunc("GET /healthz", serveHealth)
	mux.HandleFunc("GET /healthz/syncloop", serveHealth)
	options := promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelWarn), ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: maxScrapes,
	}
	mux.Handle("GET /metrics", promhttp.HandlerFor(cfg.Gatherer, options))
	mux.Handle("GET /metrics/probes", promhttp.HandlerFor(cfg.Metrics.Probes(), options))
	return cfg.Metrics.Handler(mux, "pods", "healthz", "metrics", "metrics/probes")
}

func servePods(w http.ResponseWriter, pods Pods, logger *slog.Logger) {
	all, err := pods.Pods()
	var notReady *podstore.NotReadyError
	if errors.As(err, &notReady) {
		w.Header().Set("Retry-After", "1")
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	list := v1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: make([]v1.Pod, 0, len(all))}
	for _, pod := range all {
		list.Items = append(list.Items, *pod)
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(&list); err != nil {
		logger.Debug("the list of pods could not be written", telemetry.KeyError, err)
	}
}

func serveHealth(w http.ResponseWriter, health loop.Health, logger *slog.Logger) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	text := "ok"
	if !health.Healthy {
		w.WriteHeader(http.StatusInternalServerError)
		text = "unhealthy:\n" + strings.Join(health.Reasons, "\n") + "\n"
	}
	if _, err := w.Write([]byte(text)); err != nil {
		logger.Debug("the health could not be written", telemetry.KeyError, err)
	}
}
