package kubeletapi

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// server is one of the two HTTP servers, as the kubelet's metrics name it.
type server string

// The servers.
const (
	// readOnly has no authentication, readWrite has.
	readOnly  server = "readonly"
	readWrite server = "readwrite"
)

// otherPath is the path label of requests to unknown paths, so that clients cannot create new series.
const otherPath = "other"

// otherMethod is the label of any method that is not one of HTTP.
const otherMethod = "other"

// Metrics counts and times the requests to the two servers, under the kubelet's names.
type Metrics struct {
	requests  *prometheus.CounterVec
	duration  *prometheus.HistogramVec
	inFlight  *prometheus.GaugeVec
	websocket *prometheus.CounterVec
}

// NewMetrics registers the metrics that the two servers share; with a nil registry they are not registered.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	factory, labels := promauto.With(registry), []string{"method", "path", "server_type", "long_running"}
	return &Metrics{
		requests: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_http_requests_total",
			Help: "Requests to the HTTP APIs, by method, the first part of the path, and which of the two APIs.",
		}, labels),
		duration: factory.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_http_requests_duration_seconds", Help: "Duration of requests to the HTTP APIs.",
			Buckets: prometheus.DefBuckets,
		}, labels),
		inFlight: factory.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kubelet_http_inflight_requests", Help: "Requests to the HTTP APIs that are being answered.",
		}, labels),
		websocket: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_websocket_streaming_requests_total",
			Help: "WebSocket streams to containers that are translated for the runtime, by kind: exec, attach or portforward.",
		}, []string{"subresource"}),
	}
}

// counted wraps next so that requests are counted and timed under a path of a server. Long is true for requests of
// unlimited duration.
func (m *Metrics) counted(by server, path string, long bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		labels := []string{methodLabel(r.Method), path, string(by), strconv.FormatBool(long)}
		m.requests.WithLabelValues(labels...).Inc()
		inFlight := m.inFlight.WithLabelValues(labels...)
		inFlight.Inc()
		defer inFlight.Dec()
		begun := time.Now()
		defer func() { m.duration.WithLabelValues(labels...).Observe(time.Since(begun).Seconds()) }()
		next.ServeHTTP(w, r)
	})
}

// translated counts a WebSocket stream that is translated for the runtime, by its subresource: exec, attach or
// portforward.
func (m *Metrics) translated(subresource string) { m.websocket.WithLabelValues(subresource).Inc() }

func methodLabel(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete,
		http.MethodOptions, http.MethodTrace, http.MethodConnect:
		return method
	default:
		return otherMethod
	}
}
