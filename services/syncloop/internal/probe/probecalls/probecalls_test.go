package probecalls_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/services/syncloop/internal/probe/probecalls"
)

// answering returns a server that answers with a status code.
func answering(t testing.TB, code int) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }))
	t.Cleanup(server.Close)
	return server
}

func httpTarget(t testing.TB, server *httptest.Server) probecalls.Target {
	t.Helper()
	return target(t, server.Listener.Addr(), v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Port: named()}})
}

func TestAnAnswerThatIsNoSuccessIsAnEventInTheKubeletsWords(t *testing.T) {
	ill, well := answering(t, http.StatusInternalServerError), answering(t, http.StatusOK)
	elsewhere := httptest.NewServer(http.RedirectHandler("http://example.test/", http.StatusFound))
	t.Cleanup(elsewhere.Close)
	nowhere := httpTarget(t, well)
	nowhere.Probe.HTTPGet.Port = intstr.FromString("gone")
	for _, c := range []struct {
		name   string
		kind   probecalls.Kind
		target probecalls.Target
		want   []string
	}{
		{"success", probecalls.Liveness, httpTarget(t, well), nil},
		{"failure", probecalls.Readiness, httpTarget(t, ill), []string{"web main Unhealthy: Readiness probe failed: HTTP probe failed with statuscode: 500"}},
		{"warning", probecalls.Startup, httpTarget(t, elsewhere), []string{
			`web main ProbeWarning: Startup probe warning: Probe terminated redirects, Response body: <a href="http://example.test/">Found</a>.` + "\n\n",
		}},
		{"error", probecalls.Liveness, nowhere, []string{`web main Unhealthy: Liveness probe errored and resulted in unknown state: httpGet: port "gone" not found`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			c.target.Kind = c.kind
			r.Probe(t.Context(), c.target)
			if got := r.events(); !slices.Equal(got, c.want) {
				t.Errorf("told %q, want %q", got, c.want)
			}
		})
	}
}

func TestAnErrorOfTheCallIsTriedThreeTimes(t *testing.T) {
	r := newRig(t)
	calls := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if calls++; calls < 3 {
			w.Header().Set("Content-Length", "100") // longer than the body, so the connection breaks off
		}
		_, _ = w.Write([]byte("well"))
	}))
	t.Cleanup(server.Close)
	want{outcome: probecalls.Success, output: "well"}.check(t, r.Probe(t.Context(), httpTarget(t, server)))
	if calls != 3 || len(r.events()) != 0 {
		t.Errorf("%d calls, told %q, want 3 and none", calls, r.events())
	}
	calls = -1000
	want{outcome: probecalls.Unknown, output: "unexpected EOF"}.check(t, r.Probe(t.Context(), httpTarget(t, server)))
	if calls != -997 || len(r.events()) != 1 {
		t.Errorf("%d calls, told %q, want calls %v and exactly one", calls+1000, r.events(), -997)
	}
}

func TestAFailureIsNotTriedAgain(t *testing.T) {
	calls := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls++
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	t.Cleanup(server.Close)
	want{outcome: probecalls.Failure, output: "statuscode: 503"}.check(t, newRig(t).Probe(t.Context(), httpTarget(t, server)))
	if calls != 1 {
		t.Errorf("%d calls, want 1", calls)
	}
}

// TestAProbeThatIsCutShortSaysNothing checks that a canceled call has no result and no event.
func TestAProbeThatIsCutShortSaysNothing(t *testing.T) {
	server := listen(t, "127.0.0.1:0") // accepts connections and sends nothing
	_, port := split(t, server.Addr())
	_, unanswered := split(t, full(t))
	for name, handler := range map[string]v1.ProbeHandler{
		"http": {HTTPGet: &v1.HTTPGetAction{Port: named()}},
		"tcp":  {TCPSocket: &v1.TCPSocketAction{Port: intstr.FromInt32(unanswered), Host: "127.0.0.1"}},
		"grpc": {GRPC: &v1.GRPCAction{Port: port}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			to := target(t, server.Addr(), handler)
			to.Probe.TimeoutSeconds = 60
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(50*time.Millisecond, cancel)
			began := time.Now()
			want{outcome: probecalls.Unknown, output: "cut short"}.check(t, r.Probe(ctx, to))
			soon(t, began)
			if got := r.events(); len(got) != 0 {
				t.Errorf("told %q, want none", got)
			}
		})
	}
}

func TestAPodWithoutAnAddressIsNotProbedOnTheNode(t *testing.T) {
	server := answering(t, http.StatusOK)
	_, port := split(t, server.Listener.Addr())
	for _, handler := range []v1.ProbeHandler{
		{HTTPGet: &v1.HTTPGetAction{Port: named()}}, {TCPSocket: &v1.TCPSocketAction{Port: named()}},
		{GRPC: &v1.GRPCAction{Port: port}},
	} {
		to := target(t, server.Listener.Addr(), handler)
		to.PodIP = ""
		want{outcome: probecalls.Unknown, output: "the pod has no address yet"}.check(t, newRig(t).Probe(t.Context(), to))
	}
}

func TestAProbeWithoutAnActionSaysSo(t *testing.T) {
	to := target(t, unusedAddress(t), v1.ProbeHandler{})
	want{outcome: probecalls.Unknown, output: "give exec, httpGet, tcpSocket or grpc"}.check(t, newRig(t).Probe(t.Context(), to))
	to.Probe = nil
	want{outcome: probecalls.Unknown, output: "no readiness probe"}.check(t, newRig(t).Probe(t.Context(), to))
}

func TestProbesAreCountedUntilTheirContainerIsGone(t *testing.T) {
	r := newRig(t)
	to := httpTarget(t, answering(t, http.StatusOK))
	r.Probe(t.Context(), to)
	ill, wrong := httpTarget(t, answering(t, http.StatusNotFound)), httpTarget(t, answering(t, http.StatusOK))
	wrong.Probe.HTTPGet.Port = intstr.FromInt32(0)
	r.Probe(t.Context(), ill)
	r.Probe(t.Context(), ill)
	r.Probe(t.Context(), wrong)
	labels := []string{"probe_type", "Readiness", "container", "main", "pod", "web", "namespace", "shop"}
	for result, n := range map[string]float64{"successful": 1, "failed": 2, "unknown": 1} {
		metricstest.Want(t, r.probes, n, "prober_probe_total", append(labels, "pod_uid", "u1", "result", result)...)
	}
	metricstest.Want(t, r.probes, 1, "prober_probe_duration_seconds", labels...)
	metricstest.Documented(t, r.probes, metricstest.Probes)
	live := to
	live.Kind = probecalls.Liveness
	r.Probe(t.Context(), live)

	r.Forget(to)
	metricstest.Want(t, r.probes, 1, "prober_probe_total") // the metric of the other kind is left
	r.Forget(live)
	if families, err := r.probes.Gather(); err != nil || len(families) != 0 {
		t.Errorf("left: %v, error %v", families, err)
	}
}
