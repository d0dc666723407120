package podsapi

import (
	"context"
	"errors"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// apiVersion is the version of the served API in the metrics.
const apiVersion = "v1alpha1"

// Metrics counts the requests under the kubelet's names.
type Metrics struct {
	all *prometheus.CounterVec
	// methods are the counters of each method.
	methods map[string]*prometheus.CounterVec
}

// NewMetrics registers the metrics of one server; with a nil registry they are not registered.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	factory := promauto.With(registry)
	counter := func(name, help string) *prometheus.CounterVec {
		return factory.NewCounterVec(prometheus.CounterOpts{Name: "kubelet_pod_requests_" + name, Help: help},
			[]string{"server_api_version", "status_code"})
	}
	return &Metrics{
		all: counter("total", "Requests to the pods API that have ended, by their gRPC status."),
		methods: map[string]*prometheus.CounterVec{
			"ListPods":  counter("list_total", "Requests to the pods API, those to ListPods."),
			"GetPod":    counter("get_total", "Requests to the pods API, those to GetPod."),
			"WatchPods": counter("watch_total", "Requests to the pods API, those to WatchPods."),
		},
	}
}

// count counts the end of a request to a full method, such as "/v1alpha1.Pods/ListPods".
func (m *Metrics) count(full string, err error) {
	code := status.Code(err)
	if errors.Is(err, context.Canceled) {
		code = codes.Canceled
	}
	m.all.WithLabelValues(apiVersion, code.String()).Inc()
	if method := m.methods[full[strings.LastIndex(full, "/")+1:]]; method != nil {
		method.WithLabelValues(apiVersion, code.String()).Inc()
	}
}

// unary implements grpc.UnaryServerInterceptor.
func (m *Metrics) unary(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	answer, err := handler(ctx, request)
	m.count(info.FullMethod, err)
	return answer, err
}

// stream implements grpc.StreamServerInterceptor.
func (m *Metrics) stream(
	server any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler,
) error {
	err := handler(server, ss)
	m.count(info.FullMethod, err)
	return err
}
