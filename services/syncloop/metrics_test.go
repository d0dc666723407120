package syncloop

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/podset"
)

// metrics reads /metrics: values by name and labels, and for histograms the number of samples. It returns an empty map
// if there is no answer.
func (m *machine) metrics() map[string]float64 {
	m.t.Helper()
	values := map[string]float64{}
	resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", m.cfg.Kubelet.ReadOnlyPort)) //nolint:noctx // the test has a deadline of its own
	if err != nil {
		return values
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer resp.Body.Close() //nolint:errcheck // it has been read
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		m.t.Fatal(err)
	}
	for name, family := range families {
		for _, metric := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range metric.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			key := name
			for _, label := range slices.Sorted(maps.Keys(labels)) {
				key += fmt.Sprintf(" %s=%s", label, labels[label])
			}
			values[key] = metric.GetCounter().GetValue() + metric.GetGauge().GetValue() +
				float64(metric.GetHistogram().GetSampleCount())
		}
	}
	return values
}

// wantMetrics waits until the metrics have the given values.
func (m *machine) wantMetrics(what string, want map[string]float64) {
	m.t.Helper()
	var wrong []string
	deadline := time.Now().Add(60 * time.Second)
	for {
		got := m.metrics()
		wrong = nil
		for key, value := range want {
			if one, ok := got[key]; !ok || one != value {
				wrong = append(wrong, fmt.Sprintf("%s is %v (there: %v), want %v", key, one, ok, value))
			}
		}
		if len(wrong) == 0 {
			return
		}
		if time.Now().After(deadline) {
			slices.Sort(wrong)
			m.t.Fatalf("%s: after a minute %v", what, wrong)
		}
		<-time.After(5 * time.Millisecond)
	}
}

func seenNow(pod *v1.Pod) *v1.Pod {
	pod.Annotations = map[string]string{
		podset.AnnotationSeen: time.Now().Format(time.RFC3339Nano), podset.AnnotationSource: "file",
	}
	return pod
}

func TestTheStartOfAPodIsTimedOnceAndByPhase(t *testing.T) {
	m := newMachine(t)
	m.configmux.speak()
	stop := m.start()
	m.put(seenNow(newPod("u1", "web", "a")))
	m.eventually("web is ready", m.ready("u1"))
	starts := map[string]float64{
		"quartet_pod_start_duration_seconds": 1, "kubelet_pod_start_duration_seconds": 1, "kubelet_pod_start_total_duration_seconds": 1,
		"kubelet_pod_start_sli_duration_seconds": 1, "kubelet_pod_worker_start_duration_seconds": 1, "kubelet_started_pods_total": 1,
		"kubelet_run_podsandbox_duration_seconds runtime_handler=": 1, "quartet_start_gate_wait_duration_seconds": 1,
	}
	for _, phase := range []string{"dispatch", "wait", "sandbox", "observe", "ready"} {
		starts["quartet_pod_start_phase_duration_seconds phase="+phase] = 1
	}
	containers := map[string]float64{"kubelet_started_containers_total container_type=container": 1}
	for _, phase := range []string{"image", "create", "start"} {
		containers["quartet_pod_start_phase_duration_seconds phase="+phase] = 1
	}
	m.wantMetrics("after the start", starts)
	m.wantMetrics("after the start", containers)
	m.wantMetrics("what is there", map[string]float64{
		"kubelet_running_pods": 1, "kubelet_running_containers container_state=running": 1, "kubelet_desired_pods static=true": 1,
		"kubelet_active_pods static=true": 1, "kubelet_working_pods config=desired lifecycle=sync static=true": 1,
		"quartet_pod_workers state=syncing": 1, "quartet_pod_workers_failing": 0,
		"kubelet_pod_worker_duration_seconds operation_type=create": 1,
	})

	m.cri.Exit(m.containers()[0], 3)
	for key := range containers {
		containers[key] = 2
	}
	containers["kubelet_terminated_containers_total container_type=container exit_code=3 reason=Error"] = 1
	m.wantMetrics("after a crash: containers", containers)
	m.wantMetrics("after a crash: the start of the pod is not timed again", starts)

	stop()
	m.start()
	m.eventually("the pods are listed", m.ready("u1"))
	for key := range starts {
		if key != "kubelet_run_podsandbox_duration_seconds runtime_handler=" { // no sample with this label exists
			starts[key] = 0
		}
	}
	delete(starts, "kubelet_run_podsandbox_duration_seconds runtime_handler=")
	m.wantMetrics("after a restart of syncloop nobody's start is timed", starts)
	m.wantMetrics("after a restart of syncloop", map[string]float64{"kubelet_running_pods": 1})
}

