package metrics

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// readOnly and notLongRunning are the kubelet's labels for what is asked of a read-only server: it has neither exec nor
	// attach, which run for long.
	readOnly       = "readonly"
	notLongRunning = "false"
	// other is a path or a method that the server does not have: what a client makes up makes no new series.
	other = "other"
)

// httpMetrics is what the kubelet counts of its HTTP servers.
type httpMetrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	inFlight *prometheus.GaugeVec
}

func newHTTPMetrics(f factory) httpMetrics {
	labels := []string{"method", "path", "server_type", "long_running"}
	return httpMetrics{
		requests: f.counters(kubelet, "http_requests_total", "Requests to the read-only API, by method and the first part of the path.", labels...),
		duration: f.histograms(kubelet, "http_requests_duration_seconds", "Duration of requests to the read-only API.", prometheus.DefBuckets, labels...),
		inFlight: f.gauges(kubelet, "http_inflight_requests", "Requests to the read-only API that are being answered.", labels...),
	}
}

// Handler counts and times what next answers. Paths are the paths that it knows, or their first parts.
func (m *Metrics) Handler(next http.Handler, paths ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := strings.TrimPrefix(r.URL.Path, "/")
		if !slices.Contains(paths, path) {
			path, _, _ = strings.Cut(path, "/")
		}
		if !slices.Contains(paths, path) {
			path = other
		}
		labels := []string{methodLabel(r.Method), path, readOnly, notLongRunning}
		m.http.requests.WithLabelValues(labels...).Inc()
		inFlight := m.http.inFlight.WithLabelValues(labels...)
		inFlight.Inc()
		defer inFlight.Dec()
		begun := time.Now()
		defer func() { m.http.duration.WithLabelValues(labels...).Observe(time.Since(begun).Seconds()) }()
		next.ServeHTTP(w, r)
	})
}

func methodLabel(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions, http.MethodTrace, http.MethodConnect:
		return method
	default:
		return other
	}
}
