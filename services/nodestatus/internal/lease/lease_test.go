package lease

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/internal/watchdog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// apiServer has one lease, in JSON. It replaces the network, too: a failure without an answer is one of its failures.
type apiServer struct {
	t *testing.T

	mu      sync.Mutex
	lease   *coordinationv1.Lease
	version int
	// fail is called before each request with its method; an error is the answer.
	fail func(method string) error
	// writes gets each written lease.
	writes chan *coordinationv1.Lease
}

var leases = schema.GroupResource{Group: coordinationv1.GroupName, Resource: "leases"}

// RoundTrip implements http.RoundTripper.
func (a *apiServer) RoundTrip(request *http.Request) (*http.Response, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fail != nil {
		if err := a.fail(request.Method); err != nil {
			return refusal(err)
		}
	}
	if request.Method == http.MethodGet {
		if a.lease == nil {
			return refusal(apierrors.NewNotFound(leases, "node-1"))
		}
		return answer(http.StatusOK, a.lease)
	}
	var lease coordinationv1.Lease
	if err := json.NewDecoder(request.Body).Decode(&lease); err != nil {
		a.t.Error(err)
	}
	if request.Method == http.MethodPut && (a.lease == nil || lease.ResourceVersion != a.lease.ResourceVersion) {
		return refusal(apierrors.NewConflict(leases, "node-1", errors.New("it is another")))
	}
	a.put(&lease)
	a.writes <- a.lease
	return answer(http.StatusOK, a.lease)
}

// put writes a lease. The caller holds mu, or is the only one.
func (a *apiServer) put(lease *coordinationv1.Lease) {
	a.version++
	a.lease = lease.DeepCopy()
	a.lease.ResourceVersion = strconv.Itoa(a.version)
}

// byAnother renews the lease as another agent.
func (a *apiServer) byAnother(at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	lease := a.lease.DeepCopy()
	lease.Spec.RenewTime = &metav1.MicroTime{Time: at}
	a.put(lease)
}

func answer(code int, object any) (*http.Response, error) {
	data, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: code,
		Header:     http.Header{"Content-Type": {"application/json"}},
		Body:       io.NopCloser(strings.NewReader(string(data))),
	}, nil
}

func refusal(err error) (*http.Response, error) {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		s := status.Status()
		return answer(int(s.Code), &s)
	}
	return nil, err
}

// rig is a keeper that runs until the test ends.
type rig struct {
	t        *testing.T
	api      *apiServer
	clock    *clocktesting.FakeClock
	keeper   *Keeper
	health   *rpc.Health
	registry *prometheus.Registry
	broken   chan struct{}
}

func newRig(t *testing.T, stored *coordinationv1.Lease, fail func(string) error) *rig {
	t.Helper()
	known := runtime.NewScheme()
	if err := coordinationv1.AddToScheme(known); err != nil {
		t.Fatal(err)
	}
	r := &rig{
		t:        t,
		clock:    clocktesting.NewFakeClock(time.Unix(1e9, 0)),
		health:   rpc.NewHealth(),
		registry: prometheus.NewRegistry(),
		broken:   make(chan struct{}, 100),
		api:      &apiServer{t: t, fail: fail, writes: make(chan *coordinationv1.Lease, 100)},
	}
	if stored != nil {
		r.api.put(stored)
	}
	client, err := rest.RESTClientForConfigAndClient(
		&rest.Config{Host: "https://api.example", APIPath: "/apis", QPS: -1, ContentConfig: rest.ContentConfig{
			GroupVersion:         &coordinationv1.SchemeGroupVersion,
			NegotiatedSerializer: serializer.NewCodecFactory(known).WithoutConversion(),
		}},
		&http.Client{Transport: r.api},
	)
	if err != nil {
		t.Fatal(err)
	}
	r.keeper = New(Config{
		Client:   client,
		Name:     "node-1",
		Duration: 40 * time.Second,
		Broken:   func() { r.broken <- struct{}{} },
		Health:   r.health,
		Clock:    r.clock,
		Logger:   slog.New(slog.DiscardHandler),
		Metrics:  NewMetrics(r.registry),
		Tracer:   telemetry.Off(),
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.keeper.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return r
}

// after advances the clock once the keeper waits for it.
func (r *rig) after(d time.Duration) {
	r.t.Helper()
	for end := time.Now().Add(60 * time.Second); !r.clock.HasWaiters(); <-time.After(time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatal("the keeper waits for nothing")
		}
	}
	r.clock.Step(d)
}

func (r *rig) written() *coordinationv1.Lease {
	r.t.Helper()
	select {
	case lease := <-r.api.writes:
		return lease
	case <-time.After(60 * time.Second):
		r.t.Fatalf("no lease is written: %q", r.health.Waiting())
		return nil
	}
}

func (r *rig) waitsFor(want string) {
	r.t.Helper()
	var text string
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); <-time.After(time.Millisecond) {
		if text = strings.Join(r.health.Waiting(), "\n"); (want == "") == (text == "") && strings.Contains(text, want) {
			return
		}
	}
	r.t.Fatalf("waits for %q, want %q", text, want)
}

var node = &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "uid"}}

const interval = 11 * time.Second // a quarter of the lease duration, and the largest jitter

