package kubeletapi

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// server is one of the two HTTP servers, by the kubelet's name for it.
type server string

// The servers.
const (
	// readOnly asks nobody who they are, readWrite everybody.
	readOnly  server = "readonly"
	readWrite server = "readwrite"
)

// otherPath is the path of requests for what a server does not have: what a client makes up makes no new series.
const otherPath = "other"

// otherMethod is any method that is not HTTP's.
const otherMethod = "other"

// Metrics counts and times the requests to the two servers, with the kubelet's names.
type Metrics struct {
	requests  *prometheus.CounterVec
	duration  *prometheus.HistogramVec
	inFlight  *prometheus.GaugeVec
	websocket *prometheus.CounterVec
}

// NewMetrics registers the metrics that the two servers share; a nil registry takes none.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	factory, labels := promauto.With(registry), []string{"method", "path", "server_type", "long_running"}
	return &Metrics{
		requests: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_http_requests_total",
			Help: "Requests to the HTTP APIs, by method, the first part of the path, and which of the two APIs.",
		}, labels),
		duration: factory.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_http_requests_duration_seconds", Help: "Duration of requests to the HTTP APIs.", Buckets: prometheus.DefBuckets,
		}, labels),
		inFlight: factory.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kubelet_http_inflight_requests", Help: "Requests to the HTTP APIs that are being answered.",
		}, labels),
		websocket: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_websocket_streaming_requests_total",
			Help: "Streams to containers over WebSocket that are translated for the runtime, by what they are for: exec, attach or portforward.",
		}, []string{"subresource"}),
	}
}

// counted counts and times the requests that next answers, as requests for a path of a server. Long is true of requests that take as
// long as the client wants.
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

// translated counts a stream over WebSocket that is translated for the runtime, by what it is for: exec, attach or portforward.
func (m *Metrics) translated(subresource string) { m.websocket.WithLabelValues(subresource).Inc() }

func methodLabel(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions, http.MethodTrace, http.MethodConnect:
		return method
	default:
		return otherMethod
	}
}
