package configmux

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
	"github.com/quartet-node/quartet/test/cluster"
	"github.com/quartet-node/quartet/test/eventually"
)

var shared cluster.Shared

// nodestatus serves only the Node on a socket.
type nodestatus struct {
	nodev1.UnimplementedNodeServiceServer
	nodes *stream.Level[*nodev1.Node]
	stop  func()
}

func (n *nodestatus) WatchNode(
	request *nodev1.WatchNodeRequest,
	to grpc.ServerStreamingServer[nodev1.WatchNodeResponse],
) error {
	return streamrpc.Serve(
		to.Context(),
		n.nodes,
		request.GetResumeToken(),
		func(frame *streamv1.Frame, node *nodev1.Node) error {
			return to.Send(&nodev1.WatchNodeResponse{Frame: frame, Node: node})
		},
	)
}

// member is the configmux of a node of a cluster. Its nodestatus reports that the Node exists.
type member struct {
	*process
	node   string
	admin  kubernetes.Interface
	status *nodestatus
}

// newMember returns the configmux of a node that has only pods of an API server, which a kubeconfig names.
func newMember(t *testing.T, c *cluster.Cluster, node, kubeconfig string) *member {
	t.Helper()
	m := &member{
		process: newProcess(t),
		node:    node,
		admin:   c.Client(t),
		status:  &nodestatus{nodes: stream.NewLevel[*nodev1.Node](stream.Config{})},
	}
	m.cfg.NodeName, m.cfg.Kubeconfig = node, kubeconfig
	m.cfg.Kubelet.StaticPodPath, m.cfg.Kubelet.ContentType = "", "application/vnd.kubernetes.protobuf"
	m.cfg.HostPrivileges.HostNetwork = []string{"*"}
	m.cfg.Peers.NodeStatus = "unix://" + filepath.Join(filepath.Dir(m.cfg.StateDir), "n.sock")
	m.status.nodes.Put(node, &nodev1.Node{Synced: true})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- rpc.Serve(ctx, rpc.Config{
			Address: m.cfg.Peers.NodeStatus, Health: rpc.NewHealth(), Logger: m.tel.Logger,
			Register: func(s *grpc.Server) { nodev1.RegisterNodeServiceServer(s, m.status) },
		})
	}()
	m.status.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("nodestatus: %v", err)
		}
	})
	t.Cleanup(m.status.stop)
	return m
}

func kubeconfigOf(t *testing.T, c *cluster.Cluster, node string) string {
	return c.Kubeconfig(t, cluster.NodeUser(node), cluster.Nodes)
}

// create creates a pod that is bound to a node.
func (m *member) create(name, node string, change ...func(*v1.Pod)) *v1.Pod {
	m.t.Helper()
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1.PodSpec{NodeName: node, Containers: []v1.Container{{Name: "c", Image: "i:1"}}},
	}
	for _, c := range change {
		c(pod)
	}
	created, err := m.admin.CoreV1().Pods("default").Create(m.t.Context(), pod, metav1.CreateOptions{})
	must(m.t, err)
	return created
}

// update changes the current version of a pod.
func (m *member) update(name string, change func(*v1.Pod)) {
	m.t.Helper()
	pods := m.admin.CoreV1().Pods("default")
	pod, err := pods.Get(m.t.Context(), name, metav1.GetOptions{})
	must(m.t, err)
	change(pod)
	_, err = pods.Update(m.t.Context(), pod, metav1.UpdateOptions{})
	must(m.t, err)
}

func image(name string) func(*v1.Pod) {
	return func(pod *v1.Pod) { pod.Spec.Containers[0].Image = name }
}

// remove deletes a pod, with a grace period in seconds.
func (m *member) remove(name string, grace int64) {
	m.t.Helper()
	must(
		m.t,
		m.admin.CoreV1().Pods("default").Delete(m.t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &grace}),
	)
}

