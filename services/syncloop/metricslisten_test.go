package syncloop

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/services/syncloop/internal/metricset"
	"github.com/quartet-node/quartet/test/authority"
)

func TestMetricsAreServedAsDocumented(t *testing.T) {
	m := newMachine(t)
	m.configmux.speak()
	m.cfg.TLS = authority.New(t, "ca").Issue(t, t.TempDir(), authority.Request{Name: "syncloop"})
	m.start()
	m.put(seenNow(newPod("u1", "web", "a")))
	m.eventually("web is ready", m.ready("u1"))
	served := metricstest.Scrape(m.cfg.MetricsListen)
	shared := []string{
		metricstest.EveryService, metricstest.ServedStreams, metricstest.FollowedStreams, metricstest.RuntimeCalls,
		metricstest.Certificates,
	}
	metricstest.Exposes(t, served, shared...)
	metricstest.Within(t, served, append(shared, metricstest.SyncLoop)...)
	everyNode := prometheus.NewRegistry()
	metricset.Standalone(everyNode)
	metricstest.Covers(t, served, everyNode)

	for _, stream := range []string{"pod_updates", "lifecycle_events"} {
		metricstest.Want(t, served, 1, "quartet_stream_follower_connected", "stream", stream)
	}
	metricstest.Want(t, served, 1, "kubelet_runtime_operations_total", "operation_type", "run_podsandbox")
	metricstest.Want(t, served, 0, "kubelet_runtime_operations_errors_total", "operation_type", "start_container")
	if got := metricstest.Value(t, served, "quartet_stream_changes_total", "stream", "pods"); got < 1 {
		t.Errorf("%v changes of pods were published", got)
	}
}
