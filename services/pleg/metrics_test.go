package pleg

import (
	"testing"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/test/authority"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/fakecri"
)

func TestMetricsAreServedAsDocumented(t *testing.T) {
	fake := fakecri.New(t)
	fake.RunPod(fakecri.Pod{UID: "uid-1", Containers: []string{"app"}})
	r := newRig(t, fake.Endpoint())
	r.cfg.TLS = authority.New(t, "ca").Issue(t, t.TempDir(), authority.Request{Name: "pleg"})
	r.run()
	r.synced()
	served := metricstest.Scrape(r.cfg.MetricsListen)
	metricstest.Documented(
		t,
		served,
		metricstest.EveryService,
		metricstest.ServedStreams,
		metricstest.RuntimeCalls,
		metricstest.PLEG,
		metricstest.Certificates,
	)

	w := r.watch()
	_, ids := fake.RunPod(fakecri.Pod{UID: "uid-2", Containers: []string{"app"}})
	w.until(lifecyclev1.EventType_EVENT_TYPE_CONTAINER_STARTED, ids["app"])
	metricstest.Want(t, served, 1, "quartet_stream_subscribers", "stream", "lifecycle_events")
	metricstest.Want(t, served, 2, "quartet_pleg_pods")
	metricstest.Want(t, served, 1, "quartet_pleg_events_total", "type", "ContainerStarted")
	metricstest.Want(t, served, 0, "kubelet_pleg_discard_events")
	eventually.That(r.t, "the runtime has said that it is ready", func() bool {
		return metricstest.Value(t, served, "quartet_pleg_runtime_ready") == 1
	})
	if got := metricstest.Value(
		t,
		served,
		"kubelet_runtime_operations_total",
		"operation_type",
		"list_podsandbox",
	); got < 1 {
		t.Errorf("%v lists of sandboxes were counted", got)
	}
}
