package metricset_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/services/syncloop/internal/metricset"
)

func TestEveryMetricIsInTheDocument(t *testing.T) {
	registry := prometheus.NewRegistry()
	metricset.All(metricstest.Sampled(registry))
	metricstest.Documented(t, registry, metricstest.SyncLoop)
}
