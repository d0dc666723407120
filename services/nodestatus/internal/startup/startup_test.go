package startup

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quartet-node/quartet/internal/metrics/metricstest"
)

// TestEachPartOfAStartIsMeasuredOnce.
func TestEachPartOfAStartIsMeasuredOnce(t *testing.T) {
	registry, now := prometheus.NewRegistry(), 10*time.Second
	tracker := New(registry, func() time.Duration { return now })
	for range 2 { // as when the Node is deleted and recreated
		now += time.Second
		tracker.Attempted()
		now += 2 * time.Second
		tracker.Created()
		now += 4 * time.Second
		tracker.Ready()
	}
	for name, want := range map[string]float64{"pre_kubelet_": 10, "pre_registration_": 1, "registration_": 2, "post_registration_": 4, "": 17} {
		metricstest.Want(t, registry, want, "kubelet_node_startup_"+name+"duration_seconds")
	}
}

// TestOfANodeThatWasThereNothingIsMeasured.
func TestOfANodeThatWasThereNothingIsMeasured(t *testing.T) {
	registry := prometheus.NewRegistry()
	tracker := New(registry, func() time.Duration { return time.Hour })
	tracker.Ready()
	for _, name := range []string{"pre_kubelet_", "pre_registration_", "registration_", "post_registration_", ""} {
		metricstest.Want(t, registry, 0, "kubelet_node_startup_"+name+"duration_seconds")
	}
}
