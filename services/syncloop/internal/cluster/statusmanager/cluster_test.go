package statusmanager_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/statusmanager"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podstatus"
	"github.com/quartet-node/quartet/test/cluster"
)

var shared = cluster.Shared{Options: []cluster.Option{cluster.Flags("--feature-gates=CSIVolumeHealth=true")}}

func TestMain(m *testing.M) { goleak.VerifyTestMain(shared.Main(m)) }

// node is a Manager that acts as a node of a real API server, with the default rate limits of a node.
type node struct {
	*statusmanager.Manager
	name string
	c    *cluster.Cluster
	t    testing.TB
}

func newNode(t testing.TB, c *cluster.Cluster, name string) node {
	t.Helper()
	if _, err := c.Client(t).CoreV1().Nodes().Create(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	client, err := apiclient.New(apiclient.Config{
		Kubeconfig: c.Kubeconfig(t, cluster.NodeUser(name), cluster.Nodes), Service: nodeconfig.SyncLoop, QPS: 50, Burst: 100,
		ContentType: "application/vnd.kubernetes.protobuf",
	})
	if err != nil {
		t.Fatal(err)
	}
	m := statusmanager.New(statusmanager.Config{
		API: statusmanager.FromAPIServer(client.Core), Clock: clock.RealClock{}, Tracer: telemetry.Off(),
		Logger: slog.New(slog.DiscardHandler),
	})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = m.Run(ctx) // returns the error of its context
	}()
	t.Cleanup(func() {
		stop()
		<-done
		client.Close()
	})
	return node{m, name, c, t}
}

// create creates a pod that is bound to the node.
func (n node) create(name string, gates ...v1.PodReadinessGate) *v1.Pod {
	n.t.Helper()
	pod, err := n.c.Client(n.t).CoreV1().Pods("default").Create(n.t.Context(), &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: n.name + "-" + name},
		Spec: v1.PodSpec{
			NodeName: n.name, AutomountServiceAccountToken: ptr.To(false), ReadinessGates: gates,
			Containers: []v1.Container{{Name: "c", Image: "i:1", Resources: v1.ResourceRequirements{}}},
			Volumes:    []v1.Volume{{Name: "data"}, {Name: "logs"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	return pod
}

// await returns the pod as soon as the API server's copy fulfills the condition; nil stands for a missing pod.
func (n node) await(pod *v1.Pod, what string, wanted func(*v1.Pod) bool) *v1.Pod {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), 60*time.Second)
	defer cancel()
	pods := n.c.Client(n.t).CoreV1().Pods("default")
	for {
		got, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			got, err = nil, nil
		}
		if err != nil {
			n.t.Fatalf("the pod is not %s: %v", what, err)
		}
		if wanted(got) {
			return got
		}
		select {
		case <-ctx.Done():
			n.t.Fatalf("the pod is not %s: %+v", what, got)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// running returns the status of a pod with a running container.
func running(pod *v1.Pod) v1.PodStatus {
	now := metav1.Now()
	s := v1.PodStatus{
		Phase: v1.PodRunning, HostIP: "10.1.0.1", HostIPs: []v1.HostIP{{IP: "10.1.0.1"}}, PodIP: "10.0.0.1", PodIPs: []v1.PodIP{{IP: "10.0.0.1"}},
		StartTime: &now, ObservedGeneration: pod.Generation, QOSClass: v1.PodQOSBestEffort,
		ContainerStatuses: []v1.ContainerStatus{{
			Name: "c", Image: "i:1", ContainerID: "containerd://abc", Ready: true, Started: ptr.To(true),
			State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: now}},
		}},
	}
	for _, kind := range []v1.PodConditionType{
		v1.PodReadyToStartContainers, v1.PodInitialized, v1.PodReady, v1.ContainersReady, v1.PodScheduled,
	} {
		s.Conditions = append(s.Conditions, v1.PodCondition{
			Type: kind, Status: v1.ConditionTrue, LastTransitionTime: now, ObservedGeneration: pod.Generation,
		})
	}
	return s
}

func isReady(p *v1.Pod) bool {
	return p != nil && slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.PodReady && c.Status == v1.ConditionTrue
	})
}

