package servicelinks_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/servicelinks"
	"github.com/quartet-node/quartet/test/cluster"
)

// shared is the cluster of these tests.
var shared cluster.Shared

func TestMain(m *testing.M) { goleak.VerifyTestMain(shared.Main(m)) }

// patience bounds waits that take milliseconds, or a back-off of the reflector.
const patience = time.Minute

// rig has the services of a node.
type rig struct {
	*servicelinks.Links

	t        *testing.T
	notified chan types.UID
}

// start runs Links with the API server of a kubeconfig.
func start(t *testing.T, kubeconfig string, c clock.Clock) *rig {
	t.Helper()
	client, err := apiclient.New(apiclient.Config{
		Kubeconfig: kubeconfig, Service: nodeconfig.SyncLoop, QPS: -1, ContentType: runtime.ContentTypeProtobuf,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	r := &rig{t: t, notified: make(chan types.UID, 100)}
	r.Links = servicelinks.New(servicelinks.Config{
		Client: client.Core, Changed: func(uid types.UID) { r.notified <- uid }, Clock: c,
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = r.Run(ctx) })
	t.Cleanup(running.Wait)
	t.Cleanup(cancel)
	return r
}

func podOf(uid types.UID, source string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: string(uid), UID: uid, Annotations: map[string]string{podset.AnnotationSource: source}}}
}

