package relist_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/services/pleg/internal/relist"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/fakecri"
)

func TestMetricsOfRelistsAndEvents(t *testing.T) {
	fake := fakecri.New(t)
	fake.RunPod(fakecri.Pod{UID: "uid-0", Containers: []string{"app"}})
	r := start(t, fake)
	want := func(value float64, metric string, labels ...string) {
		t.Helper()
		metricstest.Want(t, r.registry, value, metric, labels...)
	}
	eventually.That(r.t, "the first relist is counted", func() bool {
		return metricstest.Value(t, r.registry, "kubelet_pleg_relist_duration_seconds") == 1
	})
	want(0, "kubelet_pleg_relist_interval_seconds")
	want(float64(r.clock.Now().Unix()), "kubelet_pleg_last_seen_seconds")
	want(1, "kubelet_pleg_pod_relist_duration_seconds")
	want(1, "quartet_pleg_pods")
	// Containers from before the first relist cause no event.
	want(0, "quartet_pleg_events_total", "type", "ContainerStarted")

	next := r.subscribe()
	_, ids := fake.RunPod(fakecri.Pod{UID: "uid-1", Containers: []string{"app"}})
	r.clock.Step(relist.Period)
	next()
	next()
	eventually.That(r.t, "the second relist is counted", func() bool {
		return metricstest.Value(t, r.registry, "kubelet_pleg_relist_duration_seconds") == 2
	})
	want(1, "kubelet_pleg_relist_interval_seconds")
	want(1, "quartet_pleg_events_total", "type", "ContainerStarted")
	want(1, "quartet_pleg_events_total", "type", "PodSync")
	want(1, "quartet_pleg_event_latency_seconds") // of the container; a sandbox has no latency
	want(2, "quartet_pleg_pods")
	fake.Kill(ids["app"])
	r.Hint("uid-1", time.Time{})
	next()
	want(1, "quartet_pleg_events_total", "type", "ContainerDied")
	want(2, "quartet_pleg_event_latency_seconds")
	want(0, "quartet_pleg_evented")
	r.SetEvented(true)
	want(1, "quartet_pleg_evented")
}

func TestMetricsOfWhatFails(t *testing.T) {
	fake := fakecri.New(t)
	_, ids := fake.RunPod(fakecri.Pod{UID: "uid-1", Containers: []string{"app"}})
	r := start(t, fake)
	count := func(metric string) float64 {
		t.Helper()
		return metricstest.Value(t, r.registry, metric)
	}
	undo := fake.Fail("ContainerStatus", ids["app"], -1, fmt.Errorf("scripted"))
	r.Hint("uid-1", time.Time{})
	eventually.That(r.t,
		"a failed inspection is counted",
		func() bool { return count("quartet_pleg_inspection_errors_total") == 1 },
	)
	eventually.That(r.t, "the pod is not up to date", func() bool { return count("quartet_pleg_pods_uninspected") == 1 })
	undo()
	r.Hint("uid-1", time.Time{})
	eventually.That(r.t, "the pod is up to date again", func() bool { return count("quartet_pleg_pods_uninspected") == 0 })

	undo = fake.Fail("ListPodSandbox", "", 1, fmt.Errorf("scripted"))
	defer undo()
	r.clock.Step(relist.Period)
	eventually.That(
		r.t,
		"a failed relist is counted",
		func() bool { return count("quartet_pleg_relist_errors_total") == 1 },
	)
}

func TestMetricsOfInspectionsThatHang(t *testing.T) {
	fake := fakecri.New(t)
	_, ids := fake.RunPod(fakecri.Pod{UID: "uid-1", Containers: []string{"app"}})
	r := start(t, fake)
	gate := fake.Hang("ContainerStatus", ids["app"])
	for range 2 {
		r.Hint("uid-1", time.Time{})
	}
	count := func(metric string) float64 { return metricstest.Value(t, r.registry, metric) }
	if running, waiting := count("quartet_pleg_inspections_running"), count(
		"quartet_pleg_inspections_waiting",
	); running != 1 ||
		waiting != 1 {
		t.Errorf("%v inspections run and %v wait, want one of each", running, waiting)
	}
	gate.Open()
	eventually.That(r.t, "none is left", func() bool {
		return count("quartet_pleg_inspections_running") == 0 && count("quartet_pleg_inspections_waiting") == 0
	})
}