// TestAStatusAtARealAPIServer checks that the status is written completely, that conditions of others stay, that
// changes by others are corrected, and that a deleted pod's object is removed last.
func TestAStatusAtARealAPIServer(t *testing.T) {
	const gate = v1.PodConditionType("example.com/gate")
	n := newNode(t, shared.Cluster(t), "status-node")
	pods := n.c.Client(t).CoreV1().Pods("default")
	pod := n.create("life", v1.PodReadinessGate{ConditionType: gate})
	status := running(pod)
	n.Report(podstatus.Report{Pod: pod, Status: status, MayRun: true})
	has := n.await(pod, "Ready", isReady)
	if has.Status.Phase != v1.PodRunning || has.Status.PodIPs[0].IP != "10.0.0.1" || has.Status.HostIPs[0].IP != "10.1.0.1" || has.Status.ObservedGeneration != 1 ||
		has.Status.QOSClass != v1.PodQOSBestEffort || has.Status.StartTime == nil || len(has.Status.ContainerStatuses) != 1 {
		t.Errorf("the API server has %+v", has.Status)
	}
	version := has.ResourceVersion

	open := []byte(`{"status":{"phase":"Pending","podIPs":[{"ip":"198.51.100.1"},{"$patch":"replace"}],"podIP":"198.51.100.1","conditions":[{"type":"example.com/gate","status":"True"}]}}`)
	wrong, err := pods.Patch(t.Context(), pod.Name, types.StrategicMergePatchType, open, metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
	n.Report(podstatus.Report{Pod: wrong, Status: status, MayRun: true})
	has = n.await(pod, "Running again", func(p *v1.Pod) bool { return p.Status.Phase == v1.PodRunning })
	if len(has.Status.PodIPs) != 1 || has.Status.PodIP != "10.0.0.1" || has.ResourceVersion == version ||
		!slices.ContainsFunc(has.Status.Conditions, func(c v1.PodCondition) bool {
			return c.Type == gate && c.Status == v1.ConditionTrue
		}) {
		t.Errorf("the API server has %+v", has.Status)
	}

	unknown := running(pod)
	unknown.Conditions = append(unknown.Conditions, v1.PodCondition{
		Type: podset.ConditionRuntimeStateUnknown, Status: v1.ConditionTrue,
	})
	n.Report(podstatus.Report{Pod: has, Status: unknown, MayRun: true})
	isUnknown := func(p *v1.Pod) bool {
		return slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool {
			return c.Type == podset.ConditionRuntimeStateUnknown
		})
	}
	n.await(pod, "Unknown", isUnknown)
	n.Report(podstatus.Report{Pod: has, Status: status, MayRun: true})
	n.await(pod, "known again", func(p *v1.Pod) bool { return !isUnknown(p) })

	if err := pods.Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	ending := n.await(pod, "ending", func(p *v1.Pod) bool { return p != nil && p.DeletionTimestamp != nil })
	last := status.DeepCopy()
	last.Phase = v1.PodSucceeded
	last.ContainerStatuses[0].State = v1.ContainerState{
		Terminated: &v1.ContainerStateTerminated{Reason: "Completed", ContainerID: "containerd://abc"},
	}
	n.Report(podstatus.Report{Pod: ending, Status: *last})
	n.await(pod, "Succeeded", func(p *v1.Pod) bool { return p != nil && p.Status.Phase == v1.PodSucceeded })
	n.Report(podstatus.Report{Pod: ending, Status: *last, Released: true})
	n.await(pod, "gone", func(p *v1.Pod) bool { return p == nil })
	if n.Unsent() != 0 {
		t.Error("something is unsent of a pod that is gone")
	}
}

// TestTheHealthOfVolumesAtARealAPIServer checks that conditions of volumes are written and removed.
func TestTheHealthOfVolumesAtARealAPIServer(t *testing.T) {
	n := newNode(t, shared.Cluster(t), "health-node")
	pod := n.create("ill")
	status := running(pod)
	slow := v1.VolumeHealthCondition{Status: v1.VolumeHealthDegraded, Reason: "DiskSlow", Message: "a disk is slow"}
	gone := v1.VolumeHealthCondition{Status: v1.VolumeHealthInaccessible, Reason: "Gone"}
	for _, conditions := range [][]v1.VolumeHealthCondition{{slow, gone}, {gone}, nil} {
		status.VolumeHealth = []v1.PodVolumeHealth{{Name: "data", HealthConditions: conditions}, {Name: "logs"}}
		n.Report(podstatus.Report{Pod: pod, Status: status, MayRun: true})
		n.await(pod, "with the health of its volumes", func(p *v1.Pod) bool {
			return equality.Semantic.DeepEqual(p.Status.VolumeHealth, status.VolumeHealth)
		})
	}
}

