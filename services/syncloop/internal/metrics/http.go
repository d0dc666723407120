package metrics

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Server is one of the HTTP servers, by the kubelet's name for it.
type Server string

// The servers.
const (
	// ReadOnly asks nobody who they are, ReadWrite everybody.
	ReadOnly  Server = "readonly"
	ReadWrite Server = "readwrite"
)

// OtherPath is the path of requests for what a server does not have: what a client makes up makes no new series.
const OtherPath = "other"

// otherMethod is any method that is not HTTP's.
const otherMethod = "other"

// httpMetrics is what the kubelet counts of its HTTP servers.
type httpMetrics struct {
	requests  *prometheus.CounterVec
	duration  *prometheus.HistogramVec
	inFlight  *prometheus.GaugeVec
	websocket *prometheus.CounterVec
}

func newHTTPMetrics(f factory) httpMetrics {
	labels := []string{"method", "path", "server_type", "long_running"}
	return httpMetrics{
		requests: f.counters(kubelet, "http_requests_total", "Requests to the HTTP APIs, by method, the first part of the path, and which of the two APIs.", labels...),
		duration: f.histograms(kubelet, "http_requests_duration_seconds", "Duration of requests to the HTTP APIs.", prometheus.DefBuckets, labels...),
		inFlight: f.gauges(kubelet, "http_inflight_requests", "Requests to the HTTP APIs that are being answered.", labels...),
		websocket: f.counters(kubelet, "websocket_streaming_requests_total",
			"Streams to containers over WebSocket that are translated for the runtime, by what they are for: exec, attach or portforward.", "subresource"),
	}
}

// HTTP counts and times what next answers, as requests for a path of a server. Long is said of those that take as long as the client
// wants.
func (m *Metrics) HTTP(server Server, path string, long bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		labels := []string{methodLabel(r.Method), path, string(server), strconv.FormatBool(long)}
		m.http.requests.WithLabelValues(labels...).Inc()
		inFlight := m.http.inFlight.WithLabelValues(labels...)
		inFlight.Inc()
		defer inFlight.Dec()
		begun := time.Now()
		defer func() { m.http.duration.WithLabelValues(labels...).Observe(time.Since(begun).Seconds()) }()
		next.ServeHTTP(w, r)
	})
}

// WebSocket counts a stream over WebSocket that is translated for the runtime, by what it is for: exec, attach or portforward.
func (m *Metrics) WebSocket(subresource string) { m.http.websocket.WithLabelValues(subresource).Inc() }

func methodLabel(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions, http.MethodTrace, http.MethodConnect:
		return method
	default:
		return otherMethod
	}
}
