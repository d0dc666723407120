package configobjects_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/configobjects"
	"github.com/quartet-node/quartet/test/cluster"
	"github.com/quartet-node/quartet/test/eventually"
)

// clusterRig is a node of a real API server. Its pods and secrets are in a namespace of its own.
type clusterRig struct {
	t        *testing.T
	name     string
	shop     string
	admin    corev1.CoreV1Interface
	proxy    *cluster.Proxy
	cluster  *configobjects.Cluster
	notified chan types.UID
}

func newClusterRig(
	t *testing.T, name string, strategy kubeletconfigv1beta1.ResourceChangeDetectionStrategy, clock clock.Clock,
) *clusterRig {
	t.Helper()
	c := shared.Cluster(t)
	r := &clusterRig{t: t, admin: c.Client(t).CoreV1(), proxy: c.Proxy(t), notified: make(chan types.UID, 100)}
	node, err := r.admin.Nodes().Create(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: name + "-"}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	namespace, err := r.admin.Namespaces().Create(t.Context(),
		&v1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: name + "-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.name, r.shop = node.Name, namespace.Name
	client, err := apiclient.New(apiclient.Config{
		Kubeconfig: r.proxy.Kubeconfig(t, cluster.NodeUser(r.name), cluster.Nodes), Service: nodeconfig.SyncLoop, QPS: 50,
		Burst:       100,
		ContentType: "application/vnd.kubernetes.protobuf",
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.cluster = configobjects.NewCluster(ctx, configobjects.ClusterConfig{
		Client: client.Core, Strategy: strategy, Changed: func(uid types.UID) { r.notified <- uid }, Clock: clock,
	})
	var running sync.WaitGroup
	running.Go(func() { _ = r.cluster.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		client.Close()
	})
	return r
}

// put creates or replaces a secret.
func (r *clusterRig) put(name, value string, immutable bool) {
	r.t.Helper()
	s := &v1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string][]byte{"k": []byte(value)}, Immutable: &immutable,
	}
	_, err := r.admin.Secrets(r.shop).Update(r.t.Context(), s, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = r.admin.Secrets(r.shop).Create(r.t.Context(), s, metav1.CreateOptions{})
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// use creates a pod on the node with volumes of secrets, and calls Use for it.
func (r *clusterRig) use(name string, secrets ...string) *v1.Pod {
	r.t.Helper()
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1.PodSpec{NodeName: r.name, Containers: []v1.Container{{Name: "c", Image: "i:1"}}},
	}
	p.Spec.Volumes = pod("", secrets...).Spec.Volumes
	automount := false
	p.Spec.AutomountServiceAccountToken = &automount
	created, err := r.admin.Pods(r.shop).Create(r.t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	r.cluster.Use(created)
	return created
}

// gives returns the value of a secret, or the error of Get.
func (r *clusterRig) gives(name string) string {
	s, err := r.cluster.Secret(r.t.Context(), r.shop, name)
	if err != nil {
		return err.Error()
	}
	return string(s.Data["k"])
}

// eventually waits until Get returns the value.
func (r *clusterRig) eventually(name, want string) {
	r.t.Helper()
	eventually.Wait{Interval: 20 * time.Millisecond, State: func() string { return "it gives " + r.gives(name) }}.
		That(r.t, fmt.Sprintf("secret %q gives %q", name, want), func() bool { return strings.Contains(r.gives(name), want) })
}

// untilTold waits until the pod is notified.
func (r *clusterRig) awaitNotified(want types.UID) {
	r.t.Helper()
	timeout := time.After(60 * time.Second)
	for {
		select {
		case got := <-r.notified:
			if got == want {
				return
			}
		case <-timeout:
			r.t.Fatalf("pod %s was not told", want)
		}
	}
}

func (r *clusterRig) untell() {
	for len(r.notified) > 0 {
		<-r.notified
	}
}

func TestObjectsOfAnAPIServerAreWatchedWhilePodsUseThem(t *testing.T) {
	r := newClusterRig(t, "watcher", kubeletconfigv1beta1.WatchChangeDetectionStrategy, clock.RealClock{})
	r.put("w-db", "one", false)
	r.put("w-fixed", "fixed", true)
	r.put("w-others", "not for this node", false)
	web := r.use("w-web", "w-db", "w-fixed", "w-later")
	r.eventually("w-db", "one")
	r.eventually("w-fixed", "fixed")
	r.eventually("w-later", `secret "w-later" not found`)
	if _, err := r.cluster.Secret(t.Context(), r.shop, "w-later"); !apierrors.IsNotFound(err) {
		t.Errorf("Secret(w-later) error = %v, want a not-found error", err)
	}
	r.untell()
	r.put("w-db", "two", false)
	r.awaitNotified(web.UID)
	if got := r.gives("w-db"); got != "two" {
		t.Errorf("after a change that was told it gives %q", got)
	}
	r.put("w-later", "came", false)
	r.awaitNotified(web.UID)
	r.eventually("w-later", "came")

	// An object that no pod of this node uses is not returned.
	var unknown *configobjects.UnknownError
	if _, err := r.cluster.Secret(t.Context(), r.shop, "w-others"); !errors.As(err, &unknown) || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("Secret(w-others) error = %v, want a %T and with %q", err, unknown, "forbidden")
	}

	r.proxy.Refuse(t)
	r.proxy.Cut()
	r.put("w-db", "three", false)
	if got := r.gives("w-db"); got != "two" {
		t.Errorf("while the API server is away it gives %q", got)
	}
	r.untell()
	r.proxy.Accept(t)
	r.awaitNotified(web.UID)
	r.eventually("w-db", "three")

	if err := r.admin.Secrets(r.shop).Delete(t.Context(), "w-db", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.awaitNotified(web.UID)
	r.eventually("w-db", `secret "w-db" not found`)

	// An immutable secret is not watched any more. A new one in its place is read when another pod begins to use it after
	// all others are gone.
	if err := r.admin.Secrets(r.shop).Delete(t.Context(), "w-fixed", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.put("w-fixed", "anew", true)
	r.put("w-later", "again", false)
	r.eventually("w-later", "again") // the watched objects have arrived
	if got := r.gives("w-fixed"); got != "fixed" {
		t.Errorf("an immutable secret that pods use gives %q, want %q", got, "fixed")
	}
	r.cluster.Forget(web.UID)
	r.cluster.Use(web)
	r.eventually("w-fixed", "anew")
}

// TestWatchesEndWithRun checks that also if the process goes on, as when another component fails.
func TestWatchesEndWithRun(t *testing.T) {
	r := newClusterRig(t, "ender", kubeletconfigv1beta1.WatchChangeDetectionStrategy, clock.RealClock{})
	r.put("e-db", "one", false)
	r.use("e-web", "e-db")
	r.eventually("e-db", "one")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = r.cluster.Run(ctx)
	}()
	select {
	case <-done:
	case <-time.After(60 * time.Second):
		t.Fatal("Run does not end")
	}
	r.use("e-later", "e-none") // this starts no watch
	if got := r.gives("e-db"); got != "one" {
		t.Errorf("it gives %q, want %q", got, "one")
	}
}

func TestAPodThatWaitsForTheAPIServerIsNotifiedOfTheAnswer(t *testing.T) {
	r := newClusterRig(t, "waiter", kubeletconfigv1beta1.WatchChangeDetectionStrategy, clock.RealClock{})
	r.put("late", "one", false)
	r.proxy.Refuse(t)
	r.proxy.Cut()
	web := r.use("late-web", "late")
	var unknown *configobjects.UnknownError
	if _, err := r.cluster.Secret(t.Context(), r.shop, "late"); !errors.As(err, &unknown) || !strings.HasPrefix(err.Error(), `secret "late" is not known yet: the API server`) {
		t.Errorf("Secret(late) error = %v, want a %T and beginning with %q",
			err, unknown, `secret "late" is not known yet: the API server`)
	}
	r.proxy.Accept(t)
	r.awaitNotified(web.UID)
	if got := r.gives("late"); got != "one" {
		t.Errorf("it gives %q, want %q", got, "one")
	}
}

func TestObjectsAreAskedForAgainWhenTheyAreOld(t *testing.T) {
	fake := testingclock.NewFakeClock(time.Now())
	r := newClusterRig(t, "cacher", kubeletconfigv1beta1.TTLCacheChangeDetectionStrategy, fake)
	r.put("c-db", "one", false)
	r.use("c-web", "c-db")
	r.eventually("c-db", "one")
	r.put("c-db", "two", false)
	if got := r.gives("c-db"); got != "one" {
		t.Errorf("what is known is given as %q, want %q", got, "one")
	}
	fake.Step(configobjects.CacheTTL)
	r.eventually("c-db", "two")
	r.put("c-db", "three", false)
	r.use("c-new", "c-db") // a new pod gets the current objects
	r.eventually("c-db", "three")
	r.proxy.Refuse(t)
	r.proxy.Cut()
	fake.Step(configobjects.CacheTTL)
	if got := r.gives("c-db"); got != "three" {
		t.Errorf("while the API server is away it gives %q", got)
	}
}

func TestObjectsAreAskedForEachTime(t *testing.T) {
	r := newClusterRig(t, "getter", kubeletconfigv1beta1.GetChangeDetectionStrategy, clock.RealClock{})
	r.put("g-db", "one", false)
	r.use("g-web", "g-db", "g-none")
	r.eventually("g-db", "one")
	r.put("g-db", "two", false)
	if got := r.gives("g-db"); got != "two" {
		t.Errorf("it gives %q, want %q", got, "two")
	}
	if got := r.gives("g-none"); got != `secret "g-none" not found` {
		t.Errorf("what is not there gives %q", got)
	}
	r.proxy.Refuse(t)
	r.proxy.Cut()
	if got := r.gives("g-db"); !strings.HasPrefix(got, `secret "g-db" is not known yet: the API server: `) {
		t.Errorf("while the API server is away it gives %q", got)
	}
}

// TestAnObjectOfAPodThatTheAuthorizerDoesNotKnowYet checks that Get waits: the API server lets a node read what its
// pods use, and may send a pod to the node before its authorizer knows the pod.
func TestAnObjectOfAPodThatTheAuthorizerDoesNotKnowYet(t *testing.T) {
	r := newClusterRig(t, "early", kubeletconfigv1beta1.WatchChangeDetectionStrategy, testingclock.NewFakeClock(time.Now()))
	r.put("login", "hunter2", false)
	early := pod("early", "login")
	early.Namespace = r.shop
	r.cluster.Use(early)
	given := make(chan string, 1)
	go func() { given <- r.gives("login") }()
	select {
	case got := <-given:
		t.Fatalf("got %q although the node may not read the secret yet", got)
	case <-time.After(100 * time.Millisecond):
	}
	r.use("web", "login")
	if got := <-given; got != "hunter2" {
		t.Errorf("got %q, want %q", got, "hunter2")
	}
}