// TestAPodThatWasReplacedAtARealAPIServer checks that its status is not written to the new pod of its name.
func TestAPodThatWasReplacedAtARealAPIServer(t *testing.T) {
	n := newNode(t, shared.Cluster(t), "replaced-node")
	pods := n.c.Client(t).CoreV1().Pods("default")
	old := n.create("twice")
	if err := pods.Delete(t.Context(), old.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
		t.Fatal(err)
	}
	fresh := n.create("twice")
	old.DeletionTimestamp = ptr.To(metav1.Now())
	n.Report(podstatus.Report{Pod: old, Status: v1.PodStatus{Phase: v1.PodFailed}, Released: true})
	if err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) { return n.Unsent() == 0, nil }); err != nil {
		t.Fatalf("%d statuses are not sent: %v", n.Unsent(), err)
	}
	if got := n.await(fresh, "there", func(p *v1.Pod) bool { return p != nil }); got.UID != fresh.UID || got.Status.Phase != v1.PodPending || got.DeletionTimestamp != nil {
		t.Errorf("the pod in its place is %+v", got)
	}
}

// BenchmarkReadyAtTheAPIServer measures how long it takes until a status that reports Ready arrives at a real API
// server. 110 pods become Ready one after another, ten per second as a node starts containers, or all at once. It
// prints p50-ms and p99-ms from the report to the API server's watch.
func BenchmarkReadyAtTheAPIServer(b *testing.B) {
	for _, way := range []struct {
		name  string
		every time.Duration
	}{{"ten-a-second", 100 * time.Millisecond}, {"at-once", 0}} {
		b.Run(way.name, func(b *testing.B) {
			c := shared.Cluster(b)
			n := newNode(b, c, fmt.Sprintf("bench-%s-%d", way.name, time.Now().UnixNano()))
			watch, err := c.Client(b).CoreV1().Pods("default").Watch(b.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + n.name})
			if err != nil {
				b.Fatal(err)
			}
			defer watch.Stop()
			var took []time.Duration
			for b.Loop() {
				took = append(took, n.becomeReady(b, 110, way.every, func() *v1.Pod {
					pod, _ := (<-watch.ResultChan()).Object.(*v1.Pod)
					return pod
				})...)
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
		})
	}
}

// becomeReady makes pods ready one after another at an interval. It returns the time from each report to the watch.
func (n node) becomeReady(b *testing.B, pods int, every time.Duration, next func() *v1.Pod) []time.Duration {
	b.Helper()
	observed := make(chan *v1.Pod, pods)
	reported := make(map[types.UID]time.Time, pods)
	for i := range pods {
		observed <- n.create(fmt.Sprintf("%d-%d", time.Now().UnixNano(), i))
	}
	close(observed)
	// The rate limiter has refilled, as on a node whose pods take some time to become ready.
	began := time.Now()
	type sent struct {
		uid types.UID
		at  time.Time
	}
	sends := make(chan sent, pods)
	go func() {
		for pod := range observed {
			sends <- sent{pod.UID, time.Now()}
			n.Report(podstatus.Report{Pod: pod, Status: running(pod), MayRun: true})
			time.Sleep(every)
		}
	}()
	var took []time.Duration
	for len(took) < pods {
		pod := next()
		if pod == nil {
			b.Fatalf("the watch has ended after %v", time.Since(began))
		}
		if !isReady(pod) {
			continue
		}
		now := time.Now()
		for reported[pod.UID].IsZero() {
			s := <-sends
			reported[s.uid] = s.at
		}
		took = append(took, now.Sub(reported[pod.UID]))
	}
	for uid := range reported {
		n.Forget(uid)
	}
	return took
}
