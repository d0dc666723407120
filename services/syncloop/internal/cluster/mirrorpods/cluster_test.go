package mirrorpods_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/mirrorpods"
	"github.com/quartet-node/quartet/test/cluster"
	"github.com/quartet-node/quartet/test/eventually"
)

var shared cluster.Shared

func TestMain(m *testing.M) { goleak.VerifyTestMain(shared.Main(m)) }

// node is a Manager that acts as a node of a real API server, and receives its watch.
type node struct {
	*mirrorpods.Manager
	t    *testing.T
	c    *cluster.Cluster
	name string

	mu       sync.Mutex
	statuses map[types.UID]types.UID
	ending   bool
	events   []string
}

// SetMirror implements mirrorpods.Statuses.
func (n *node) SetMirror(uid types.UID, mirror *v1.Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.statuses, uid)
	if mirror != nil {
		n.statuses[uid] = mirror.UID
	}
}

// Warning implements mirrorpods.Events.
func (n *node) Warning(_ context.Context, _ *v1.Pod, _, reason, message string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.events = append(n.events, reason+": "+message)
}

// newNode starts a Manager for a Node of the API server and watches the node's pods.
func newNode(t *testing.T, name string) *node {
	t.Helper()
	c := shared.Cluster(t)
	registered, err := c.Client(t).CoreV1().Nodes().Create(t.Context(),
		&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	client, err := apiclient.New(apiclient.Config{
		Kubeconfig: c.Kubeconfig(t, cluster.NodeUser(name), cluster.Nodes), Service: nodeconfig.SyncLoop, QPS: 50, Burst: 100,
		ContentType: "application/vnd.kubernetes.protobuf",
	})
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, c: c, name: name, statuses: map[types.UID]types.UID{}}
	n.Manager = mirrorpods.New(mirrorpods.Config{
		NodeName: name, API: mirrorpods.FromAPIServer(client.Core), Statuses: n, Events: n, Clock: clock.RealClock{},
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Ending: func(types.NamespacedName, types.UID) bool {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.ending
		},
	})
	n.SetNode(registered.UID)
	changes, err := c.Client(t).CoreV1().Pods("").Watch(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + name})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = n.Run(ctx) })
	running.Go(func() {
		for change := range changes.ResultChan() {
			switch pod, _ := change.Object.(*v1.Pod); {
			case pod == nil:
			case change.Type == watch.Deleted:
				n.Gone(pod.UID)
			default:
				n.Seen(pod)
			}
		}
	})
	t.Cleanup(func() {
		stop()
		changes.Stop()
		running.Wait()
		client.Close()
	})
	return n
}

// static returns a static pod of the node as configmux sends it.
func (n *node) static(name, namespace, hash string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name + "-" + n.name, Namespace: namespace, UID: types.UID(hash), Labels: map[string]string{"app": "x"},
			Annotations: map[string]string{
				podset.AnnotationHash: hash, podset.AnnotationSource: "file", podset.AnnotationSeen: "2026-01-01T00:00:00Z", "mine": "kept", "quartet.dev/traceparent": "00-1",
			},
		},
		Spec: v1.PodSpec{
			NodeName: n.name, Tolerations: []v1.Toleration{{Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute}},
			Containers: []v1.Container{{Name: "c", Image: "i:1"}},
		},
	}
}

// get returns a pod of the node from the API server, or nil if there is none. It retries while the API server does not
// answer.
func (n *node) get(namespace, name string) *v1.Pod {
	n.t.Helper()
	for deadline := time.Now().Add(60 * time.Second); ; {
		ctx, cancel := context.WithTimeout(n.t.Context(), 5*time.Second)
		pod, err := n.c.Client(n.t).CoreV1().Pods(namespace).Get(ctx, name+"-"+n.name, metav1.GetOptions{})
		cancel()
		switch {
		case err == nil:
			return pod
		case apierrors.IsNotFound(err):
			return nil
		case time.Now().After(deadline):
			n.t.Fatal(err)
		}
	}
}

// await waits until a condition is true.
func (n *node) await(what string, is func() bool) {
	n.t.Helper()
	eventually.Wait{Interval: 20 * time.Millisecond}.That(n.t, what, is)
}

// mirror waits for a mirror pod of a static pod other than the given one, and until SetMirror has received it.
func (n *node) mirror(static *v1.Pod, except types.UID) *v1.Pod {
	n.t.Helper()
	var got *v1.Pod
	n.await("there is a mirror pod of "+static.Name, func() bool {
		got = n.get(static.Namespace, strings.TrimSuffix(static.Name, "-"+n.name))
		n.mu.Lock()
		defer n.mu.Unlock()
		return got != nil && got.UID != except && n.statuses[static.UID] == got.UID
	})
	return got
}