// comesTo waits until a variable of a pod has this value. An empty value means that the pod has no such variable.
func (r *rig) comesTo(pod *v1.Pod, variable, want string) {
	r.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		got, err := r.Variables(r.t.Context(), pod)
		place := slices.IndexFunc(got, func(e v1.EnvVar) bool { return e.Name == variable })
		if err == nil && (place < 0 && want == "" || place >= 0 && got[place].Value == want) {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("the variables are %v, error %v; want %s=%s", got, err, variable, want)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// TestServicesOfAnAPIServer uses the permissions of a node.
func TestServicesOfAnAPIServer(t *testing.T) {
	c := shared.Cluster(t)
	core := c.Client(t).CoreV1()
	_, err := core.Namespaces().Create(t.Context(), &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, c.Kubeconfig(t, cluster.NodeUser("linked"), cluster.Nodes), clock.RealClock{})
	pod := podOf("u-1", "api")
	var api *v1.Service // the API server creates this service itself after its start
	for deadline := time.Now().Add(patience); ; <-time.After(50 * time.Millisecond) {
		if api, err = core.Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{}); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	r.comesTo(pod, "KUBERNETES_SERVICE_HOST", api.Spec.ClusterIP)
	r.comesTo(pod, "KUBERNETES_SERVICE_PORT", "443")
	for _, s := range []*v1.Service{
		{ObjectMeta: metav1.ObjectMeta{Name: "headless"}, Spec: v1.ServiceSpec{ClusterIP: v1.ClusterIPNone, Ports: []v1.ServicePort{{Port: 80}}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "external"}, Spec: v1.ServiceSpec{Type: v1.ServiceTypeExternalName, ExternalName: "example.com", Ports: []v1.ServicePort{{Port: 80}}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: v1.ServiceSpec{Ports: []v1.ServicePort{{Port: 80}}}},
	} {
		if _, err := core.Services("shop").Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	r.comesTo(pod, "WEB_SERVICE_PORT", "80") // which was created last
	for _, none := range []string{"HEADLESS_SERVICE_HOST", "EXTERNAL_SERVICE_HOST"} {
		r.comesTo(pod, none, "")
	}
	web, err := core.Services("shop").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	web.Spec.Ports[0].Port = 81
	if web, err = core.Services("shop").Update(t.Context(), web, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.comesTo(pod, "WEB_SERVICE_PORT", "81")
	web.Spec.Type, web.Spec.ExternalName = v1.ServiceTypeExternalName, "example.com"
	web.Spec.ClusterIP, web.Spec.ClusterIPs = "", nil
	if _, err := core.Services("shop").Update(t.Context(), web, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.comesTo(pod, "WEB_SERVICE_PORT", "")
	web, err = core.Services("shop").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	web.Spec.Type, web.Spec.ExternalName = v1.ServiceTypeClusterIP, ""
	if _, err = core.Services("shop").Update(t.Context(), web, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.comesTo(pod, "WEB_SERVICE_PORT", "81")
	if err := core.Services("shop").Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.comesTo(pod, "WEB_SERVICE_PORT", "")
	links := false
	pod.Spec.EnableServiceLinks = &links
	r.comesTo(pod, "KUBERNETES_SERVICE_PORT", "443")
}

// gate is an API server with one service. It answers when it is open.
type gate struct {
	open chan struct{}
	// refuses makes requests fail while the gate is closed. It is set before the first request.
	refuses bool
}

// ServeHTTP implements http.Handler.
func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	select {
	case <-g.open:
	default:
		if g.refuses {
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"services is forbidden"}`))
			return
		}
		<-g.open
	}
	if r.URL.Query().Get("watch") != "" {
		w.(http.Flusher).Flush() //nolint:forcetypeassert // that of a server is one
		<-r.Context().Done()
		return
	}
	_, _ = w.Write([]byte(`{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[
		{"metadata":{"name":"kubernetes","namespace":"default"},"spec":{"clusterIP":"10.96.0.1","ports":[{"port":443}]}}]}`))
}

// gated runs Links with a gate as API server.
func gated(t *testing.T, g *gate, c clock.Clock) *rig {
	t.Helper()
	server := httptest.NewServer(g)
	t.Cleanup(server.Close)
	t.Cleanup(func() {
		select {
		case <-g.open:
		default:
			close(g.open)
		}
	})
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\nusers: [{name: a, user: {}}]\n" +
		"clusters: [{name: a, cluster: {server: '" + server.URL + "'}}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return start(t, file, c)
}

// TestAPodOfTheAPIServerWaitsForTheFirstList checks that each call waits for a short time, that the pod is notified
// after the first list, and that other pods do not wait.
func TestAPodOfTheAPIServerWaitsForTheFirstList(t *testing.T) {
	fake := clocktesting.NewFakeClock(time.Now())
	g := &gate{open: make(chan struct{})}
	r := gated(t, g, fake)
	for _, source := range []string{"file", "http", "local"} {
		if got, err := r.Variables(t.Context(), podOf("u-static", source)); len(got) > 0 || !errors.As(err, new(*servicelinks.UnknownError)) {
			t.Errorf("a pod of the source %s has %v, error %v", source, got, err)
		}
	}
	answered := make(chan error, 1)
	go func() {
		_, err := r.Variables(context.Background(), podOf("u-1", "api"))
		answered <- err
	}()
	for deadline := time.Now().Add(patience); !fake.HasWaiters(); <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not wait")
		}
	}
	fake.Step(time.Second)
	const want = "services have not yet been read at least once, cannot construct envvars: the API server has not answered yet"
	if err := <-answered; !errors.As(err, new(*servicelinks.UnknownError)) || err.Error() != want {
		t.Errorf("the error is %v", err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := r.Variables(ended, podOf("u-2", "api")); !errors.Is(err, context.Canceled) {
		t.Errorf("the start of a pod that ends gets %v", err)
	}
	close(g.open)
	if uid := <-r.notified; uid != "u-1" {
		t.Errorf("%s was told, want %q", uid, "u-1")
	}
	r.comesTo(podOf("u-1", "api"), "KUBERNETES_SERVICE_HOST", "10.96.0.1")
	r.comesTo(podOf("u-static", "file"), "KUBERNETES_SERVICE_HOST", "10.96.0.1")
	if len(r.notified) > 0 {
		t.Errorf("%s was told, too", <-r.notified)
	}
}

// TestWhyServicesAreNotKnown checks that the error of the API server is returned at once, and that the services are
// known after a list.
func TestWhyServicesAreNotKnown(t *testing.T) {
	g := &gate{open: make(chan struct{}), refuses: true}
	r := gated(t, g, clock.RealClock{})
	for deadline := time.Now().Add(patience); ; {
		_, err := r.Variables(t.Context(), podOf("u-1", "api"))
		if err != nil && strings.Contains(err.Error(), "the API server: services is forbidden") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the error is %v", err)
		}
	}
	r.Forget("u-1")
	close(g.open)
	r.comesTo(podOf("u-2", "api"), "KUBERNETES_SERVICE_PORT", "443")
	if len(r.notified) > 0 && <-r.notified == "u-1" {
		t.Error("a pod that is gone was told")
	}
}

func TestANodeWithoutAnAPIServerHasNoServices(t *testing.T) {
	if got, err := (servicelinks.None{}).Variables(t.Context(), podOf("u-1", "file")); len(got) > 0 || err != nil {
		t.Errorf("it has %v, error %v, want none", got, err)
	}
}
