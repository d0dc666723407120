package cluster_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/quartet-node/quartet/test/cluster"
	"github.com/quartet-node/quartet/test/eventually"
)

// patience is the time limit of a wait on a busy machine.
const patience = 60 * time.Second

var shared cluster.Shared

func TestMain(m *testing.M) { goleak.VerifyTestMain(shared.Main(m)) }

// pod returns a pod that is created with a node name.
func pod(name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName:   node,
			Containers: []corev1.Container{{Name: "main", Image: "quartet.local/hello:1"}},
		},
	}
}

func create(t *testing.T, client kubernetes.Interface, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	created, err := client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("create the pod %s: %v", pod.Name, err)
	}
	return created
}

// of returns the selector of a node's pods, which a kubelet uses.
func of(node string) metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: "spec.nodeName=" + node}
}

func names(t *testing.T, client kubernetes.Interface, options metav1.ListOptions) []string {
	t.Helper()
	list, err := client.CoreV1().Pods("").List(t.Context(), options)
	if err != nil {
		t.Fatalf("list the pods: %v", err)
	}
	var all []string
	for i := range list.Items {
		all = append(all, list.Items[i].Name)
	}
	return all
}

func next(t *testing.T, w watch.Interface) (event watch.Event, open bool) {
	t.Helper()
	select {
	case event, open = <-w.ResultChan():
		return event, open
	case <-time.After(patience):
		t.Fatalf("the watch says nothing within %s", patience)
		return watch.Event{}, false
	}
}

// client returns a client for a kubeconfig, as a program creates it from the path.
func client(t *testing.T, kubeconfig string) *kubernetes.Clientset {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { utilnet.CloseIdleConnectionsFor(httpClient.Transport) })
	c, err := kubernetes.NewForConfigAndClient(config, httpClient)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestAPodIsCreatedListedAndWatched(t *testing.T) {
	c := shared.Cluster(t)
	admin := c.Client(t)
	version, err := admin.Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(version.GitVersion, "v1.") {
		t.Errorf("the API server says that it is %q, want text beginning with %q", version.GitVersion, "v1.")
	}
	w, err := admin.CoreV1().Pods("").Watch(t.Context(), of("node-watched"))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	create(t, admin, pod("of-another", "node-other"))
	created := create(t, admin, pod("watched", "node-watched"))
	event, _ := next(t, w)
	if seen, ok := event.Object.(*corev1.Pod); !ok || event.Type != watch.Added || seen.UID != created.UID {
		t.Errorf("the watch says %s %v", event.Type, event.Object)
	}
	if got := names(t, admin, of("node-watched")); !slices.Equal(got, []string{"watched"}) {
		t.Errorf("the node's pods are %q, want %q", got, []string{"watched"})
	}
}

func TestANodeSeesItsOwnPodsAndNoSecrets(t *testing.T) {
	c := shared.Cluster(t)
	create(t, c.Client(t), pod("mine", "node-mine"))
	node := client(t, c.Kubeconfig(t, cluster.NodeUser("node-mine"), cluster.Nodes))
	if got := names(t, node, of("node-mine")); !slices.Equal(got, []string{"mine"}) {
		t.Errorf("the node's pods are %q, want %q", got, []string{"mine"})
	}
	pods := node.CoreV1().Pods("")
	if _, err := pods.List(t.Context(), of("node-other")); !apierrors.IsForbidden(err) {
		t.Errorf("it may list another node's pods: %v", err)
	}
	if _, err := pods.List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("it may list all pods: %v", err)
	}
	if _, err := node.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("it may list secrets: %v", err)
	}
	stranger := c.ClientFor(t, "somebody")
	if _, err := stranger.CoreV1().Pods("").List(t.Context(), of("node-mine")); !apierrors.IsForbidden(err) {
		t.Errorf("a user that is not a node may list its pods: %v", err)
	}
}

func TestTheAPIServerComesBackWithItsData(t *testing.T) {
	c := shared.Cluster(t)
	admin := c.Client(t)
	create(t, admin, pod("kept", "node-kept"))
	for how, end := range map[string]func(testing.TB){"killed": c.APIServer.Kill, "stopped": c.APIServer.Stop} {
		end(t)
		if _, err := admin.CoreV1().Pods("").List(t.Context(), of("node-kept")); !utilnet.IsConnectionRefused(err) {
			t.Errorf("%s: it does not refuse connections: %v", how, err)
		}
		c.APIServer.Start(t)
		if got := names(t, admin, of("node-kept")); !slices.Equal(got, []string{"kept"}) {
			t.Errorf("%s and started again, the node's pods are %q", how, got)
		}
	}
}

