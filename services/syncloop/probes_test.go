package syncloop

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/metrics"
	"github.com/quartet-node/quartet/internal/metrics/metricstest"
)

// TestProbesAreCountedAtAPathOfTheirOwn checks that the metrics of probes are served by the read-only API and on the
// metrics address, as long as the pod exists.
func TestProbesAreCountedAtAPathOfTheirOwn(t *testing.T) {
	m := newMachine(t)
	m.configmux.speak()
	m.start()
	var code atomic.Int32
	code.Store(1)
	m.cri.OnExec(func(string, []string) (stdout, stderr []byte, exitCode int32) { return nil, nil, code.Load() })
	pod := newPod("u1", "web", "a")
	pod.Spec.Containers[0].ReadinessProbe = &v1.Probe{
		ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"check"}}}, PeriodSeconds: 1, TimeoutSeconds: 1, SuccessThreshold: 1, FailureThreshold: 3,
	}
	m.put(seenNow(pod))
	m.eventually("it was asked", func() bool { return m.cri.Count("ExecSync", "") > 0 })
	if m.ready("u1")() {
		t.Error("web is ready, and its probe has failed")
	}
	code.Store(0)
	m.eventually("web is ready", m.ready("u1"))

	for _, served := range []prometheus.Gatherer{
		metricstest.ScrapeAt(m.cfg.MetricsListen, metrics.ProbesPath),
		metricstest.ScrapeAt(fmt.Sprintf("127.0.0.1:%d", m.cfg.Kubelet.ReadOnlyPort), metrics.ProbesPath),
	} {
		metricstest.Documented(t, served, metricstest.Probes)
		for _, result := range []string{"failed", "successful"} {
			if got := metricstest.Value(t, served, "prober_probe_total", "result", result, "probe_type", "Readiness", "pod_uid", "u1", "container", "a"); got < 1 {
				t.Errorf("%s: Value() = %v, want at least 1", result, got)
			}
		}
	}
	m.configmux.level.Delete("u1")
	m.eventually("what was counted of it is gone", func() bool {
		families, err := metricstest.ScrapeAt(m.cfg.MetricsListen, metrics.ProbesPath).Gather()
		if err != nil {
			t.Fatal(err)
		}
		return len(families) == 0
	})
}
