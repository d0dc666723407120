package podsapi_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/syncloop/internal/api/podsapi"
	"github.com/quartet-node/quartet/test/eventually"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a node that serves the API, with a client. It implements podsapi.Pods.
type rig struct {
	podsv1alpha1.PodsClient

	t       *testing.T
	level   *stream.Level[*enginev1.Pod]
	counted *prometheus.Registry
	clock   clock.PassiveClock
	root    string

	mu  sync.Mutex
	err error
}

func newRig(t *testing.T) *rig {
	t.Helper()
	root, err := os.MkdirTemp("", "podsapi") // The path of a socket must be short.
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(root)) })
	r := &rig{
		t: t, level: stream.NewLevel[*enginev1.Pod](stream.Config{}), counted: prometheus.NewRegistry(),
		clock: clock.RealClock{}, root: root,
	}
	conn, err := grpc.NewClient("unix://"+podsapi.Socket(root), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	must(t, err)
	t.Cleanup(func() { must(t, conn.Close()) })
	r.PodsClient = podsv1alpha1.NewPodsClient(conn)
	return r
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// serve serves the API until the test ends, or the returned function is called.
func (r *rig) serve() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	config := podsapi.Config{
		Path: podsapi.Socket(r.root), Pods: r, Metrics: podsapi.NewMetrics(r.counted), Logger: slog.New(slog.DiscardHandler),
		Clock: r.clock,
	}
	go func() { done <- podsapi.Serve(ctx, config) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	})
	r.t.Cleanup(stop)
	return stop
}

// List implements podsapi.Pods.
func (r *rig) List() ([]*enginev1.Pod, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.level.List(), r.err
}

// Source implements podsapi.Pods.
func (r *rig) Source() (stream.Source[*enginev1.Pod], error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.level, r.err
}

func (r *rig) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

// put puts a pod into the store; one without a source is an orphan.
func (r *rig) put(name, source string, phase v1.PodPhase) {
	r.t.Helper()
	data, err := (&v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name)},
		Spec:       v1.PodSpec{NodeName: "n1"}, Status: v1.PodStatus{Phase: phase},
	}).Marshal()
	must(r.t, err)
	r.level.Put("uid-"+name, &enginev1.Pod{Pod: data, Source: source})
}

// short describes a pod: its name, its phase, and its node.
func (r *rig) short(data []byte) string {
	r.t.Helper()
	pod := &v1.Pod{}
	must(r.t, pod.Unmarshal(data))
	return strings.TrimRight(fmt.Sprintf("%s/%s %s %s", pod.Namespace, pod.Name, pod.Status.Phase, pod.Spec.NodeName), " ")
}

// watch returns a function that waits for the next event, in short.
func (r *rig) watch(ctx context.Context) func() string {
	r.t.Helper()
	watch, err := r.WatchPods(ctx, &podsv1alpha1.WatchPodsRequest{})
	must(r.t, err)
	return func() string {
		r.t.Helper()
		event, err := watch.Recv()
		if err != nil {
			return status.Code(err).String()
		}
		if len(event.GetPod()) == 0 {
			return event.GetType().String()
		}
		return event.GetType().String() + " " + r.short(event.GetPod())
	}
}

func (r *rig) want(next func() string, wanted ...string) {
	r.t.Helper()
	for _, want := range wanted {
		if got := next(); got != want {
			r.t.Fatalf("the event is %q, want %q", got, want)
		}
	}
}

func TestPodsAreListedWithTheirStatus(t *testing.T) {
	r := newRig(t)
	r.put("web", "api", v1.PodRunning)
	r.put("db", "file", v1.PodPending)
	r.put("orphan", "", v1.PodRunning)
	r.serve()
	all, err := r.ListPods(t.Context(), &podsv1alpha1.ListPodsRequest{})
	must(t, err)
	var got []string
	for _, data := range all.GetPods() {
		got = append(got, r.short(data))
	}
	if fmt.Sprint(got) != "[shop/db Pending n1 shop/web Running n1]" {
		t.Errorf("ListPods() = %v, want the pods with a source by their UIDs", got)
	}
	one, err := r.GetPod(t.Context(), &podsv1alpha1.GetPodRequest{PodUID: "uid-web"})
	if err != nil || r.short(one.GetPod()) != "shop/web Running n1" {
		t.Errorf("GetPod() = %v, %v, want shop/web", one, err)
	}
	for _, uid := range []string{"uid-orphan", "", "other"} {
		_, err := r.GetPod(t.Context(), &podsv1alpha1.GetPodRequest{PodUID: uid})
		if want := "pod with UID " + uid + " not found"; status.Code(err) != codes.NotFound || status.Convert(err).Message() != want {
			t.Errorf("GetPod() error = %v, want %s", err, want)
		}
	}
	for name, counts := range map[string]map[string]float64{
		"total": {"OK": 2, "NotFound": 3}, "list_total": {"OK": 1}, "get_total": {"OK": 1, "NotFound": 3},
	} {
		for code, want := range counts {
			metricstest.Want(t, r.counted, want, "kubelet_pod_requests_"+name, "server_api_version", "v1alpha1", "status_code", code)
		}
	}
}

