package podstore

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/internal/podset"
)

var epoch = time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return epoch.Add(time.Duration(seconds) * time.Second) }

func seenPod(volumes ...v1.Volume) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: "u1", Annotations: map[string]string{podset.AnnotationSeen: epoch.Format(time.RFC3339Nano)}},
		Spec:       v1.PodSpec{Volumes: volumes},
	}
}

// sums returns the sum of a histogram and the number of its samples.
func sums(t *testing.T, g prometheus.Gatherer, name string) (float64, uint64) {
	t.Helper()
	h := family(t, g, name).GetMetric()[0].GetHistogram()
	return h.GetSampleSum(), h.GetSampleCount()
}

func family(t *testing.T, g prometheus.Gatherer, name string) *dto.MetricFamily {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f
		}
	}
	t.Fatalf("there is no %s", name)
	return nil
}

func TestTheStartObjectiveLeavesOutPullsAndInitContainers(t *testing.T) {
	registry := prometheus.NewRegistry()
	pod := seenPod(v1.Volume{VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}})
	ended := v1.ContainerStateTerminated{StartedAt: metav1.NewTime(at(10)), FinishedAt: metav1.NewTime(at(13))}
	pod.Status.InitContainerStatuses = []v1.ContainerStatus{{State: v1.ContainerState{Terminated: &ended}}}
	NewMetrics(registry).started(pod, 6*time.Second, at(20))
	if sum, n := sums(t, registry, "kubelet_pod_start_total_duration_seconds"); sum != 20 || n != 1 {
		t.Errorf("the total is %v of %d, want 20 s", sum, n)
	}
	if sum, n := sums(t, registry, "kubelet_pod_start_sli_duration_seconds"); sum != 20-6-3 || n != 1 {
		t.Errorf("the objective has %v of %d, want 11 s", sum, n)
	}
}

func TestAPodThatMountsWhatOutlivesItIsNotPartOfTheObjective(t *testing.T) {
	registry := prometheus.NewRegistry()
	pod := seenPod(v1.Volume{VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{}}})
	NewMetrics(registry).started(pod, 0, at(20))
	metricstest.Want(t, registry, 1, "kubelet_pod_start_total_duration_seconds")
	metricstest.Want(t, registry, 0, "kubelet_pod_start_sli_duration_seconds")
}

func TestCreationCountsBeforeTheFirstSight(t *testing.T) {
	registry := prometheus.NewRegistry()
	pod := seenPod()
	pod.CreationTimestamp = metav1.NewTime(at(-10))
	NewMetrics(registry).started(pod, 0, at(5))
	if sum, _ := sums(t, registry, "kubelet_pod_start_total_duration_seconds"); sum != 15 {
		t.Errorf("got %v, want 15 s since the creation", sum)
	}
}

func TestAClockThatWasSetBackMakesNoNegativeSample(t *testing.T) {
	registry := prometheus.NewRegistry()
	NewMetrics(registry).running(-time.Hour)
	if sum, n := sums(t, registry, "kubelet_pod_start_duration_seconds"); sum != 0 || n != 1 {
		t.Errorf("got %v of %d, want 0 and 1", sum, n)
	}
}

func TestTheCensusIsTakenAtTheScrape(t *testing.T) {
	registry := prometheus.NewRegistry()
	pods := 0
	NewMetrics(registry).Expose(func() Census {
		return Census{
			RunningPods: pods, Desired: map[bool]int{true: pods}, Containers: map[string]int{"exited": 3},
			Working: map[Working]int{{Lifecycle: "terminating", Config: "orphan", Static: true}: 2, {Lifecycle: "sync", Config: "runtime_only"}: 1},
			Waiting: []WaitingContainer{
				{Namespace: "shop", Pod: "web", Container: "main", Reason: "CrashLoopBackOff"},
				{Namespace: "shop", Pod: "web", Container: "main", Reason: "CrashLoopBackOff"},
			},
		}
	})
	pods = 7 // after the registration, before the scrape
	const want = `# HELP kubelet_running_pods Pods in the runtime that have a running sandbox.
# TYPE kubelet_running_pods gauge
kubelet_running_pods 7
# HELP quartet_container_waiting 1 for each waiting container, with the reason in its status.
# TYPE quartet_container_waiting gauge
quartet_container_waiting{container="main",namespace="shop",pod="web",reason="CrashLoopBackOff"} 1
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "kubelet_running_pods", "quartet_container_waiting"); err != nil {
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
