package probecalls_test

import (
	"context"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/quartet-node/quartet/services/syncloop/internal/probe/probecalls"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a Caller whose events and metrics the test reads.
type rig struct {
	*probecalls.Caller
	config probecalls.Config
	probes *prometheus.Registry

	mu       sync.Mutex
	recorded []string
}

// Warning implements probecalls.Events.
func (r *rig) Warning(_ context.Context, pod *v1.Pod, container, reason, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recorded = append(r.recorded, pod.Name+" "+container+" "+reason+": "+message)
}

func newRig(t testing.TB) *rig {
	t.Helper()
	r := &rig{probes: prometheus.NewRegistry()}
	r.config = probecalls.Config{Version: "v1.37.2", Events: r, Metrics: probecalls.NewMetrics(r.probes)}
	r.Caller = probecalls.New(r.config)
	return r
}

// events returns the events so far.
func (r *rig) events() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.recorded
}

// target returns a probe of a container named main that listens on the port of an address, which is the pod's.
func target(t testing.TB, address net.Addr, handler v1.ProbeHandler) probecalls.Target {
	t.Helper()
	host, port := split(t, address)
	container := &v1.Container{Name: "main", Ports: []v1.ContainerPort{{Name: "other", ContainerPort: 1}, {Name: "http", ContainerPort: port}}}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u1"}, Spec: v1.PodSpec{Containers: []v1.Container{*container}}}
	return probecalls.Target{
		Pod: pod, Container: container, Kind: probecalls.Readiness, PodIP: host,
		Probe: &v1.Probe{ProbeHandler: handler, TimeoutSeconds: 60},
	}
}

func split(t testing.TB, address net.Addr) (host string, port int32) {
	t.Helper()
	host, text, err := net.SplitHostPort(address.String())
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return host, int32(n)
}

// named returns the named port of the container that target creates.
func named() intstr.IntOrString { return intstr.FromString("http") }

// listen listens on an address until the end of the test.
func listen(t testing.TB, address string) net.Listener {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() }) // a server may have closed it
	return listener
}

// nobody returns an address that refuses connections.
func unusedAddress(t testing.TB) net.Addr {
	t.Helper()
	listener := listen(t, "127.0.0.1:0")
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	return listener.Addr()
}

// want is the expected outcome of a call, and the text of its output or error.
type want struct {
	outcome probecalls.Outcome
	output  string
	warning bool
}

func (w want) check(t testing.TB, got probecalls.Answer) {
	t.Helper()
	output := got.Output
	if got.Err != nil {
		output = got.Err.Error()
	}
	if got.Outcome != w.outcome || got.Warning != w.warning || !strings.Contains(output, w.output) ||
		(w.output == "") != (output == "") {
		t.Errorf("got %v, warning %t, that says %.200q; want %v, warning %t, %q", got.Outcome, got.Warning, output, w.outcome, w.warning, w.output)
	}
	if (got.Err != nil) != (got.Outcome == probecalls.Unknown) {
		t.Errorf("got %v with the error %v", got.Outcome, got.Err)
	}
}

// soon fails the test if a call took so long that its timeout did not end it.
func soon(t testing.TB, began time.Time) {
	t.Helper()
	if took := time.Since(began); took > 40*time.Second {
		t.Errorf("it took %v", took)
	}
}