func TestAClusterGoesOnAfterItsEtcdWasKilled(t *testing.T) {
	c := shared.Cluster(t)
	admin := c.Client(t)
	create(t, admin, pod("before", "node-etcd"))
	c.Etcd.Kill(t)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := admin.CoreV1().Pods("default").Create(ctx, pod("between", "node-etcd"), metav1.CreateOptions{}); err == nil {
		t.Error("a pod is created without etcd")
	}
	c.Etcd.Start(t)
	deadline, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	eventually.In(deadline, t, "a pod can be created", func() bool {
		_, err := admin.CoreV1().Pods("default").Create(deadline, pod("after", "node-etcd"), metav1.CreateOptions{})
		return err == nil || apierrors.IsAlreadyExists(err)
	})
	if got := names(t, admin, of("node-etcd")); !slices.Contains(got, "before") || !slices.Contains(got, "after") {
		t.Errorf("the node's pods are %q, want %q among them and %q among them", got, "before", "after")
	}
}

func TestAPausedAPIServerDoesNotAnswerUntilItGoesOn(t *testing.T) {
	c := shared.Cluster(t)
	admin := c.Client(t)
	create(t, admin, pod("paused", "node-paused"))
	c.APIServer.Pause(t)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := admin.CoreV1().Pods("").List(ctx, of("node-paused")); err == nil || ctx.Err() == nil {
		t.Errorf("it answers: %v", err)
	}
	c.APIServer.Resume(t)
	if got := names(t, admin, of("node-paused")); !slices.Equal(got, []string{"paused"}) {
		t.Errorf("the node's pods are %q, want %q", got, []string{"paused"})
	}
}

func TestAnOldResourceVersionIsGoneAfterCompaction(t *testing.T) {
	c := shared.Cluster(t)
	admin := c.Client(t)
	old := create(t, admin, pod("old", "node-old")).ResourceVersion
	watchFromOld := func() watch.Event {
		options := of("node-old")
		options.ResourceVersion = old
		w, err := admin.CoreV1().Pods("").Watch(t.Context(), options)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		event, _ := next(t, w)
		return event
	}
	create(t, admin, pod("newer", "node-old"))
	if event := watchFromOld(); event.Type != watch.Added {
		t.Fatalf("before the compaction the watch says %s %v", event.Type, event.Object)
	}
	c.Compact(t)
	event := watchFromOld()
	if err := apierrors.FromObject(event.Object); event.Type != watch.Error || !apierrors.IsResourceExpired(err) {
		t.Errorf("the watch says %s %v", event.Type, event.Object)
	}
	if got := names(t, admin, of("node-old")); !slices.Equal(got, []string{"newer", "old"}) {
		t.Errorf("the node's pods are %q, want %q", got, []string{"newer", "old"})
	}
}

func TestAProxyBreaksConnections(t *testing.T) {
	c := shared.Cluster(t)
	proxy := c.Proxy(t)
	near := client(t, proxy.Kubeconfig(t, cluster.NodeUser("node-far"), cluster.Nodes))
	w, err := near.CoreV1().Pods("").Watch(t.Context(), of("node-far"))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if n := proxy.Cut(); n != 1 {
		t.Errorf("%d connections were cut, want 1", n)
	}
	if event, open := next(t, w); open && event.Type != watch.Error {
		t.Errorf("the watch says %s", event.Type)
	}
	names(t, near, of("node-far"))
	proxy.Refuse(t)
	if _, err := near.CoreV1().Pods("").List(t.Context(), of("node-far")); !utilnet.IsConnectionRefused(err) {
		t.Errorf("connections are not refused: %v", err)
	}
	names(t, c.Client(t), of("node-far"))
	proxy.Accept(t)
	names(t, near, of("node-far"))
}

func TestWhyItDoesNotStart(t *testing.T) {
	binDir := t.TempDir()
	if err := os.Mkdir(filepath.Join(binDir, "tools"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := cluster.New(t.Context(), binDir); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("without a binary: %v", err)
	}
	script := []byte("#!/bin/sh\necho unknown flag: $2\nexit 3\n")
	if err := os.WriteFile(filepath.Join(binDir, "tools", "etcd"), script, 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := cluster.New(t.Context(), binDir)
	for _, want := range []string{"etcd has ended", "exit status 3", "unknown flag: --unsafe-no-fsync"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
}