// told reads the messages of a subscriber.
type recorder struct {
	t    *testing.T
	next func() *configv1.WatchPodUpdatesResponse
	last *configv1.PodUpdate
}

// slowly is the time limit of a test that stops and starts servers.
const slowly = 2 * time.Minute

func (m *member) subscribe(t *testing.T) *recorder {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), slowly)
	t.Cleanup(cancel)
	out, err := m.client.WatchPodUpdates(ctx, &configv1.WatchPodUpdatesRequest{}, grpc.WaitForReady(true))
	must(t, err)
	return &recorder{t: t, next: func() *configv1.WatchPodUpdatesResponse {
		t.Helper()
		message, err := out.Recv()
		must(t, err)
		return message
	}}
}

// pods fails the test unless the next messages about pods are these, as "OP name image", in any order. An API server
// may shorten the grace period of a pod to zero before it removes it: an unexpected DELETE is skipped.
func (s *recorder) pods(want ...string) {
	s.t.Helper()
	var got []string
	for len(got) < len(want) {
		m := s.next()
		if m.GetPod() == nil {
			continue
		}
		_, line, _ := strings.Cut(text(s.t, m), " ")
		if strings.HasPrefix(line, "DELETE ") && !slices.Contains(want, line) {
			continue
		}
		s.last, got = m.GetPod(), append(got, line)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		s.t.Fatalf("got %q, want %q", got, want)
	}
}

// ready reads until the source is ready, and fails the test if a message about a pod comes before.
func (s *recorder) ready() {
	s.t.Helper()
	for {
		m := s.next()
		if m.GetPod() != nil {
			s.t.Fatalf("got %q before the source was ready", text(s.t, m))
		}
		if m.GetSource().GetName() == "api" && m.GetSource().GetReady() {
			return
		}
	}
}

// await waits until a condition holds, while the servers continue.
func (m *member) await(what string, condition func() bool) {
	m.t.Helper()
	eventually.That(m.t, what, condition)
}

// wrong waits until the source has an error with the text.
func (m *member) wrong(text string) *configv1.SourceError {
	m.t.Helper()
	var found *configv1.SourceError
	m.await("there is the error "+text, func() bool {
		for _, e := range m.source("api").GetErrors() {
			if strings.Contains(e.GetMessage(), text) {
				found = e
			}
		}
		return found != nil
	})
	return found
}

func (m *member) mended() {
	m.t.Helper()
	m.await("nothing is wrong", func() bool { return len(m.source("api").GetErrors()) == 0 })
}

func TestPodsOfAnAPIServerReachASubscriber(t *testing.T) {
	c := shared.Cluster(t)
	m := newMember(t, c, "n-changes", kubeconfigOf(t, c, "n-changes"))
	m.create("c-other", "n-other")
	m.create("c-first", m.node, func(pod *v1.Pod) {
		pod.Annotations = map[string]string{
			"kubernetes.io/config.source": "file",
			"quartet.dev/traceparent":     "forged",
			"mine":                        "kept",
		}
	})
	m.run()
	s := m.subscribe(t)
	s.pods("ADD c-first i:1")
	first := decode(t, s.last)
	if first.Annotations["kubernetes.io/config.source"] != "api" || first.Annotations["quartet.dev/traceparent"] != "" ||
		first.Annotations["mine"] != "kept" || first.ManagedFields != nil {
		t.Errorf("annotations %v, managed fields %v", first.Annotations, first.ManagedFields)
	}
	s.ready()

	m.create("c-second", m.node)
	s.pods("ADD c-second i:1")
	m.update("c-second", image("i:2"))
	s.pods("UPDATE c-second i:2")
	pods := m.admin.CoreV1().Pods("default")
	pod, err := pods.Get(t.Context(), "c-second", metav1.GetOptions{})
	must(t, err)
	pod.Status.Phase = v1.PodRunning
	_, err = pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
	must(t, err)
	s.pods("RECONCILE c-second i:2")
	m.create("c-other-too", "n-other")
	m.remove("c-second", 30)
	s.pods("DELETE c-second i:2")
	if ending := decode(
		t,
		s.last,
	); ending.DeletionTimestamp == nil ||
		ptr.Deref(ending.DeletionGracePeriodSeconds, 0) != 30 {
		t.Errorf("it is to end at %v, with %v", ending.DeletionTimestamp, ending.DeletionGracePeriodSeconds)
	}
	m.remove("c-second", 0)
	s.pods("REMOVE c-second i:2")

	source := m.source("api")
	if source.GetTarget() != c.URL() || source.GetMode() != "watch" || source.GetPods() != 1 || !source.GetReady() ||
		len(source.GetErrors()) > 0 {
		t.Errorf("source %v", source)
	}
}