// TestTheLifeOfAMirrorPod uses a real API server that restricts the node to the permissions of nodes.
func TestTheLifeOfAMirrorPod(t *testing.T) {
	n := newNode(t, "mirror-node")
	pods := n.c.Client(t).CoreV1().Pods("default")
	static := n.static("web", "default", "hash-1")
	n.Want(static)
	if n.Len() != 1 {
		t.Errorf("%d static pods, want 1", n.Len())
	}
	n.SetKnown(true, false)
	first := n.mirror(static, "")
	owner := first.OwnerReferences
	if first.Annotations[podset.AnnotationMirror] != "hash-1" || first.Annotations[podset.AnnotationSource] != "file" || first.Annotations["mine"] != "kept" ||
		first.Annotations["quartet.dev/traceparent"] != "" || first.Spec.NodeName != n.name || len(owner) != 1 || owner[0].Kind != "Node" || owner[0].Name != n.name ||
		first.Labels["app"] != "x" || len(first.Spec.Tolerations) == 0 {
		t.Errorf("the mirror pod is %+v", first)
	}

	// Somebody deletes the mirror pod, immediately or gracefully: another one is created.
	if err := pods.Delete(t.Context(), first.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		t.Fatal(err)
	}
	second := n.mirror(static, first.UID)
	if err := pods.Delete(t.Context(), second.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	third := n.mirror(static, second.UID)

	// The static pod is replaced. The old mirror pod stays until the old pod has ended.
	n.mu.Lock()
	n.ending = true
	n.mu.Unlock()
	changed := n.static("web", "default", "hash-2")
	changed.Spec.Containers[0].Image = "i:2"
	n.Unwant(static.UID)
	n.Want(changed)
	beside := n.static("beside", "default", "hash-2b")
	n.Want(beside)
	n.mirror(beside, "")
	if now := n.get("default", "web"); now == nil || now.UID != third.UID || now.DeletionTimestamp != nil {
		t.Errorf("while the static pod ends, its mirror pod is %+v", now)
	}
	n.mu.Lock()
	n.ending = false
	n.mu.Unlock()
	fourth := n.mirror(changed, third.UID)
	if fourth.Spec.Containers[0].Image != "i:2" {
		t.Errorf("the mirror pod has the image %q, want %q", fourth.Spec.Containers[0].Image, "i:2")
	}

	// The static pod is removed. Its mirror pod is deleted when all sources are ready and the pod has ended.
	n.mu.Lock()
	n.ending = true
	n.mu.Unlock()
	n.Unwant(changed.UID)
	n.SetKnown(true, true)
	other := n.static("other", "default", "hash-3")
	n.Want(other)
	n.mirror(other, "")
	if n.get("default", "web") == nil {
		t.Error("the mirror pod is gone before its pod has ended")
	}
	n.mu.Lock()
	n.ending = false
	n.mu.Unlock()
	n.await("the mirror pod is gone", func() bool { return n.get("default", "web") == nil })
}

// TestAMirrorPodOfNoPodGoes checks that such a mirror pod is deleted when every source is ready, and not before.
func TestAMirrorPodOfNoPodGoes(t *testing.T) {
	n := newNode(t, "orphan-node")
	static := n.static("old", "default", "hash")
	n.Want(static)
	n.SetKnown(true, false)
	n.mirror(static, "")
	n.Unwant(static.UID)
	next := n.static("next", "default", "next")
	n.Want(next)
	n.mirror(next, "")
	if n.get("default", "old") == nil {
		t.Error("deleted before all sources have spoken")
	}
	n.SetKnown(true, true)
	n.await("it is gone", func() bool { return n.get("default", "old") == nil })
}

// TestAMirrorPodWaitsForItsNamespaceAndTheNode also checks the event with the cause.
func TestAMirrorPodWaitsForItsNamespaceAndTheNode(t *testing.T) {
	n := newNode(t, "waiting-node")
	n.SetNode("")
	n.SetKnown(true, true)
	static := n.static("web", "later", "hash")
	n.Want(static)
	registered, err := n.c.Client(t).CoreV1().Nodes().Get(t.Context(), n.name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n.SetNode(registered.UID)
	n.await("an event says why", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.events) == 1 && strings.HasPrefix(n.events[0], "FailedMirrorPod: ") && strings.Contains(n.events[0], `namespaces "later" not found`)
	})
	if _, err := n.c.Client(t).CoreV1().Namespaces().Create(t.Context(),
		&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "later"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.mirror(static, "")
}

// TestTheMirrorPodsAreRightWhenAnAPIServerIsBack checks the mirror pods after the API server was down.
func TestTheMirrorPodsAreRightWhenAnAPIServerIsBack(t *testing.T) {
	n := newNode(t, "away-node")
	n.SetKnown(true, true)
	stays, goes, comes := n.static("stays", "default", "stays"), n.static("goes", "default", "goes"), n.static("comes", "default", "comes")
	n.Want(stays)
	n.Want(goes)
	kept := n.mirror(stays, "")
	n.mirror(goes, "")
	n.c.APIServer.Kill(t)
	n.Unwant(goes.UID)
	n.Want(comes)
	n.c.APIServer.Start(t)
	n.await("what has gone meanwhile has no mirror pod", func() bool { return n.get("default", "goes") == nil })
	n.await("what has come meanwhile has one", func() bool { return n.get("default", "comes") != nil })
	if now := n.get("default", "stays"); now == nil || now.UID != kept.UID {
		t.Error("what has stayed has another mirror pod")
	}
}
