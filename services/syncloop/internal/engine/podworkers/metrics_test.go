package podworkers_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
)

func TestTheWorkersAreCountedAtTheScrape(t *testing.T) {
	registry, workers := prometheus.NewRegistry(), 0
	podworkers.NewMetrics(registry).Expose(func() podworkers.Census {
		return podworkers.Census{States: map[string]int{"syncing": workers}, Busy: 1, Failing: 2, Pending: 3, Queued: 5}
	})
	workers = 4 // after the registration, before the scrape
	metricstest.Want(t, registry, 4, "quartet_pod_workers", "state", "syncing")
	metricstest.Want(t, registry, 1, "quartet_pod_workers_busy")
	metricstest.Want(t, registry, 2, "quartet_pod_workers_failing")
	metricstest.Want(t, registry, 3, "quartet_pod_worker_updates_pending")
	metricstest.Want(t, registry, 5, "quartet_pods_waiting_for_name")
}