func TestNodestatusIsWaitedForOnceOnly(t *testing.T) {
	c := shared.Cluster(t)
	m := newMember(t, c, "n-waits", kubeconfigOf(t, c, "n-waits"))
	m.status.nodes.Put(m.node, &nodev1.Node{})
	m.create("w-first", m.node)
	m.run()
	s := m.subscribe(t)
	health := func(service string) grpc_health_v1.HealthCheckResponse_ServingStatus {
		answer, err := grpc_health_v1.NewHealthClient(m.conn).
			Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: service}, grpc.WaitForReady(true))
		must(t, err)
		return answer.GetStatus()
	}
	if got := health("nodestatus"); got != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("nodestatus is %s, want %s", got, grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	}
	if source := m.source("api"); source.GetMode() != "waiting for nodestatus" || source.GetReady() {
		t.Errorf("source %v, want Mode %q and Ready false", source, "waiting for nodestatus")
	}
	m.status.nodes.Put(m.node, &nodev1.Node{Synced: true})
	s.pods("ADD w-first i:1")
	if got := health("nodestatus"); got != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("nodestatus is %s, want %s", got, grpc_health_v1.HealthCheckResponse_SERVING)
	}
	m.status.stop()
	m.create("w-second", m.node)
	s.pods("ADD w-second i:1")
}

// An API server that is down removes no pod, and changes before its return arrive soon after.
func TestAnAPIServerThatComesBack(t *testing.T) {
	c := shared.Cluster(t)
	proxy := c.Proxy(t)
	m := newMember(t, c, "n-back", proxy.Kubeconfig(t, cluster.NodeUser("n-back"), cluster.Nodes))
	m.create("b-kept", m.node)
	m.create("b-gone", m.node)
	m.run()
	s := m.subscribe(t)
	s.pods("ADD b-kept i:1", "ADD b-gone i:1")
	s.ready()

	proxy.Cut()
	m.create("b-cut", m.node)
	s.pods("ADD b-cut i:1")

	proxy.Refuse(t)
	e := m.wrong(
		"connection refused: check that it runs and is reachable; its pods continue to run in their last known form",
	)
	if e.GetPath() != proxy.URL() {
		t.Errorf("error %v, want the path %s", e, proxy.URL())
	}
	m.update("b-kept", image("i:2"))
	m.remove("b-gone", 0)
	m.create("b-new", m.node)
	m.await("it is tried again and again", func() bool {
		errs := m.source("api").GetErrors()
		return len(errs) == 1 && errs[0].GetCount() >= 5
	})
	proxy.Accept(t)
	back := time.Now()
	s.pods("UPDATE b-kept i:2", "REMOVE b-gone i:1", "ADD b-new i:1")
	if took := time.Since(back); took > 30*time.Second {
		t.Errorf("it took %v to be up to date", took)
	}
	m.mended()
}

