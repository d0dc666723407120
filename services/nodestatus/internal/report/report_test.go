package report

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/internal/watchdog"
	"github.com/quartet-node/quartet/test/eventually"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// apiServer has one Node, in JSON, and replaces the network, too.
type apiServer struct {
	t *testing.T

	mu      sync.Mutex
	node    *v1.Node
	version int
	// fails is the error of requests; nil for an answer.
	fails error
	// asked gets the method of each answered request.
	requests chan string
}

// RoundTrip implements http.RoundTripper.
func (a *apiServer) RoundTrip(request *http.Request) (*http.Response, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.fails != nil:
		return refusal(a.fails)
	case a.node == nil:
		return refusal(apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, "node-1"))
	case request.Method == http.MethodPatch:
		patch, err := io.ReadAll(request.Body)
		if err != nil {
			a.t.Error(err)
		}
		a.patch(patch)
	}
	a.requests <- request.Method
	return answer(http.StatusOK, a.node)
}

func (a *apiServer) patch(patch []byte) {
	whole, err := json.Marshal(a.node)
	if err != nil {
		a.t.Error(err)
	}
	patched, err := strategicpatch.StrategicMergePatch(whole, patch, v1.Node{})
	if err != nil {
		a.t.Errorf("%s: %v", patch, err)
	}
	a.node = &v1.Node{}
	if err := json.Unmarshal(patched, a.node); err != nil {
		a.t.Error(err)
	}
	a.version++
	a.node.ResourceVersion = strconv.Itoa(a.version)
}

func (a *apiServer) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fails = err
}

func (a *apiServer) has() *v1.Node {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.node
}

func answer(code int, object any) (*http.Response, error) {
	data, err := json.Marshal(object)
	return &http.Response{
		StatusCode: code,
		Header:     http.Header{"Content-Type": {"application/json"}},
		Body:       io.NopCloser(bytes.NewReader(data)),
	}, err
}

func refusal(err error) (*http.Response, error) {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		s := status.Status()
		return answer(int(s.Code), &s)
	}
	return nil, err
}

// rig is a reporter, which runs until the test ends once it is started.
type rig struct {
	t        *testing.T
	api      *apiServer
	clock    *clocktesting.FakeClock
	reporter *Reporter
	health   *rpc.Health
	registry *prometheus.Registry
	broken   chan struct{}
	// volumes are the volumes in use; nil while they are unknown. delayed is why the node must not become ready.
	volumes atomic.Pointer[[]v1.UniqueVolumeName]
	delayed atomic.Pointer[string]
}

func newRig(t *testing.T, run func(*Reporter, context.Context)) *rig {
	t.Helper()
	known := runtime.NewScheme()
	if err := v1.AddToScheme(known); err != nil {
		t.Fatal(err)
	}
	r := &rig{
		t:        t,
		clock:    clocktesting.NewFakeClock(now),
		health:   rpc.NewHealth(),
		registry: prometheus.NewRegistry(),
		broken:   make(chan struct{}, 100),
		api: &apiServer{t: t, requests: make(chan string, 100), version: 1, node: &v1.Node{
			TypeMeta: metav1.TypeMeta{
				APIVersion: "v1",
				Kind:       "Node",
			},
			ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "uid", ResourceVersion: "1"},
			Status:     computed(),
		}},
	}
	client, err := rest.RESTClientForConfigAndClient(
		&rest.Config{Host: "https://api.example", APIPath: "/api", QPS: -1, ContentConfig: rest.ContentConfig{
			GroupVersion: &v1.SchemeGroupVersion, NegotiatedSerializer: serializer.NewCodecFactory(known).WithoutConversion(),
		}},
		&http.Client{Transport: r.api},
	)
	if err != nil {
		t.Fatal(err)
	}
	r.reporter = New(Config{
		VolumesInUse: func() ([]v1.UniqueVolumeName, bool) {
			volumes := r.volumes.Load()
			if volumes == nil {
				return nil, false
			}
			return *volumes, true
		},
		Delayed: func() string {
			if why := r.delayed.Load(); why != nil {
				return *why
			}
			return ""
		},
		Client:    client,
		Name:      "node-1",
		Period:    10 * time.Second,
		Frequency: 5 * time.Minute,
		Timeout:   10 * time.Second,
		Broken:    func() { r.broken <- struct{}{} },
		Health:    r.health,
		Clock:     r.clock,
		Logger:    slog.New(slog.DiscardHandler),
		Metrics:   NewMetrics(r.registry),
		Tracer:    telemetry.Off(),
	})
	if run == nil {
		return r
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		run(r.reporter, ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return r
}

// began returns a rig whose reporter has sent its first status, which is due at the start.
func began(t *testing.T) *rig {
	t.Helper()
	r := newRig(t, (*Reporter).Run)
	r.offer(func(*v1.NodeStatus) {})
	r.reporter.Seen(r.api.has())
	r.until("a first status", func() bool { return len(r.api.requests) == 2 })
	r.wantRequests(http.MethodGet, http.MethodPatch)
	return r
}

// offer publishes a Node with a changed status.
func (r *rig) offer(change func(*v1.NodeStatus)) {
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Status: computed()}
	change(&node.Status)
	r.reporter.Offer(node)
}

