package nodestatus

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/logind/logindtest"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/test/cluster"
)

// endingSyncLoop has pods, and ends them when the test allows it.
type endingSyncLoop struct {
	wellSyncLoop
	pods []*enginev1.Pod
	// asked gets the requests, let releases them.
	requests chan string
	let      chan struct{}
	mu       sync.Mutex
	gone     map[string]bool
}

func (s *endingSyncLoop) ListPods(context.Context, *enginev1.ListPodsRequest) (*enginev1.ListPodsResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer := &enginev1.ListPodsResponse{}
	for _, p := range s.pods {
		var pod v1.Pod
		if err := pod.Unmarshal(p.GetPod()); err != nil {
			return nil, err
		}
		if !s.gone[string(pod.UID)] {
			answer.Pods = append(answer.Pods, p)
		}
	}
	return answer, nil
}

func (s *endingSyncLoop) ShutDownPods(
	ctx context.Context,
	req *enginev1.ShutDownPodsRequest,
) (*enginev1.ShutDownPodsResponse, error) {
	var uids []string
	for _, pod := range req.GetPods() {
		uids = append(uids, pod.GetPodUid())
	}
	slices.Sort(uids)
	s.requests <- strings.Join(uids, " ")
	select {
	case <-s.let:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, uid := range uids {
		s.gone[uid] = true
	}
	return &enginev1.ShutDownPodsResponse{}, nil
}

func (s *endingSyncLoop) AwaitStatuses(
	context.Context,
	*enginev1.AwaitStatusesRequest,
) (*enginev1.AwaitStatusesResponse, error) {
	s.requests <- "statuses"
	return &enginev1.AwaitStatusesResponse{}, nil
}

// wantAsked waits for a request.
func (s *endingSyncLoop) wantAsked(t *testing.T, want string) {
	t.Helper()
	select {
	case got := <-s.requests:
		if got != want {
			t.Fatalf("syncloop is asked to end %q, want %q", got, want)
		}
	case <-time.After(time.Minute):
		t.Fatalf("syncloop is not asked to end %q", want)
	}
}

// podOf returns a pod of a source, as syncloop reports it.
func podOf(
	t *testing.T,
	name, source string,
	priority int32,
	phase v1.PodPhase,
	state enginev1.WorkerState,
) *enginev1.Pod {
	t.Helper()
	pod := v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
		Spec:       v1.PodSpec{Priority: ptr.To(priority)},
		Status:     v1.PodStatus{Phase: phase},
	}
	data, err := pod.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return &enginev1.Pod{Pod: data, Source: source, WorkerState: state}
}

// awaitNode waits until the API server's Node meets a condition.
func awaitNode(t *testing.T, admin kubernetes.Interface, name, what string, want func(v1.NodeCondition) bool) {
	t.Helper()
	var last v1.NodeCondition
	for end := time.Now().Add(time.Minute); time.Now().Before(end); <-time.After(10 * time.Millisecond) {
		node, err := admin.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			continue
		}
		for _, c := range node.Status.Conditions {
			if c.Type == v1.NodeReady {
				last = c
			}
		}
		if want(last) {
			return
		}
	}
	t.Fatalf("the API server's Node is not %s: %+v", what, last)
}

// TestTheAPIServerKnowsThatTheMachineGoesDown before any pod has ended.
func TestTheAPIServerKnowsThatTheMachineGoesDown(t *testing.T) {
	address := logindtest.StartBus(t)
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", address)
	// more than needed, so that no configuration is written on this machine
	fake := logindtest.Start(t, address, time.Hour)
	c := shared.Cluster(t)
	admin := c.Client(t)
	const name = "going-down"
	cfg := member(t, name, c.Kubeconfig(t, cluster.NodeUser(name), cluster.Nodes))
	cfg.Kubelet.ShutdownGracePeriod.Duration, cfg.Kubelet.ShutdownGracePeriodCriticalPods.Duration = 20*time.Minute,
		10*time.Minute
	const syncing, terminating, terminated = enginev1.WorkerState_WORKER_STATE_SYNCING,
		enginev1.WorkerState_WORKER_STATE_TERMINATING, enginev1.WorkerState_WORKER_STATE_TERMINATED
	syncloop := &endingSyncLoop{
		requests: make(chan string),
		let:      make(chan struct{}),
		gone:     map[string]bool{},
		pods: []*enginev1.Pod{
			podOf(
				t,
				"web",
				"api",
				0,
				v1.PodRunning,
				syncing,
			),
			podOf(t, "evicted", "api", 0, v1.PodFailed, terminating),
			podOf(t, "dns", "file", 2000001000, v1.PodRunning, syncing),
			podOf(
				t,
				"refused",
				"api",
				0,
				v1.PodFailed,
				syncing,
			),
			podOf(t, "done", "api", 0, v1.PodSucceeded, terminated),
			podOf(t, "orphan", "", 0, v1.PodRunning, terminating),
		},
	}
	servePLEG(t, cfg)
	servePeer(t, cfg.Peers.SyncLoop, func(s *grpc.Server) { enginev1.RegisterEngineServiceServer(s, syncloop) })
	nodes := client(t, cfg)
	stop := background(t, func(ctx context.Context) error { return run(ctx, cfg, quiet, telemetry.Off()) })
	isReady := func(c v1.NodeCondition) bool { return c.Status == v1.ConditionTrue }
	awaitNode(t, admin, name, "Ready", isReady)
	served(t, nodes, "not shutting down", func(n *nodev1.Node, _ *v1.Node) bool { return !n.GetShuttingDown() })

	fake.Prepare(t, true)
	syncloop.wantAsked(t, "evicted web")
	goesDown := func(c v1.NodeCondition) bool {
		return c.Status == v1.ConditionFalse && c.Reason == "KubeletNotReady" && c.Message == "node is shutting down"
	}
	awaitNode(t, admin, name, "shutting down", goesDown)
	served(t, nodes, "shutting down", func(n *nodev1.Node, _ *v1.Node) bool { return n.GetShuttingDown() })

	// It is killed during the shutdown: the next process continues.
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	background(t, func(ctx context.Context) error { return run(ctx, cfg, quiet, telemetry.Off()) })
	syncloop.wantAsked(t, "evicted web")
	syncloop.let <- struct{}{}
	syncloop.wantAsked(t, "dns")
	syncloop.let <- struct{}{}
	syncloop.wantAsked(t, "statuses")
	awaitNode(t, admin, name, "shutting down", goesDown)

	fake.Prepare(t, false)
	awaitNode(t, admin, name, "Ready again", isReady)
	var reasons []string
	end := time.Now().Add(time.Minute)
	for ; len(reasons) < 2 && time.Now().Before(end); <-time.After(10 * time.Millisecond) {
		events, err := admin.CoreV1().
			Events("default").
			List(t.Context(), metav1.ListOptions{FieldSelector: "reason=Shutdown,involvedObject.name=" + name})
		if err != nil {
			continue
		}
		reasons = nil
		for i := range events.Items {
			reasons = append(reasons, events.Items[i].Message)
		}
	}
	slices.Sort(reasons)
	if reasons = slices.Compact(reasons); !slices.Equal(
		reasons,
		[]string{"Shutdown manager detected shutdown cancellation", "Shutdown manager detected shutdown event"},
	) {
		t.Errorf("the events are %q, want %q",
			reasons, []string{"Shutdown manager detected shutdown cancellation", "Shutdown manager detected shutdown event"})
	}
}