func TestAnAPIServerThatIsKilled(t *testing.T) {
	c := shared.Cluster(t)
	m := newMember(t, c, "n-killed", kubeconfigOf(t, c, "n-killed"))
	m.create("k-kept", m.node)
	m.run()
	s := m.subscribe(t)
	s.pods("ADD k-kept i:1")
	s.ready()
	c.APIServer.Kill(t)
	m.wrong("continue to run in their last known form")
	c.APIServer.Start(t)
	m.create("k-new", m.node)
	s.pods("ADD k-new i:1")
	m.mended()
	if got, want := m.pods(), []string{"api k-kept", "api k-new"}; !slices.Equal(got, want) {
		t.Errorf("pods %q, want %q", got, want)
	}
}

// The API server's lost history includes the deletions of pods: the next list shows them.
func TestPodsDeletedInAForgottenHistoryAreRemoved(t *testing.T) {
	c := shared.Cluster(t)
	proxy := c.Proxy(t)
	m := newMember(t, c, "n-gone", proxy.Kubeconfig(t, cluster.NodeUser("n-gone"), cluster.Nodes))
	m.create("g-kept", m.node)
	m.create("g-gone", m.node)
	m.run()
	s := m.subscribe(t)
	s.pods("ADD g-kept i:1", "ADD g-gone i:1")
	s.ready()
	proxy.Refuse(t)
	m.wrong("connection refused")
	m.remove("g-gone", 0)
	m.create("g-new", m.node)
	c.Compact(t)
	proxy.Accept(t)
	s.pods("REMOVE g-gone i:1", "ADD g-new i:1")
	m.mended()
}

func TestANodeThatStartsWithoutItsAPIServerRunsWhatItKnew(t *testing.T) {
	c := shared.Cluster(t)
	m := newMember(t, c, "n-boots", kubeconfigOf(t, c, "n-boots"))
	m.create("r-kept", m.node)
	m.create("r-gone", m.node)
	m.run()
	s := m.subscribe(t)
	s.pods("ADD r-kept i:1", "ADD r-gone i:1")
	m.stop()
	m.remove("r-gone", 0)
	c.APIServer.Stop(t)
	m.run()
	s = m.subscribe(t)
	s.pods("RESTORE r-kept i:1", "RESTORE r-gone i:1")
	m.wrong("the pods of the checkpoint run in the meantime")
	if m.source("api").GetReady() {
		t.Error("the source is ready, and there was no list")
	}
	c.APIServer.Start(t)
	s.pods("REMOVE r-gone i:1")
	s.ready()
	m.mended()
}

// An API server that hangs accepts connections and never answers.
func TestAnAPIServerThatHangs(t *testing.T) {
	c := shared.Cluster(t)
	m := newMember(t, c, "n-hangs", kubeconfigOf(t, c, "n-hangs"))
	m.create("h-kept", m.node)
	m.run()
	m.subscribe(t).pods("ADD h-kept i:1")
	m.stop()
	c.APIServer.Pause(t)
	// a different certificate gives a new connection, as another process would have
	m.cfg.Kubeconfig = kubeconfigOf(t, c, "n-hangs")
	m.run()
	s := m.subscribe(t)
	s.pods("RESTORE h-kept i:1")
	m.wrong("it does not answer in time")
	c.APIServer.Resume(t)
	s.ready()
	m.create("h-new", m.node)
	s.pods("ADD h-new i:1")
}

func TestANodeThatTheAPIServerDoesNotLetIn(t *testing.T) {
	c := shared.Cluster(t)
	m := newMember(t, c, "n-right", kubeconfigOf(t, c, "n-wrong"))
	m.create("f-first", m.node)
	m.run()
	m.await("it serves", func() bool {
		_, err := m.client.ListSources(t.Context(), &configv1.ListSourcesRequest{})
		return err == nil
	})
	e := m.wrong("it does not allow it (403)")
	if !strings.Contains(e.GetMessage(), "system:node:n-wrong") || e.GetPath() != c.URL() {
		t.Errorf("error %v, want the path %s and a message that names system:node:n-wrong", e, c.URL())
	}
}
