package csi

import (
	"context"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/csimigration"
)

// Metrics times the calls of drivers.
type Metrics struct{ operations *prometheus.HistogramVec }

// NewMetrics returns the metrics in a registry.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	return &Metrics{promauto.With(registry).NewHistogramVec(prometheus.HistogramOpts{
		Name:    "csi_operations_seconds",
		Help:    "Container Storage Interface operation duration with gRPC error code status total",
		Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600},
	}, []string{"driver_name", "method_name", "grpc_status_code", "migrated"})}
}

// Intercept returns what times all calls of a driver.
func (m *Metrics) Intercept(driver string) grpc.UnaryClientInterceptor {
	return func(
		ctx context.Context, method string, in, out any, to *grpc.ClientConn, invoke grpc.UnaryInvoker,
		options ...grpc.CallOption,
	) error {
		begun := time.Now()
		err := invoke(ctx, method, in, out, to, options...)
		m.operations.WithLabelValues(driver, method, status.Code(err).String(), strconv.FormatBool(isMigrated(ctx))).
			Observe(time.Since(begun).Seconds())
		return err
	}
}

// migratedKey is the key of a bool in the context of calls.
type migratedKey struct{}

// isMigrated reports whether a call is for a volume of a kind that the driver has replaced. As in the kubelet, calls
// that undo something do not say so.
func isMigrated(ctx context.Context) bool {
	is, _ := ctx.Value(migratedKey{}).(bool)
	return is
}

// measure records an operation on a volume by its name in the kubelet, and returns its error.
func (p *Plugin) measure(v *volume, operation string, begun time.Time, err error) error {
	p.cfg.Measured(pluginName+":"+v.driver, operation, csimigration.IsMigrated(v.PV), p.cfg.Clock.Since(begun), err)
	return err
}
