package kubeletapi_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/httpserve"
	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/sockets"
	"github.com/quartet-node/quartet/services/syncloop/internal/api/kubeletapi"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/loop"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/stats"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// After a SPDY connection is closed, this function waits one second for a receiver.
		goleak.IgnoreTopFunction("github.com/moby/spdystream.(*Connection).shutdown"),
		// A WebSocket client of this library notices only at its next ping that the connection is closed.
		goleak.IgnoreTopFunction("k8s.io/client-go/tools/remotecommand.(*heartbeat).start"))
}

type pods struct {
	list []*v1.Pod
	err  error
}

func (p pods) Pods() ([]*v1.Pod, error) { return p.list, p.err }

// used returns the usage of a pod with one container.
func used(context.Context) (*stats.Report, error) {
	at := metav1.NewTime(time.Unix(1_700_000_000, 0))
	cpu := &statsv1alpha1.CPUStats{Time: at, UsageCoreNanoSeconds: ptr.To[uint64](1_500_000_000)}
	return &stats.Report{Summary: &statsv1alpha1.Summary{
		Node: statsv1alpha1.NodeStats{NodeName: "node-1", CPU: cpu, Fs: &statsv1alpha1.FsStats{}},
		Pods: []statsv1alpha1.PodStats{{
			PodRef: statsv1alpha1.PodReference{Name: "web", Namespace: "default"}, Network: &statsv1alpha1.NetworkStats{},
			Containers: []statsv1alpha1.ContainerStats{{
				Name: "main", StartTime: at, CPU: cpu, Memory: &statsv1alpha1.MemoryStats{Time: at, WorkingSetBytes: ptr.To[uint64](7)},
				Swap: &statsv1alpha1.SwapStats{Time: at, SwapUsageBytes: ptr.To[uint64](3), SwapAvailableBytes: ptr.To[uint64](4)},
			}},
		}},
	}}, nil
}

func TestWhatIsUsed(t *testing.T) {
	url := serve(t, pods{}, loop.Health{Healthy: true})
	for path, want := range map[string]string{
		"/stats/summary": `"fs":{`,
		"/stats/summary?only_cpu_and_memory=true":      `"workingSetBytes":7`,
		"/metrics/resource":                            `container_cpu_usage_seconds_total{container="main",namespace="default",pod="web"} 1.5 1700000000000`,
		"/metrics/resource?the-same-again=to-be-sure":  `resource_scrape_error 0`,
		"/metrics/resource?the-same-again=for-memory":  `container_memory_working_set_bytes{container="main",namespace="default",pod="web"} 7 1700000000000`,
		"/metrics/resource?the-same-again=for-swap":    `container_swap_limit_bytes{container="main",namespace="default",pod="web"} 7 1700000000000`,
		"/metrics/resource?the-same-again=for-a-start": `container_start_time_seconds{container="main",namespace="default",pod="web"} 1.7e+09`,
	} {
		if code, body, _ := get(t, url+path); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: got %d %s, want %s", path, code, body, want)
		}
	}
	if _, body, _ := get(t, url+"/stats/summary?only_cpu_and_memory=true"); strings.Contains(body, `"fs"`) || strings.Contains(body, `"network"`) {
		t.Errorf("get() = %s, want text without %q and without %q", body, `"fs"`, `"network"`)
	}
}

var quiet = slog.New(slog.DiscardHandler)

// readOnly returns the socket of the read-only API.
func readOnly(address string) sockets.Socket {
	return sockets.Socket{Name: nodeconfig.SocketReadOnly, Address: address}
}

// serve serves the read-only API on a real socket and returns its base URL.
func serve(t *testing.T, p kubeletapi.Pods, health loop.Health) string {
	t.Helper()
	listener, err := kubeletapi.ListenReadOnly(t.Context(), nil, readOnly("127.0.0.1:0"), quiet)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		registry, start := prometheus.NewRegistry(), kubeletapi.NewStart()
		_ = start.Run(ctx, func(context.Context) {})
		registry.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "other_total", Help: "Counted elsewhere."}))
		done <- httpserve.Until(ctx, listener, kubeletapi.ReadOnly("node", kubeletapi.Config{
			Pods: p, Start: start, Health: func() loop.Health { return health }, Report: used, Gatherer: registry,
			Probes: prometheus.NewRegistry(), Metrics: kubeletapi.NewMetrics(registry), Logger: quiet,
		}), quiet)
	}()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return "http://" + listener.Addr().String()
}

