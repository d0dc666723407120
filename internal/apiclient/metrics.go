package apiclient

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts the requests to API servers under client-go's metric names. All clients of a process share them.
// client-go's own counters are process globals that only Kubernetes' registry exposes.
type Metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// NewMetrics registers the metrics of a process.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rest_client_requests_total", Help: "Requests to API servers. The code is <error> where there was no answer.",
		}, []string{"code", "method", "host"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "rest_client_request_duration_seconds",
			Help:    "How long the answers of API servers took; of a watch, its beginning.",
			Buckets: []float64{.005, .025, .1, .25, .5, 1, 2, 4, 8, 15, 30, 60},
		}, []string{"verb", "host"}),
	}
	registry.MustRegister(m.requests, m.duration)
	return m
}

// noAnswer is the code label of a request without a response.
const noAnswer = "<error>"

// CountIn counts the requests of the client from now on. It is a no-op for a nil client.
func (c *Client) CountIn(m *Metrics) {
	if c != nil {
		c.counts.Store(m)
	}
}

// counted counts requests.
type counted struct {
	next   http.RoundTripper
	client *Client
}

// RoundTrip implements http.RoundTripper.
func (c counted) RoundTrip(request *http.Request) (*http.Response, error) {
	begun := time.Now()
	response, err := c.next.RoundTrip(request)
	m := c.client.counts.Load()
	if m == nil || errors.Is(err, ErrNotJoined) {
		return response, err
	}
	code, host := noAnswer, request.URL.Host
	if err == nil {
		code = strconv.Itoa(response.StatusCode)
		if response.Request != nil && response.Request.URL != nil {
			host = response.Request.URL.Host // the host of the awaited kubeconfig
		}
	}
	m.requests.WithLabelValues(code, request.Method, host).Inc()
	m.duration.WithLabelValues(request.Method, host).Observe(time.Since(begun).Seconds())
	return response, err
}

// WrappedRoundTripper gives access to the transport below, so that idle connections can be closed.
func (c counted) WrappedRoundTripper() http.RoundTripper { return c.next }
