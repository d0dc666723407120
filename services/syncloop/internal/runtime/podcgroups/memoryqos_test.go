package podcgroups_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podtest"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/podcgroups"
	"github.com/quartet-node/quartet/test/eventually"
)

// TestRequestsAreProtectedAtEachLevel checks the cgroups of pods and those above them: a cgroup protects at most what
// those above it protect.
func TestRequestsAreProtectedAtEachLevel(t *testing.T) {
	registry := prometheus.NewRegistry()
	known := false
	r := newTree(t, func(cfg *podcgroups.Config) {
		cfg.Limits.MemoryQoS = resources.MemoryQoS{Enabled: true, Tiered: true}
		cfg.Metrics = podcgroups.NewMetrics(registry)
		pods := cfg.Pods
		cfg.Pods = func() ([]*v1.Pod, error) {
			if !known {
				return nil, errors.New("the pods are not known yet")
			}
			return pods()
		}
	})
	whole := podtest.List("cpu", "1", "memory", "1Gi")
	guaranteed := podtest.Pod("u1", podtest.Container(whole, whole))
	burstable := podtest.Pod("u2", podtest.Container(podtest.List("memory", "512Mi"), nil))
	bestEffort := podtest.Pod("u3", podtest.Container(nil, nil))
	unified := func(want map[string]map[string]string) {
		t.Helper()
		for name, settings := range want {
			if diff := cmp.Diff(settings, r.cgroups.get(name).Unified); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
	}

	r.ensure(guaranteed, "/kubepods/podu1")
	unified(map[string]map[string]string{
		"/kubepods": nil, "/kubepods/burstable": nil, // what an earlier process has set stays
		"/kubepods/podu1": {"memory.min": "1073741824"},
	})

	known = true
	r.want(guaranteed, burstable, bestEffort)
	r.ensure(burstable, "/kubepods/burstable/podu2")
	r.ensure(bestEffort, "/kubepods/besteffort/podu3")
	unified(map[string]map[string]string{
		"/kubepods":                 {"memory.min": "1610612736", "memory.low": "536870912"},
		"/kubepods/burstable":       {"memory.low": "536870912"},
		"/kubepods/burstable/podu2": {"memory.low": "536870912"},
		"/kubepods/besteffort":      nil, "/kubepods/besteffort/podu3": nil,
	})
	for name, want := range map[string]float64{
		"kubelet_memory_qos_node_memory_min_bytes": 1 << 30, "kubelet_memory_qos_node_memory_low_bytes": 512 << 20,
	} {
		if got := valueOf(t, registry, name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}

	r.want(bestEffort)
	r.run()
	r.turned()
	r.clock.Step(time.Minute)
	eventually.That(t, "nothing is protected after the pods", func() bool {
		return cmp.Equal(r.cgroups.get("/kubepods").Unified, map[string]string{"memory.min": "0", "memory.low": "0"})
	})
}

func valueOf(t *testing.T, registry *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == name {
			return family.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}