func get(t *testing.T, url string) (int, string, http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body), resp.Header
}

func TestPodsIsAPodListWithFullStatus(t *testing.T) {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "u1"},
		Status:     v1.PodStatus{Phase: v1.PodRunning, PodIP: "10.88.0.2", Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}},
	}
	url := serve(t, pods{list: []*v1.Pod{pod}}, loop.Health{})
	for _, path := range []string{"/pods", "/pods/"} {
		code, body, header := get(t, url+path)
		if code != http.StatusOK || header.Get("Content-Type") != "application/json" {
			t.Fatalf("%s: get() = %d %s, want %d and %q",
				path, code, header.Get("Content-Type"), http.StatusOK, "application/json")
		}
		var list v1.PodList
		if err := json.Unmarshal([]byte(body), &list); err != nil {
			t.Fatal(err)
		}
		want := v1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: []v1.Pod{*pod}}
		if diff := cmp.Diff(want, list); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

func TestAnEmptyNodeHasAnEmptyListAndNotNull(t *testing.T) {
	_, body, _ := get(t, serve(t, pods{}, loop.Health{})+"/pods")
	if !strings.Contains(body, `"items":[]`) {
		t.Errorf("get() = %s, want text with %q", body, `"items":[]`)
	}
}

func TestPodsAreNotListedBeforeTheyAreKnown(t *testing.T) {
	code, body, _ := get(t, serve(t, pods{err: &podstore.NotReadyError{Reason: "pleg is away"}}, loop.Health{})+"/pods")
	if code != http.StatusServiceUnavailable || !strings.Contains(body, "pleg is away") {
		t.Errorf("get() = %d %q, want %d and with %q", code, body, http.StatusServiceUnavailable, "pleg is away")
	}
}

func TestHealthz(t *testing.T) {
	good := serve(t, pods{}, loop.Health{Healthy: true})
	bad := serve(t, pods{}, loop.Health{Reasons: []string{"the sync loop has not turned for 3m0s"}})
	for _, path := range []string{"/healthz", "/healthz/syncloop"} {
		if code, body, _ := get(t, good+path); code != http.StatusOK || body != "ok" {
			t.Errorf("%s: get() = %d %q, want %d and %q", path, code, body, http.StatusOK, "ok")
		}
		if code, body, _ := get(t, bad+path); code != http.StatusInternalServerError ||
			!strings.Contains(body, "has not turned") {
			t.Errorf("%s: get() = %d %q, want %d and with %q",
				path, code, body, http.StatusInternalServerError, "has not turned")
		}
	}
}

func TestHealthChecksAreCounted(t *testing.T) {
	url := serve(t, pods{}, loop.Health{Reasons: []string{"the sync loop has not turned for 3m0s"}})
	get(t, url+"/healthz/syncloop") // not counted
	get(t, url+"/healthz")
	served := metricstest.ScrapeAt(strings.TrimPrefix(url, "http://"), "/metrics/slis")
	metricstest.Documented(t, served, metricstest.HealthChecks)
	metricstest.Want(t, served, 1, "kubernetes_healthcheck", "name", "ping", "type", "healthz")
	metricstest.Want(t, served, 0, "kubernetes_healthcheck", "name", "syncloop", "type", "healthz")
	metricstest.Want(t, served, 1, "kubernetes_healthchecks_total", "name", "syncloop", "type", "healthz", "status", "error")
}

func TestMetricsAreServedAndCountTheRequests(t *testing.T) {
	url := serve(t, pods{}, loop.Health{Healthy: true})
	for _, path := range []string{"/pods", "/pods/", "/nothing/of/the/kind", "/made-up"} {
		get(t, url+path)
	}
	if code, _, _ := get(t, url+"/metrics/probes"); code != http.StatusOK {
		t.Errorf("the metrics of probes: %d, want %d", code, http.StatusOK)
	}
	code, body, header := get(t, url+"/metrics")
	if code != http.StatusOK || !strings.HasPrefix(header.Get("Content-Type"), "text/plain") {
		t.Fatalf("get() = %d %s, want %d and beginning with %q",
			code, header.Get("Content-Type"), http.StatusOK, "text/plain")
	}
	for _, want := range []string{
		`kubelet_http_requests_total{long_running="false",method="GET",path="pods",server_type="readonly"} 2`,
		`kubelet_http_requests_total{long_running="false",method="GET",path="other",server_type="readonly"} 2`,
		`kubelet_http_requests_total{long_running="false",method="GET",path="metrics/probes",server_type="readonly"} 1`,
		`kubelet_http_inflight_requests{long_running="false",method="GET",path="metrics",server_type="readonly"} 1`,
		`kubelet_http_requests_duration_seconds_count{long_running="false",method="GET",path="pods",server_type="readonly"} 2`,
		`other_total 0`,
	} {
		if !strings.Contains(body, want+"\n") {
			t.Errorf("%s is not in\n%s", want, body)
		}
	}
}

