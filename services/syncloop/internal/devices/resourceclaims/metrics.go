package resourceclaims

import (
	"context"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/clock"
)

// Metrics has the kubelet's metrics of resource claims.
type Metrics struct {
	registry         prometheus.Registerer
	operations       *prometheus.HistogramVec
	calls            *prometheus.HistogramVec
	prepareSkips     *prometheus.CounterVec
	unprepareSkips   *prometheus.CounterVec
	resourceClaimsIn *prometheus.Desc
}

// NewMetrics registers the metrics of one Manager; with a nil registry they are not registered.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	factory := promauto.With(registry)
	buckets := prometheus.ExponentialBucketsRange(.1, 40, 15) //nolint:mnd // the kubelet's
	return &Metrics{
		registry: registry,
		operations: factory.NewHistogramVec(prometheus.HistogramOpts{
			Name: "dra_operations_duration_seconds", Buckets: buckets,
			Help: "Durations of preparing and unpreparing all resource claims of a pod, by operation (PrepareResources or UnprepareResources) and failure.",
		}, []string{"operation_name", "is_error"}),
		calls: factory.NewHistogramVec(prometheus.HistogramOpts{
			Name: "dra_grpc_operations_duration_seconds", Help: "Durations of calls of DRA drivers.", Buckets: buckets,
		}, []string{"driver_name", "method_name", "grpc_status_code"}),
		prepareSkips: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "dra_node_prepare_skips_total", Help: "Calls of NodePrepareResources that a driver did not need, by driver.",
		}, []string{"driver_name"}),
		unprepareSkips: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "dra_node_unprepare_skips_total",
			Help: "Calls of NodeUnprepareResources that a driver did not need, by driver.",
		}, []string{"driver_name"}),
		resourceClaimsIn: prometheus.NewDesc("dra_resource_claims_in_use",
			"Prepared resource claims by driver, and all of them with the driver <any>.", []string{"driver_name"}, nil),
	}
}

// expose registers a metric that is read at a scrape.
func (m *Metrics) expose(inUse func() map[string]int) {
	if m.registry != nil {
		m.registry.MustRegister(&claimsInUse{desc: m.resourceClaimsIn, read: inUse})
	}
}

// Expose registers the metric of claims in use, for a Manager that does not exist.
func (m *Metrics) Expose(inUse func() map[string]int) { m.expose(inUse) }

func (m *Metrics) operated(operation string, failed bool, took time.Duration) {
	m.operations.WithLabelValues(operation, strconv.FormatBool(failed)).Observe(took.Seconds())
}

func (m *Metrics) skipped(operation resourceapi.SkipNodeOperation, driver string) {
	if operation == resourceapi.SkipNodeOperationNodePrepareResources {
		m.prepareSkips.WithLabelValues(driver).Inc()
		return
	}
	m.unprepareSkips.WithLabelValues(driver).Inc()
}

// intercept times the calls of a driver.
func (m *Metrics) intercept(driver string, now clock.PassiveClock) grpc.UnaryClientInterceptor {
	return func(
		ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
		options ...grpc.CallOption,
	) error {
		begun := now.Now()
		err := invoke(ctx, method, request, reply, conn, options...)
		m.calls.WithLabelValues(driver, method, status.Code(err).String()).Observe(now.Since(begun).Seconds())
		return err
	}
}

// claimsInUse implements prometheus.Collector.
type claimsInUse struct {
	desc *prometheus.Desc
	read func() map[string]int
}

// Describe implements prometheus.Collector.
func (c *claimsInUse) Describe(out chan<- *prometheus.Desc) { out <- c.desc }

// Collect implements prometheus.Collector. Drivers without claims are not listed, as in the kubelet.
func (c *claimsInUse) Collect(out chan<- prometheus.Metric) {
	for driver, count := range c.read() {
		out <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(count), driver)
	}
}
