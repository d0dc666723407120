package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"
)

// readOnly requests a path of the node's read-only API.
func readOnly(t *testing.T, path string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+node.Port()+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // the body was only read
	data, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: resp.Status = %s, %v, want resp.StatusCode %v", path, resp.Status, err, http.StatusOK)
	}
	return string(data)
}

// TestMonitoringOfKubeletsFindsItsMetrics checks the metrics of all four processes and of pods, at a kubelet's paths
// and with its names.
func TestMonitoringOfKubeletsFindsItsMetrics(t *testing.T) {
	limited := strings.Replace(manifest("monitored", 1, "sleep"), `args: ["sleep"]`, `args: ["sleep"], resources: {limits: {cpu: 100m, memory: 64Mi}}`, 1)
	place(t, "monitored.yaml", limited)
	await(t, "monitored", "Ready", ready)
	all := readOnly(t, "/metrics")
	for _, want := range []string{
		`kubelet_node_name\{node="[^"]+",process="nodestatus"\} 1`, `kubelet_pleg_relist_duration_seconds_bucket\{process="pleg",le="`, `kubelet_running_pods [1-9]`,
		`kubelet_runtime_operations_total\{operation_type="run_podsandbox"\} [1-9]`, `kubelet_runtime_operations_total\{operation_type="version",process="pleg"\} [1-9]`,
		`process_start_time_seconds \d`, `process_start_time_seconds\{process="configmux"\} \d`,
		`quartet_process_up\{process="configmux"\} 1`, `quartet_process_up\{process="nodestatus"\} 1`, `quartet_process_up\{process="pleg"\} 1`,
	} {
		if !regexp.MustCompile("(?m)^" + want).MatchString(all) {
			t.Errorf("/metrics has nothing as %s", want)
		}
	}
	const pod = `[^}]*namespace="e2e",pod="monitored-[^}]*\}`
	awaitThat(t, "the figures of the pod are there", func() bool {
		used := readOnly(t, "/metrics/cadvisor")
		for _, want := range []string{
			`container_cpu_cfs_periods_total\{container="` + pod, `container_cpu_cfs_throttled_seconds_total\{container="` + pod,
			`container_network_receive_packets_total\{` + pod, `container_network_transmit_packets_dropped_total\{` + pod, `container_oom_events_total\{container="` + pod,
		} {
			if !regexp.MustCompile("(?m)^" + want).MatchString(used) {
				return false
			}
		}
		return true
	})
	readOnly(t, "/healthz")
	if levels := readOnly(t, "/metrics/slis"); !strings.Contains(levels, fmt.Sprintf("kubernetes_healthcheck{name=%q,type=%q} 1", "syncloop", "healthz")) {
		t.Errorf("the health checks are %s, want text with %q",
			levels, fmt.Sprintf("kubernetes_healthcheck{name=%q,type=%q} 1", "syncloop", "healthz"))
	}
}