func TestItIsReadOnlyAndHasNothingElse(t *testing.T) {
	url := serve(t, pods{}, loop.Health{Healthy: true})
	if code, _, _ := get(t, url+"/run/default/web/main"); code != http.StatusNotFound {
		t.Errorf("get() = %d, want %d", code, http.StatusNotFound)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/pods", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("resp.StatusCode = %d, want %d", resp.StatusCode, http.StatusMethodNotAllowed)
	}
}

// TestTheReadOnlyAPIAnswersForThisNodeOnly checks that requests for another host are rejected, so that a page of
// another site cannot read the API in a browser of this machine.
func TestTheReadOnlyAPIAnswersForThisNodeOnly(t *testing.T) {
	url := serve(t, pods{}, loop.Health{Healthy: true})
	port := url[strings.LastIndex(url, ":"):]
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	hosts := map[string]int{
		"127.0.0.1" + port: 200, "127.0.0.1": 200, "127.1.2.3" + port: 200, "localhost" + port: 200, "LocalHost": 200, "localhost.:80": 200, "[::1]" + port: 200, "[::1]": 200,
		"node" + port: 200, "Node": 200, "0.0.0.0" + port: 200, "[::]" + port: 200,
		"evil.example" + port: 403, "evil.example": 403, "localhost.evil.example": 403, "127.0.0.1.evil.example": 403, "192.0.2.1" + port: 403, "[2001:db8::1]" + port: 403, "node-2": 403,
	}
	for _, address := range all {
		// Interfaces of pods, which have link-local addresses only, may go at any time.
		if network, ok := address.(*net.IPNet); ok && !network.IP.IsLinkLocalUnicast() {
			hosts[net.JoinHostPort(network.IP.String(), "80")] = 200
		}
	}
	for host, want := range hosts {
		for _, path := range []string{"/pods", "/metrics", "/nothing"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+path, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			req.Host = host
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if err := resp.Body.Close(); err != nil {
				t.Fatal(err)
			}
			if refused := resp.StatusCode == http.StatusForbidden; refused != (want == http.StatusForbidden) {
				t.Errorf("%s of the host %q: %d, want refused %v", path, host, resp.StatusCode, want == http.StatusForbidden)
			}
		}
	}
}

func TestListenRefusesWhatOthersCanReach(t *testing.T) {
	for _, address := range []string{"0.0.0.0", "192.0.2.1", "::", "localhost", ""} {
		l, err := kubeletapi.ListenReadOnly(t.Context(), nil, readOnly(net.JoinHostPort(address, "10255")), quiet)
		if err == nil {
			_ = l.Close() // the test has failed already
			t.Errorf("listens on %q", address)
			continue
		}
		for _, word := range []string{"readOnlyPort", "address", "loopback"} {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%q: the error does not say %s: %v", address, word, err)
			}
		}
	}
}

func TestListenNamesAPortThatIsTaken(t *testing.T) {
	first, err := kubeletapi.ListenReadOnly(t.Context(), nil, readOnly("127.0.0.1:0"), quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := first.Close(); err != nil {
			t.Error(err)
		}
	}()
	port := first.Addr().(*net.TCPAddr).Port //nolint:forcetypeassert // it is a TCP listener
	_, err = kubeletapi.ListenReadOnly(t.Context(), nil, readOnly(first.Addr().String()), quiet)
	if err == nil || !strings.Contains(err.Error(), strconv.Itoa(port)) || !strings.Contains(err.Error(), "readOnlyPort") {
		t.Errorf("ListenReadOnly() error = %v, want an error with %q and with %q", err, strconv.Itoa(port), "readOnlyPort")
	}
}