// until advances the clock until a condition holds.
func (r *rig) until(what string, so func() bool) {
	r.t.Helper()
	eventually.Wait{Interval: time.Millisecond, Step: func() { r.clock.Step(100 * time.Millisecond) }}.That(r.t, what, so)
}

func (r *rig) wantRequests(methods ...string) {
	r.t.Helper()
	for _, want := range methods {
		select {
		case got := <-r.api.requests:
			if got != want {
				r.t.Fatalf("asks %s, want %s", got, want)
			}
		case <-time.After(60 * time.Second):
			r.t.Fatalf("asks nothing, want %s: %q", want, r.health.Waiting())
		}
	}
}

func notReady(status *v1.NodeStatus) {
	ready := &status.Conditions[1]
	ready.Status, ready.Reason, ready.LastTransitionTime = v1.ConditionFalse, "KubeletNotReady", at(0)
}

// TestAConditionIsSentAtOnce and everything else with the next period.
func TestAConditionIsSentAtOnce(t *testing.T) {
	r := began(t)
	r.offer(notReady)
	r.wantRequests(http.MethodPatch)
	if ready := find(r.api.has().Status.Conditions, v1.NodeReady); ready.Status != v1.ConditionFalse {
		t.Errorf("the API server has %v, want Status %v", ready, v1.ConditionFalse)
	}
	r.offer(func(status *v1.NodeStatus) {
		notReady(status)
		status.Images = []v1.ContainerImage{{SizeBytes: 1}}
	})
	if n := len(r.api.requests); n != 0 {
		t.Errorf("%d requests before the period is over", n)
	}
	r.until("the images", func() bool { return len(r.api.requests) == 1 })
	r.wantRequests(http.MethodPatch)
	if images := r.api.has().Status.Images; len(images) != 1 {
		t.Errorf("the API server has the images %v, want exactly one", images)
	}
}

// TestVolumesInUseAreSentAtOnce, those that are not any more within a second in one request, and those in the API
// server stay while they are unknown.
func TestVolumesInUseAreSentAtOnce(t *testing.T) {
	r := newRig(t, (*Reporter).Run)
	r.api.node.Status.VolumesInUse = []v1.UniqueVolumeName{"earlier"}
	r.offer(func(*v1.NodeStatus) {})
	r.reporter.Seen(r.api.has())
	r.until("a first status", func() bool { return len(r.api.requests) == 2 })
	r.wantRequests(http.MethodGet, http.MethodPatch)
	if got := r.api.has().Status.VolumesInUse; !slices.Equal(got, []v1.UniqueVolumeName{"earlier"}) {
		t.Errorf("while they are unknown the API server has %v", got)
	}
	tell := func(volumes ...v1.UniqueVolumeName) {
		r.volumes.Store(&volumes)
		r.reporter.Changed()
	}
	has := func(volumes ...v1.UniqueVolumeName) {
		t.Helper()
		r.wantRequests(http.MethodPatch)
		if got := r.api.has().Status.VolumesInUse; !slices.Equal(got, volumes) {
			t.Errorf("the API server has %v, want %v", got, volumes)
		}
	}
	tell("a", "b", "c")
	has("a", "b", "c")
	tell("b", "c")
	waits := func() bool { return r.clock.Waiters() == 2 } // the period, too
	eventually.That(t, "the node collects them", waits)
	tell("c")
	r.clock.Step(releaseDelay)
	has("c")
	tell("d")
	has("d")
	tell()
	eventually.That(t, "the node collects them again", waits)
	r.clock.Step(releaseDelay)
	has()
	r.reporter.Changed()
	r.offer(notReady)
	r.wantRequests(http.MethodPatch)
	if n := len(r.api.requests); n != 0 {
		t.Errorf("%d more requests for volumes that have not changed", n)
	}
}

// TestANodeBecomesReadyOnlyWhenItMay, and one that is ready stays so.
func TestANodeBecomesReadyOnlyWhenItMay(t *testing.T) {
	r := newRig(t, (*Reporter).Run)
	r.delayed.Store(ptr.To("CSINode is not yet initialized"))
	notReady(&r.api.node.Status)
	r.offer(func(*v1.NodeStatus) {})
	r.reporter.Seen(r.api.has())
	r.until("a first status", func() bool { return len(r.api.requests) == 2 })
	r.wantRequests(http.MethodGet, http.MethodPatch)
	ready := func() v1.NodeCondition { return *find(r.api.has().Status.Conditions, v1.NodeReady) }
	if got := ready(); got.Status != v1.ConditionFalse || got.Reason != "KubeletNotReady" ||
		got.Message != "CSINode is not yet initialized" {
		t.Errorf("before that it is %v", got)
	}
	r.delayed.Store(nil)
	r.reporter.Changed()
	r.wantRequests(http.MethodPatch)
	if got := ready(); got.Status != v1.ConditionTrue {
		t.Errorf("then it is %v, want Status %v", got, v1.ConditionTrue)
	}
	r.delayed.Store(ptr.To("CSINode is not yet initialized"))
	r.offer(func(status *v1.NodeStatus) { status.Images = []v1.ContainerImage{{SizeBytes: 1}} })
	r.until("the images", func() bool { return len(r.api.requests) == 1 })
	r.wantRequests(http.MethodPatch)
	if got := ready(); got.Status != v1.ConditionTrue {
		t.Errorf("a ready node becomes %v, want Status %v", got, v1.ConditionTrue)
	}
}