// TestALeaseIsMadeWithItsNode checks that it is renewed four times within its duration.
func TestALeaseIsMadeWithItsNode(t *testing.T) {
	r := newRig(t, nil, nil)
	r.waitsFor("until the API server has the Node")
	r.keeper.Registered(node)
	lease := r.written()
	if lease.OwnerReferences[0].UID != "uid" || *lease.Spec.LeaseDurationSeconds != 40 ||
		*lease.Spec.HolderIdentity != "node-1" ||
		!lease.Spec.RenewTime.Time.Equal(r.clock.Now()) {
		t.Errorf("the lease is %+v", lease)
	}
	r.waitsFor("")
	r.after(interval)
	if again := r.written(); !again.Spec.RenewTime.Time.Equal(r.clock.Now()) || again.OwnerReferences[0].UID != "uid" {
		t.Errorf("the lease is %+v", again)
	}
	metricstest.Want(t, r.registry, 0, "quartet_nodestatus_lease_renewals_total", "result", "error")
}

// TestALeaseThatIsThereIsRenewedBeforeTheNodeIsKnown.
func TestALeaseThatIsThereIsRenewedBeforeTheNodeIsKnown(t *testing.T) {
	owned := metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: "node-1", UID: "before"}
	r := newRig(
		t,
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{owned}}},
		nil,
	)
	if lease := r.written(); lease.OwnerReferences[0] != owned {
		t.Errorf("the lease is %+v, want OwnerReferences[0] %v", lease, owned)
	}
	r.keeper.Registered(node)
	if lease := r.written(); lease.OwnerReferences[0].UID != "uid" {
		t.Errorf("the lease is %+v, want OwnerReferences[0].UID %q", lease, "uid")
	}
}

// TestAClockThatJumpsDoesNotStopTheLease sets the clock by a year in each direction. The control plane takes a node for
// alive only if the time of its lease increases.
func TestAClockThatJumpsDoesNotStopTheLease(t *testing.T) {
	const year = 365 * 24 * time.Hour
	r := newRig(t, &coordinationv1.Lease{}, nil)
	last := r.written().Spec.RenewTime
	r.after(year)
	forth := r.written().Spec.RenewTime
	if !forth.Time.Equal(r.clock.Now()) || !last.Before(forth) {
		t.Errorf("after a jump forward by a year the lease is renewed at %v, want %v", forth, r.clock.Now())
	}
	r.clock.SetTime(r.clock.Now().Add(-year))
	for _, uid := range []types.UID{"one", "two"} { // a Node that is registered is a renewal; the timers of this clock jump
		r.keeper.Registered(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: uid}})
		back := r.written().Spec.RenewTime
		if !forth.Before(back) || back.Sub(forth.Time) > time.Second {
			t.Errorf("after a jump back by a year the lease is renewed at %v, want a little more than %v", back, forth)
		}
		forth = back
	}
}

// TestAnAPIServerThatFailsIsAskedAgain soon, each time on another connection, and the error is reported.
func TestAnAPIServerThatFailsIsAskedAgain(t *testing.T) {
	for _, test := range []struct {
		name, want string
		err        error
	}{
		{"an error of its own", "an error on the server", apierrors.NewInternalError(errors.New("etcd is away"))},
		{"too many requests", "too many", apierrors.NewTooManyRequestsError("too many requests")},
		{"no answer", "connection", errors.New("connection lost")},
		{"no answer in time", "does not answer in time", context.DeadlineExceeded},
		{"not allowed", "must be system:node:NAME", apierrors.NewForbidden(leases, "node-1", errors.New("no"))},
	} {
		t.Run(test.name, func(t *testing.T) {
			var failing sync.Map
			failing.Store("fails", true)
			r := newRig(t, &coordinationv1.Lease{}, func(string) error {
				if _, fails := failing.Load("fails"); fails {
					return test.err
				}
				return nil
			})
			r.waitsFor(test.want)
			r.after(firstRetry)
			select {
			case <-r.broken:
			case <-time.After(60 * time.Second):
				t.Fatal("the connections are kept")
			}
			failing.Delete("fails")
			r.after(2 * firstRetry)
			r.written()
			r.waitsFor("")
			metricstest.Want(t, r.registry, 2, "quartet_nodestatus_lease_renewals_total", "result", "error")
		})
	}
}

// TestAnotherAgentIsReported when it has renewed the lease twice, until it stops.
func TestAnotherAgentIsReported(t *testing.T) {
	r := newRig(t, &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("node-1")}}, nil)
	r.written()
	r.waitsFor("")
	for range takenAfter {
		r.api.byAnother(r.clock.Now().Add(time.Second))
		r.after(interval)
		r.written()
	}
	r.waitsFor("two machines have one node name")
	metricstest.Want(t, r.registry, 1, "quartet_nodestatus_lease_contended")
	r.after(interval)
	r.written()
	r.waitsFor("")
}

// TestARenewalThatDoesNotEndMakesTheLoopStandStill has a request that ignores its deadline, as a deadlock does.
func TestARenewalThatDoesNotEndMakesTheLoopStandStill(t *testing.T) {
	asked, release := make(chan struct{}, 100), make(chan struct{})
	r := newRig(t, nil, func(string) error {
		asked <- struct{}{}
		<-release
		return nil
	})
	t.Cleanup(func() { close(release) })
	<-asked
	r.clock.Step(10*time.Second + watchdog.Limit)
	if err := r.keeper.Stands(); err != nil {
		t.Errorf("within its deadline it stands still: %v", err)
	}
	r.clock.Step(time.Second)
	if err := r.keeper.Stands(); err == nil {
		t.Error("beyond its deadline it does not stand still")
	}
}
