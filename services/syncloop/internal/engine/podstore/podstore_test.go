package podstore_test

import (
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/statusmanager"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podstatus"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
)

func newStore(t *testing.T, messages func(*v1.Pod, []*lifecyclev1.Container) map[string]string) *podstore.Store {
	t.Helper()
	return newStoreWith(t, func(cfg *podstore.Config) { cfg.Messages = messages })
}

func newStoreWith(t *testing.T, change func(*podstore.Config)) *podstore.Store {
	t.Helper()
	cfg := podstore.Config{
		API: statusmanager.None{}, Clock: clocktesting.NewFakeClock(time.Now()),
		Tracer: noop.NewTracerProvider().Tracer(""), Logger: slog.New(slog.DiscardHandler),
	}
	change(&cfg)
	s := podstore.New(cfg)
	t.Cleanup(s.Close)
	s.SetHostIPs([]string{"192.0.2.1"})
	return s
}

// TestAddressesOfTheNodeAreNeverOutOfDate changes the addresses of the node. A pod of the host network without
// addresses gets the new ones at once. A pod that has addresses keeps them.
func TestAddressesOfTheNodeAreNeverOutOfDate(t *testing.T) {
	node := fakenode.New()
	s := newStore(t, nil)
	s.SetHostIPs(nil)
	pod := fakenode.Pod("u1", "web", v1.RestartPolicyAlways)
	pod.Spec.HostNetwork = true
	node.Run(pod)
	s.SetPod(pod, "file", "")
	s.Observe("u1", running(t, node, "u1"))
	s.Open()
	s.SetWaiting("")
	for _, tc := range []struct{ host, pod []string }{
		{host: nil},
		{host: []string{"192.0.2.1", "2001:db8::1"}, pod: []string{"192.0.2.1", "2001:db8::1"}},
		{host: []string{"192.0.2.2", "2001:db8::1"}, pod: []string{"192.0.2.1", "2001:db8::1"}},
	} {
		s.SetHostIPs(tc.host)
		pods, err := s.Pods()
		if err != nil || len(pods) != 1 {
			t.Fatalf("Pods() = %v, %v, want exactly one", pods, err)
		}
		status := pods[0].Status
		var hosts, ips []string
		for _, ip := range status.HostIPs {
			hosts = append(hosts, ip.IP)
		}
		for _, ip := range status.PodIPs {
			ips = append(ips, ip.IP)
		}
		if !slices.Equal(hosts, tc.host) || !slices.Equal(ips, tc.pod) || (len(hosts) > 0 && status.HostIP != hosts[0]) {
			t.Errorf("the node has %q: hostIPs %q (%s), podIPs %q, want %q", tc.host, hosts, status.HostIP, ips, tc.pod)
		}
	}
}

func running(t *testing.T, node *fakenode.Node, uid types.UID) *lifecyclev1.PodStatus {
	t.Helper()
	status, err := node.GetPodStatus(t.Context(), uid, 0)
	if err != nil {
		t.Fatal(err)
	}
	return status
}

func TestNothingIsListedBeforeItIsKnown(t *testing.T) {
	s := newStore(t, nil)
	s.SetWaiting("pleg is away")
	var notReady *podstore.NotReadyError
	if _, err := s.Pods(); !errors.As(err, &notReady) || notReady.Reason != "pleg is away" {
		t.Errorf("Pods: %v, want a %T and notReady.Reason %q", err, notReady, "pleg is away")
	}
	if _, err := s.List(); !errors.As(err, &notReady) {
		t.Errorf("List: %v, want a %T", err, notReady)
	}
	if _, err := s.Source(); !errors.As(err, &notReady) {
		t.Errorf("Source: %v, want a %T", err, notReady)
	}
}

func TestThePublishedPodIsThePodWithItsStatus(t *testing.T) {
	node := fakenode.New()
	pod := fakenode.Pod("u1", "web", v1.RestartPolicyAlways)
	node.Run(pod)
	s := newStore(t, nil)
	s.SetPod(pod, "file", "")
	s.Observe("u1", running(t, node, "u1"))
	s.Open()
	s.SetWaiting("")
	list, err := s.List()
	if err != nil || len(list) != 1 {
		t.Fatalf("List() = %v, %v, want exactly one", list, err)
	}
	var got v1.Pod
	if err := got.Unmarshal(list[0].GetPod()); err != nil {
		t.Fatal(err)
	}
	if got.Name != "web" || got.Status.Phase != v1.PodRunning || got.Status.HostIP != "192.0.2.1" || list[0].GetSource() != "file" ||
		list[0].GetWorkerState() != enginev1.WorkerState_WORKER_STATE_SYNCING {
		t.Errorf("got %v of %v", got.Status, list[0].GetSource())
	}
	if pod.Status.Phase != "" {
		t.Error("the pod that was put in has been changed")
	}
}