// TestAddressesOfACloudProviderStay, while the rest of the status is this node's.
func TestAddressesOfACloudProviderStay(t *testing.T) {
	r := newRig(t, nil)
	r.reporter.cfg.ExternalCloud = true
	given := []v1.NodeAddress{{Type: v1.NodeExternalIP, Address: "203.0.113.9"}}
	r.api.node.Status.Addresses = given
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.reporter.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	r.offer(func(status *v1.NodeStatus) { status.NodeInfo.BootID = "another" })
	r.reporter.Seen(r.api.has())
	r.until("a status", func() bool { return len(r.api.requests) == 2 })
	r.wantRequests(http.MethodGet, http.MethodPatch)
	got := r.api.has().Status
	if diff := cmp.Diff(given, got.Addresses); diff != "" || got.NodeInfo.BootID != "another" {
		t.Errorf("it has the boot %s and the addresses (-want +got):\n%s", got.NodeInfo.BootID, diff)
	}
}

// TestAStatusThatDoesNotChangeIsSentNowAndThen: the first interval varies by half of it, later ones are constant.
func TestAStatusThatDoesNotChangeIsSentNowAndThen(t *testing.T) {
	r := newRig(t, nil)
	r.offer(func(*v1.NodeStatus) {})
	r.reporter.Seen(r.api.has())
	for _, step := range []struct {
		after time.Duration
		sends bool
	}{{0, true}, {149 * time.Second, false}, {302 * time.Second, true}, {299 * time.Second, false}, {time.Second, true},
		{299 * time.Second, false}} {
		r.clock.Step(step.after)
		if err := r.reporter.try(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		if step.sends {
			r.wantRequests(http.MethodGet, http.MethodPatch)
		}
		if n := len(r.api.requests); n != 0 {
			t.Fatalf("%s later asks %d times more", step.after, n)
		}
	}
}

// TestAnAPIServerThatFailsIsTriedAgain, on new connections from the second try on, until it answers.
func TestAnAPIServerThatFailsIsTriedAgain(t *testing.T) {
	r := began(t)
	r.api.fail(apierrors.NewInternalError(errors.New("etcd is away")))
	r.offer(notReady)
	errorsOf := func() float64 {
		return metricstest.Value(t, r.registry, "quartet_nodestatus_status_reports_total", "result", "error")
	}
	r.until("five tries", func() bool { return errorsOf() >= tries && len(r.broken) >= tries-1 })
	if waiting := strings.Join(r.health.Waiting(), ""); !strings.Contains(waiting, "is not sent to the API server") {
		t.Errorf("says %q, want text with %q", waiting, "is not sent to the API server")
	}
	r.api.fail(nil)
	r.until(
		"a status",
		func() bool { return find(r.api.has().Status.Conditions, v1.NodeReady).Status == v1.ConditionFalse },
	)
	r.until("that all is well", func() bool { return len(r.health.Waiting()) == 0 })
}

func TestADeletedNodeIsLeftToTheRegistrar(t *testing.T) {
	r := began(t)
	node := r.api.has()
	r.api.mu.Lock()
	r.api.node = nil
	r.api.mu.Unlock()
	r.offer(notReady)
	r.api.mu.Lock()
	r.api.node = node
	r.api.mu.Unlock()
	another := node.DeepCopy()
	another.UID, another.Status.Conditions = "another", nil
	r.reporter.Seen(another)
	r.wantRequests(http.MethodPatch)
}

// TestAReportThatDoesNotEndMakesTheLoopStandStill has a lock that is never free.
func TestAReportThatDoesNotEndMakesTheLoopStandStill(t *testing.T) {
	r := began(t)
	asked, release := make(chan struct{}, 100), make(chan struct{})
	r.reporter.mu.Lock()
	r.reporter.cfg.Delayed = func() string {
		asked <- struct{}{}
		<-release
		return ""
	}
	r.reporter.mu.Unlock()
	t.Cleanup(func() { close(release) })
	r.offer(notReady)
	<-asked
	r.clock.Step(10*time.Second + watchdog.Limit)
	if err := r.reporter.Stands(); err != nil {
		t.Errorf("within its deadline it stands still: %v", err)
	}
	r.clock.Step(time.Second)
	if err := r.reporter.Stands(); err == nil {
		t.Error("beyond its deadline it does not stand still")
	}
}
