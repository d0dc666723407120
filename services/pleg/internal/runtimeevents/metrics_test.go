package runtimeevents_test

import (
	"errors"
	"testing"

	"github.com/quartet-node/quartet/internal/metrics/metricstest"
)

func TestMetricsOfTheEventStream(t *testing.T) {
	r := start(t)
	s := <-r.begun
	s.opened()
	s.handle(event("a", "c1", 1, started))
	s.handle(event("a", "c1", 0, started)) // it does not say when
	want := func(value float64, metric string) {
		t.Helper()
		metricstest.Want(t, r.registry, value, metric)
	}
	want(1, "kubelet_evented_pleg_connection_success_count")
	want(0, "kubelet_evented_pleg_connection_error_count")
	want(2, "quartet_pleg_runtime_events_total")
	want(1, "kubelet_evented_pleg_connection_latency_seconds")
	s.end <- errors.New("broken")
	r.eventually("the end is counted", func() bool {
		return metricstest.Value(t, r.registry, "kubelet_evented_pleg_connection_error_count") == 1
	})
	s, _ = r.next()
	s.end <- errors.New("broken")
	r.eventually("a stream that never began is counted", func() bool {
		return metricstest.Value(t, r.registry, "kubelet_evented_pleg_connection_error_count") == 2
	})
	want(1, "kubelet_evented_pleg_connection_success_count")
}