func TestPodsAreWatched(t *testing.T) {
	r := newRig(t)
	r.put("web", "api", v1.PodPending)
	r.put("orphan", "", v1.PodRunning)
	r.serve()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	next := r.watch(ctx)
	r.want(next, "ADDED shop/web Pending n1", "INITIAL_SYNC_COMPLETE")
	r.put("web", "api", v1.PodRunning)
	r.want(next, "MODIFIED shop/web Running n1")
	r.put("orphan", "", v1.PodFailed)
	r.level.Delete("uid-orphan")
	r.put("db", "file", v1.PodPending)
	r.want(next, "ADDED shop/db Pending n1")
	r.level.Delete("uid-web")
	r.want(next, "DELETED shop/web") // without its spec and status
	r.put("web", "api", v1.PodPending)
	r.want(next, "ADDED shop/web Pending n1")
	cancel()
	r.want(next, "Canceled")
	eventually.That(t, "the end of the watch is counted", func() bool {
		families, err := r.counted.Gather()
		must(t, err)
		return len(families) > 0
	})
	metricstest.Want(t, r.counted, 1, "kubelet_pod_requests_watch_total", "status_code", "Canceled")
}

// TestASlowClientGetsTheLatestVersionOfEachPod checks that a watch that is not read loses no pod, and ends with nothing
// but the last version of each.
func TestASlowClientGetsTheLatestVersionOfEachPod(t *testing.T) {
	const pods, versions = 50, 200
	r := newRig(t)
	r.serve()
	next := r.watch(t.Context())
	r.want(next, "INITIAL_SYNC_COMPLETE")
	for version := range versions {
		for i := range pods {
			r.put(fmt.Sprintf("pod-%d-%s", i, strings.Repeat("x", 200)), "api", v1.PodPhase(fmt.Sprint("phase", version)))
		}
	}
	r.put("last", "api", v1.PodRunning)
	latest := map[string]string{}
	for len(latest) < pods || latest["shop/last"] == "" {
		words := strings.Fields(next())
		latest[words[1]] = words[2]
	}
	for pod, phase := range latest {
		if pod != "shop/last" && phase != fmt.Sprint("phase", versions-1) {
			t.Errorf("%s is last seen in %s", pod, phase)
		}
	}
}

// TestBeforeThePodsAreKnown checks the kubelet's code, and that a watch ends when the process stops.
func TestBeforeThePodsAreKnown(t *testing.T) {
	r := newRig(t)
	r.fail(errors.New("the pods are not known yet: pleg does not answer"))
	r.serve()
	const want = "Kubelet is initializing: the pods are not known yet: pleg does not answer"
	_, list := r.ListPods(t.Context(), &podsv1alpha1.ListPodsRequest{})
	_, get := r.GetPod(t.Context(), &podsv1alpha1.GetPodRequest{PodUID: "uid-web"})
	for _, err := range []error{list, get} {
		if status.Code(err) != codes.FailedPrecondition || status.Convert(err).Message() != want {
			t.Errorf("error = %v, want %s", err, want)
		}
	}
	r.want(r.watch(t.Context()), "FailedPrecondition")
	r.fail(nil)
	next := r.watch(t.Context())
	r.want(next, "INITIAL_SYNC_COMPLETE")
	r.level.Close()
	r.want(next, "Unavailable")
	r.want(r.watch(t.Context()), "Unavailable")
}

func TestRequestsAreLimitedAndWatchesAreNot(t *testing.T) {
	r := newRig(t)
	r.clock = clocktesting.NewFakePassiveClock(time.Now())
	r.serve()
	for range 10 {
		_, err := r.ListPods(t.Context(), &podsv1alpha1.ListPodsRequest{})
		must(t, err)
	}
	if _, err := r.ListPods(t.Context(), &podsv1alpha1.ListPodsRequest{}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("the eleventh at once: %v, want %v", err, codes.ResourceExhausted)
	}
	r.want(r.watch(t.Context()), "INITIAL_SYNC_COMPLETE")
	metricstest.Want(t, r.counted, 10, "kubelet_pod_requests_total", "status_code", "OK") // a refused one is not counted
}

func TestTheSocketIsRootsAlone(t *testing.T) {
	r := newRig(t)
	stop := r.serve()
	_, err := r.ListPods(t.Context(), &podsv1alpha1.ListPodsRequest{})
	must(t, err)
	info, err := os.Stat(r.root + "/pods-api/pods-api.sock")
	if err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("the socket is %v, %v, want %v", info, err, os.ModeSocket|0o600)
	}
	stop()
}
