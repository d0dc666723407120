package metrics_test

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/metrics"
)

var epoch = time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return epoch.Add(time.Duration(seconds) * time.Second) }

func seenPod(volumes ...v1.Volume) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: "u1", Annotations: map[string]string{podset.AnnotationSeen: epoch.Format(time.RFC3339Nano)}},
		Spec:       v1.PodSpec{Volumes: volumes},
	}
}

func TestEveryMetricIsInTheDocument(t *testing.T) {
	metricstest.Documented(t, everything(), metricstest.SyncLoop)
}

// sums returns the sum of each of the two kubelet histograms of a start, and the number of samples.
func sums(t *testing.T, g prometheus.Gatherer, name string) (float64, uint64) {
	t.Helper()
	h := family(t, g, name).GetMetric()[0].GetHistogram()
	return h.GetSampleSum(), h.GetSampleCount()
}

func TestTheStartObjectiveLeavesOutPullsAndInitContainers(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := metrics.New(registry)
	pod := seenPod(v1.Volume{VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}})
	// Two pulls side by side from 1 to 6, one from 8 to 9: six seconds.
	m.PullBegan(pod.UID, at(1))
	m.PullBegan(pod.UID, at(2))
	m.PullEnded(pod.UID, at(4))
	m.PullEnded(pod.UID, at(6))
	m.PullBegan(pod.UID, at(8))
	m.PullEnded(pod.UID, at(9))
	pod.Status.InitContainerStatuses = []v1.ContainerStatus{{State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
		StartedAt: metav1.NewTime(at(10)), FinishedAt: metav1.NewTime(at(13)),
	}}}}
	m.PodStarted(pod, at(20))
	if sum, n := sums(t, registry, "kubelet_pod_start_total_duration_seconds"); sum != 20 || n != 1 {
		t.Errorf("the total is %v of %d, want 20 s", sum, n)
	}
	if sum, n := sums(t, registry, "kubelet_pod_start_sli_duration_seconds"); sum != 20-6-3 || n != 1 {
		t.Errorf("the objective's is %v of %d, want 11 s", sum, n)
	}
}

func TestAPodThatMountsWhatOutlivesItIsNotPartOfTheObjective(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := metrics.New(registry)
	m.PodStarted(seenPod(v1.Volume{VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{}}}), at(20))
	if _, n := sums(t, registry, "kubelet_pod_start_total_duration_seconds"); n != 1 {
		t.Errorf("the total has %d samples, want 1", n)
	}
	if _, n := sums(t, registry, "kubelet_pod_start_sli_duration_seconds"); n != 0 {
		t.Errorf("the objective's has %d samples, want none", n)
	}
}

func TestCreationCountsBeforeTheFirstSight(t *testing.T) {
	registry := prometheus.NewRegistry()
	pod := seenPod()
	pod.CreationTimestamp = metav1.NewTime(at(-10))
	metrics.New(registry).PodStarted(pod, at(5))
	if sum, _ := sums(t, registry, "kubelet_pod_start_total_duration_seconds"); sum != 15 {
		t.Errorf("got %v, want 15 s since the creation", sum)
	}
}

func TestThePullsOfAPodThatIsGoneAreForgotten(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := metrics.New(registry)
	pod := seenPod()
	m.PullBegan(pod.UID, at(0))
	m.PodGone(pod.UID)
	m.PullEnded(pod.UID, at(5))
	m.PodStarted(pod, at(7)) // the same UID, come back
	if sum, _ := sums(t, registry, "kubelet_pod_start_sli_duration_seconds"); sum != 7 {
		t.Errorf("got %v, want 7 s: the pull was of the pod before", sum)
	}
}

func TestAClockThatWasSetBackMakesNoNegativeSample(t *testing.T) {
	registry := prometheus.NewRegistry()
	metrics.New(registry).PodRunning(-time.Hour)
	if sum, n := sums(t, registry, "kubelet_pod_start_duration_seconds"); sum != 0 || n != 1 {
		t.Errorf("got %v of %d", sum, n)
	}
}

func TestWhatIsCountedAtTheScrapeIsWhatIsThereThen(t *testing.T) {
	registry := prometheus.NewRegistry()
	pods := 0
	metrics.Collect(registry, metrics.Sources{
		Pods: func() metrics.Census {
			return metrics.Census{
				RunningPods: pods, Desired: map[bool]int{true: pods}, Containers: map[string]int{"exited": 3},
				Working: map[metrics.Working]int{{Lifecycle: "terminating", Config: "orphan", Static: true}: 2, {Lifecycle: "sync", Config: "runtime_only"}: 1},
				Waiting: []metrics.WaitingContainer{
					{Namespace: "shop", Pod: "web", Container: "main", Reason: "CrashLoopBackOff"},
					{Namespace: "shop", Pod: "web", Container: "main", Reason: "CrashLoopBackOff"},
				},
			}
		},
		Workers:  func() metrics.Workers { return metrics.Workers{States: map[string]int{"syncing": 4}, Pending: 2} },
		LastTurn: func() time.Time { return time.Time{} },
	})
	pods = 7 // after the registration, before the scrape
	want := `# HELP kubelet_running_pods Pods in the runtime that have a running sandbox.
# TYPE kubelet_running_pods gauge
kubelet_running_pods 7
# HELP quartet_container_waiting Always 1: a container waits, for the reason of its status. There is no series for a container that does not.
# TYPE quartet_container_waiting gauge
quartet_container_waiting{container="main",namespace="shop",pod="web",reason="CrashLoopBackOff"} 1
# HELP quartet_loop_last_turn_timestamp_seconds When the sync loop last turned, as seconds of the Unix epoch; 0 before its first turn.
# TYPE quartet_loop_last_turn_timestamp_seconds gauge
quartet_loop_last_turn_timestamp_seconds 0
# HELP quartet_pod_workers Workers by the state of their pod: syncing, terminating, terminated.
# TYPE quartet_pod_workers gauge
quartet_pod_workers{state="syncing"} 4
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "kubelet_running_pods", "quartet_container_waiting",
		"quartet_loop_last_turn_timestamp_seconds", "quartet_pod_workers"); err != nil {
		t.Error(err)
	}
	for _, m := range family(t, registry, "kubelet_working_pods").GetMetric() {
		labels := map[string]string{}
		for _, l := range m.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		want := 0.0
		switch {
		case labels["lifecycle"] == "terminating" && labels["config"] == "orphan" && labels["static"] == "true":
			want = 2
		case labels["lifecycle"] == "sync" && labels["config"] == "runtime_only" && labels["static"] == "unknown":
			want = 1
		}
		if got := m.GetGauge().GetValue(); got != want {
			t.Errorf("%v is %v, want %v", labels, got, want)
		}
	}
}