func TestOnlyChangesArePublished(t *testing.T) {
	node := fakenode.New()
	pod := fakenode.Pod("u1", "web", v1.RestartPolicyAlways)
	node.Run(pod)
	s := newStore(t, nil)
	s.Open()
	s.SetWaiting("")
	s.SetPod(pod, "file", "")
	status := running(t, node, "u1")
	s.Observe("u1", status)
	source, err := s.Source()
	if err != nil {
		t.Fatal(err)
	}
	sub, err := source.Subscribe(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	next := func() stream.Message[*enginev1.Pod] {
		m, err := sub.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	for _, want := range []stream.Kind{stream.KindOpened, stream.KindSnapshot, stream.KindSynced} {
		if m := next(); m.Kind != want {
			t.Fatalf("got %v, want %v", m.Kind, want)
		}
	}
	fresh, err := node.GetPodStatus(t.Context(), "u1", time.Duration(status.GetObservedBoottimeNs()))
	if err != nil {
		t.Fatal(err)
	}
	s.Observe("u1", fresh) // only the time of the observation is new
	s.SetState("u1", podworkers.Syncing)
	s.SetState("u1", podworkers.Terminating)
	if m := next(); m.Value.GetWorkerState() != enginev1.WorkerState_WORKER_STATE_TERMINATING {
		t.Fatalf("got %v first, want %v", m.Value.GetWorkerState(), enginev1.WorkerState_WORKER_STATE_TERMINATING)
	}
	s.Unwant("u1")
	s.Forget("u1")
	if m := next(); !m.Removed {
		t.Fatalf("got %v, want the removal", m)
	}
}

func TestAnOlderObservationChangesNothing(t *testing.T) {
	node := fakenode.New()
	pod := fakenode.Pod("u1", "web", v1.RestartPolicyAlways)
	node.Run(pod)
	s := newStore(t, nil)
	s.Open()
	s.SetPod(pod, "file", "")
	old := running(t, node, "u1")
	node.Exit("u1", 1)
	newer := running(t, node, "u1")
	s.Observe("u1", newer)
	s.Observe("u1", old)
	if got := s.Observed("u1"); got != newer {
		t.Error("the older observation won")
	}
}

// TestAPodThatCannotBeInspectedAnyMoreIsShownSo: the error of an inspection is newer than the observation before it,
// although both have the same time. The observation without the error is not.
func TestAPodThatCannotBeInspectedAnyMoreIsShownSo(t *testing.T) {
	node := fakenode.New()
	pod := fakenode.Pod("u1", "web", v1.RestartPolicyAlways)
	node.Run(pod)
	s := newStore(t, nil)
	s.Open()
	s.SetPod(pod, "file", "")
	last := running(t, node, "u1")
	unknown := func() bool {
		t.Helper()
		pods, err := s.Pods()
		if err != nil || len(pods) != 1 {
			t.Fatalf("Pods() = %v, %v, want exactly one", pods, err)
		}
		return slices.ContainsFunc(pods[0].Status.Conditions, func(c v1.PodCondition) bool {
			return c.Type == podset.ConditionRuntimeStateUnknown
		})
	}
	s.SetWaiting("")
	s.Observe("u1", last)
	hung := proto.CloneOf(last)
	hung.InspectError, hung.UnknownSince = "no answer", timestamppb.Now()
	s.Event(&lifecyclev1.Event{Type: lifecyclev1.EventType_EVENT_TYPE_POD_SYNC, PodUid: "u1", Status: hung})
	if !unknown() {
		t.Error("it is not shown")
	}
	s.Observe("u1", last)
	if !unknown() {
		t.Error("an older answer has removed the condition")
	}
	fresh, err := node.GetPodStatus(t.Context(), "u1", time.Duration(last.GetObservedBoottimeNs()))
	if err != nil {
		t.Fatal(err)
	}
	s.Observe("u1", fresh)
	if unknown() {
		t.Error("the condition is still there after a success")
	}
}

func TestPodsAreWhatASourceNamesAndListIsAll(t *testing.T) {
	s := newStore(t, nil)
	s.Open()
	s.SetWaiting("")
	s.SetPod(fakenode.Pod("u1", "web", v1.RestartPolicyAlways), "file", "")
	s.SetPod(fakenode.Pod("u2", "orphan", v1.RestartPolicyAlways), "", "")
	s.SetPod(fakenode.Pod("u3", "leaving", v1.RestartPolicyAlways), "file", "")
	s.Unwant("u3")
	pods, err := s.Pods()
	if err != nil || len(pods) != 1 || pods[0].Name != "web" {
		t.Errorf("Pods: %v, %v, want exactly one and pods[0].Name %q", pods, err, "web")
	}
	list, err := s.List()
	if err != nil || len(list) != 3 {
		t.Errorf("List: %v, %v, want 3 entries", list, err)
	}
}

// TestTheReasonOfAWaitIsGoneOnceThereIsASandbox checks that the reason for the pod disappears with the sandbox, before
// the sync ends.
func TestTheReasonOfAWaitIsGoneOnceThereIsASandbox(t *testing.T) {
	node := fakenode.New()
	pod := fakenode.Pod("u1", "web", v1.RestartPolicyAlways)
	s := newStore(t, nil)
	s.Open()
	s.SetWaiting("")
	s.SetPod(pod, "file", "")
	reason := func() string {
		t.Helper()
		pods, err := s.Pods()
		if err != nil || len(pods) != 1 {
			t.Fatalf("%d pods, %v, want len(pods) 1", len(pods), err)
		}
		return pods[0].Status.Reason
	}
	held := podstatus.Reason{Reason: podstatus.ReasonSandbox, Message: "no network"}
	s.Synced("u1", podworkers.SyncReport{ReasonsKnown: true, Wait: held})
	if got := reason(); got != held.Reason {
		t.Errorf("a pod without a sandbox has the reason %q", got)
	}
	node.Run(pod)
	s.Observe("u1", running(t, node, "u1"))
	if got := reason(); got != "" {
		t.Errorf("a pod that runs has the reason %q, want an empty text", got)
	}
	s.Synced("u1", podworkers.SyncReport{ReasonsKnown: true, Wait: held}) // as for a volume that another container needs
	if got := reason(); got != held.Reason {
		t.Errorf("a pod that waits in its sandbox has the reason %q", got)
	}
}

func TestTerminationMessagesAreReadOnceForEachContainer(t *testing.T) {
	node := fakenode.New()
	pod := fakenode.Pod("u1", "web", v1.RestartPolicyNever)
	node.Run(pod)
	reads := 0
	s := newStore(t, func(_ *v1.Pod, ended []*lifecyclev1.Container) map[string]string {
		reads += len(ended)
		return map[string]string{ended[0].GetId(): "out of luck"}
	})
	s.Open()
	s.SetWaiting("")
	s.SetPod(pod, "file", "")
	node.Exit("u1", 3)
	for range 3 {
		s.Observe("u1", running(t, node, "u1"))
	}
	pods, err := s.Pods()
	if err != nil {
		t.Fatal(err)
	}
	ended := pods[0].Status.ContainerStatuses[0].State.Terminated
	if ended == nil || ended.Message != "out of luck" || reads != 1 {
		t.Errorf("got %v after %d reads", ended, reads)
	}
}

func TestForgottenPodThatIsNamedAgainStartsAfresh(t *testing.T) {
	node := fakenode.New()
	pod := fakenode.Pod("u1", "job", v1.RestartPolicyNever)
	node.Run(pod)
	s := newStore(t, nil)
	s.Open()
	s.SetPod(pod, "file", "")
	node.Exit("u1", 0)
	s.Observe("u1", running(t, node, "u1"))
	if got := s.Phase("u1"); got != v1.PodSucceeded {
		t.Fatalf("phase %q, want %q", got, v1.PodSucceeded)
	}
	s.Forget("u1")
	if got := s.Phase("u1"); got != v1.PodPending {
		t.Errorf("phase %q, want %q", got, v1.PodPending)
	}
}

func TestContainerIDsHaveTheRuntimesName(t *testing.T) {
	node := fakenode.New()
	pod := fakenode.Pod("u1", "web", v1.RestartPolicyAlways)
	node.Run(pod)
	s := newStore(t, nil)
	s.SetPod(pod, "file", "")
	s.Observe("u1", running(t, node, "u1"))
	s.Open()
	s.SetWaiting("")
	s.SetRuntimeName("cri-o")
	pods, err := s.Pods()
	if err != nil || len(pods) != 1 {
		t.Fatalf("Pods() = %v, %v, want exactly one", pods, err)
	}
	if got, want := pods[0].Status.ContainerStatuses[0].ContainerID, "cri-o://"+node.Container("u1"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestStartTimeIsTheSameAfterARestart(t *testing.T) {
	node := fakenode.New()
	pod := fakenode.Pod("u1", "web", v1.RestartPolicyAlways)
	start := func(before bool) time.Time {
		s := newStore(t, nil)
		s.SetPod(pod, "file", "")
		if before { // the pod is shown before it has a sandbox
			s.Open()
			node.Run(pod)
		}
		s.Observe("u1", running(t, node, "u1"))
		s.Open()
		s.SetWaiting("")
		pods, err := s.Pods()
		if err != nil || len(pods) != 1 {
			t.Fatalf("Pods() = %v, %v, want exactly one", pods, err)
		}
		return pods[0].Status.StartTime.Time
	}
	if first, again := start(true), start(false); !first.Equal(again) {
		t.Errorf("start time %v, after a restart %v", first, again)
	}
}

// TestTheStatusOfANewPodIsComputedOnceBeforeItsFirstStart: neither a new worker nor an empty observation changes the
// status.
func TestTheStatusOfANewPodIsComputedOnceBeforeItsFirstStart(t *testing.T) {
	node, computed := fakenode.New(), 0
	s := newStoreWith(t, func(cfg *podstore.Config) {
		cfg.Generate = func(pod *v1.Pod, observed *lifecyclev1.PodStatus, in podstatus.Inputs) v1.PodStatus {
			computed++
			return podstatus.Generate(pod, observed, in)
		}
	})
	s.Open()
	pod := fakenode.Pod("u1", "web", v1.RestartPolicyAlways)
	s.SetPod(pod, "file", "")
	s.SetState("u1", podworkers.Syncing)
	empty, err := node.GetPodStatus(t.Context(), "u1", 0)
	if err != nil {
		t.Fatal(err)
	}
	s.Observe("u1", empty)
	if computed != 1 {
		t.Errorf("before the first start the status was computed %d times, want once", computed)
	}
	// The report of a sync is one change, and the start of a container another one.
	s.Synced("u1", podworkers.SyncReport{ReasonsKnown: true, Cgroup: &resources.Resources{}})
	node.Run(pod)
	s.Observe("u1", running(t, node, "u1"))
	if computed != 3 {
		t.Errorf("after the first start the status was computed %d times, want 3", computed)
	}
	// The same observation again is no change.
	s.Observe("u1", running(t, node, "u1"))
	if computed != 3 {
		t.Errorf("after the same observation the status was computed %d times, want 3", computed)
	}
}

// reports records what is reported to the API server.
type reports struct {
	statusmanager.None

	last podstatus.Report
}

func (r *reports) Report(report podstatus.Report) { r.last = report }

// TestTheEndOfAPodIsReportedAfterItsClaims are unprepared: the cluster gives them to other pods then. What the cluster
// has written about claims stays in the status.
func TestTheEndOfAPodIsReportedAfterItsClaims(t *testing.T) {
	node, api, holds := fakenode.New(), &reports{}, true
	s := newStoreWith(t, func(cfg *podstore.Config) {
		cfg.API, cfg.HoldsClaims = api, func(types.UID) bool { return holds }
	})
	pod := fakenode.Pod("u1", "web", v1.RestartPolicyNever)
	name := "web-gpu"
	pod.Status.ResourceClaimStatuses = []v1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: &name}}
	node.Run(pod)
	s.SetPod(pod, "api", "")
	s.Observe("u1", running(t, node, "u1"))
	s.Open()
	s.SetWaiting("")
	pods, err := s.Pods()
	if err != nil || len(pods) != 1 || len(pods[0].Status.ResourceClaimStatuses) != 1 {
		t.Errorf("Pods() = %v, %v, want one with the status of its claim", pods, err)
	}
	s.SetState("u1", podworkers.Terminated)
	if !api.last.MayRun {
		t.Error("the end of a pod that has claims is reported")
	}
	holds = false
	s.SetReleased("u1")
	if api.last.MayRun || !api.last.Released {
		t.Errorf("the last report is %+v", api.last)
	}
}