func TestFailuresAreCountedByWhatFailed(t *testing.T) {
	m := newMachine(t)
	undo := m.cri.Fail("RunPodSandbox", "", 1000, errors.New("no network for you"))
	missing := newPod("u2", "missing", "a")
	missing.Spec.Containers[0].Image, missing.Spec.Containers[0].ImagePullPolicy = "example.test/not-there:1", v1.PullNever
	m.put(seenNow(newPod("u1", "web", "a")))
	m.configmux.speak()
	m.start()
	m.eventually("the failure is counted", func() bool {
		got := m.metrics()
		return got["kubelet_started_pods_errors_total"] > 0 && got["kubelet_run_podsandbox_errors_total runtime_handler="] > 0 &&
			got["quartet_pod_worker_retries_total reason=runtime"] > 0 && got["quartet_pod_workers_failing"] == 1 &&
			got["quartet_pod_start_phase_duration_seconds phase=sandbox"] == 0
	})
	undo()
	m.eventually("web is ready", m.ready("u1"))
	m.put(seenNow(missing))
	m.eventually("the image is counted, and its container waits", func() bool {
		got := m.metrics()
		return got["kubelet_started_containers_errors_total code=ErrImageNeverPull container_type=container"] > 0 &&
			got["quartet_pod_worker_retries_total reason=image"] > 0 &&
			got["quartet_container_waiting container=a namespace=default pod=missing reason=ErrImageNeverPull"] == 1
	})
}

func TestAPodThatComesBackWhileItEndsCountsAsRestarted(t *testing.T) {
	m := newMachine(t)
	m.put(seenNow(newPod("u1", "web", "a")))
	m.configmux.speak()
	m.start()
	m.eventually("web is ready", m.ready("u1"))
	first := m.containers()
	gate := m.cri.Hang("StopPodSandbox", "") // it terminates until the gate opens
	m.configmux.level.Delete("u1")
	m.wantMetrics("web is ending", map[string]float64{
		"quartet_pod_workers state=terminating": 1, "quartet_pod_workers_busy": 1, "kubelet_working_pods config=orphan lifecycle=terminating static=true": 1,
	})
	m.put(seenNow(newPod("u1", "web", "a")))
	m.eventually("web waits for its own end", func() bool { return m.metrics()["quartet_pods_waiting_for_name"] == 1 })
	gate.Open()
	m.eventually("web runs again", func() bool { return m.ready("u1")() && !slices.Equal(m.containers(), first) })
	m.wantMetrics("after it came back", map[string]float64{"kubelet_restarted_pods_total static=true": 1, "quartet_pods_waiting_for_name": 0})
}

func TestAConfigmuxElsewhereIsNoProcessOfTheNode(t *testing.T) {
	h := &host{cfg: nodeconfig.Config{Peers: nodeconfig.Peers{
		ConfigMux: "configmux.example:7441", PLEG: "unix:///p.sock", SyncLoop: "unix:///s.sock", NodeStatus: "unix:///n.sock",
	}}}
	want := map[string]string{"pleg": "unix:///p-metrics.sock", "nodestatus": "unix:///n-metrics.sock"}
	if got := nodeMetrics(h).Others; !maps.Equal(got, want) {
		t.Errorf("nodeMetrics() reads %v, want %v", got, want)
	}
}
