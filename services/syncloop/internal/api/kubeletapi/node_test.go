package kubeletapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/loop"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/stats"
)

type somePods []*v1.Pod

func (p somePods) Pods() ([]*v1.Pod, error) { return p, nil }

// rig is the authenticated API with a guard that accepts every request and records it.
type rig struct {
	t       *testing.T
	cfg     NodeConfig
	granted []string
	log     strings.Builder
}

func newRig(t *testing.T) *rig {
	t.Helper()
	registry := prometheus.NewRegistry()
	r := &rig{t: t}
	r.cfg = NodeConfig{
		Config: Config{
			Pods: somePods{{
				ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "u1"}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "main"}}},
			}},
			Start:  started(),
			Health: func() loop.Health { return loop.Health{Healthy: true} }, Gatherer: registry,
			Probes: prometheus.NewRegistry(), Metrics: NewMetrics(registry),
			Report: func(context.Context) (*stats.Report, error) {
				return &stats.Report{Summary: &statsv1alpha1.Summary{}}, nil
			},
			Logger: slog.New(slog.NewTextHandler(&r.log, nil)),
		},
		Guard: func(next http.Handler, subresources ...string) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				r.granted = subresources
				next.ServeHTTP(w, req)
			})
		},
		Runtime: func() (internalapi.RuntimeService, error) { return nil, errors.New("the runtime is away") },
		Kubelet: &kubeletconfigv1beta1.KubeletConfiguration{
			EnableDebuggingHandlers: ptr.To(true), EnableSystemLogHandler: ptr.To(true), EnableProfilingHandler: ptr.To(true),
			StreamingConnectionIdleTimeout: metav1.Duration{Duration: time.Hour},
			StaticPodURLHeader:             map[string][]string{"Authorization": {"hunter2"}},
		},
		LogDir: t.TempDir(), Clock: clocktesting.NewFakeClock(time.Now()),
		UserName: func(*http.Request) string { return "me" },
		Tracer:   telemetry.Off(),
	}
	return r
}

func (r *rig) ask(method, path string) *httptest.ResponseRecorder {
	r.t.Helper()
	api := Node(r.cfg)
	defer api.Close()
	answer := httptest.NewRecorder()
	r.granted = nil
	api.ServeHTTP(answer, httptest.NewRequestWithContext(r.t.Context(), method, path, nil))
	return answer
}

// withoutContainers is a runtime without containers.
type withoutContainers struct{ internalapi.RuntimeService }

func (withoutContainers) ContainerStatus(
	_ context.Context, id string, _ bool,
) (*runtimeapi.ContainerStatusResponse, error) {
	return nil, status.Errorf(codes.NotFound, "container %q is not found", id)
}

// TestTheLogOfAContainerThatWasRemoved checks the answer for a removed container, for example of an evicted pod.
// kubectl prints its reason, but not that of a "not found".
func TestTheLogOfAContainerThatWasRemoved(t *testing.T) {
	r := newRig(t)
	r.cfg.Pods = somePods{{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "u1"}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "main"}}},
		Status: v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{
			{Name: "main", State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ContainerID: "containerd://c1"}}},
		}},
	}}
	r.cfg.Runtime = func() (internalapi.RuntimeService, error) { return withoutContainers{}, nil }
	const want = `unable to retrieve container logs for container "main" in pod "web": it has been removed from the runtime`
	if answer := r.ask("GET", "/containerLogs/default/web/main"); answer.Code != http.StatusBadRequest || strings.TrimSpace(answer.Body.String()) != want {
		t.Errorf("answer.Code = %d %s, want %d and %s", answer.Code, answer.Body, http.StatusBadRequest, want)
	}
}

// TestWhatEachPathIsAllowedBy checks that every path is guarded, and that none needs less than on a kubelet.
func TestWhatEachPathIsAllowedBy(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		method, path string
		granted      string
		code         int
	}{
		{"GET", "/pods", "[pods proxy]", 200},
		{"GET", "/pods/", "[pods proxy]", 200},
		{"GET", "/runningpods/", "[pods proxy]", 500},
		{"GET", "/healthz", "[healthz proxy]", 200},
		{"GET", "/healthz/ping", "[healthz proxy]", 200},
		{"GET", "/metrics", "[metrics]", 200},
		{"GET", "/metrics/resource", "[metrics]", 200},
		{"GET", "/metrics/cadvisor", "[metrics]", 200},
		{"GET", "/stats/summary", "[stats]", 200},
		{"GET", "/configz", "[configz proxy]", 200},
		{"GET", "/flagz", "[configz]", 200},
		{"GET", "/statusz", "[statusz]", 200},
		{"GET", "/logs/", "[log]", 200},
		{"POST", "/checkpoint/default/web/main", "[checkpoint]", 500},
		{"GET", "/containerLogs/default/web/main", "[proxy]", 400},
		{"GET", "/containerLogs/default/other/main", "[proxy]", 404},
		{"GET", "/containerLogs/default/web/other", "[proxy]", 404},
		{"POST", "/exec/default/web/main?command=ls&output=1", "[proxy]", 400},
		{"GET", "/exec/default/web/u1/main?command=ls&output=1", "[proxy]", 400},
		{"POST", "/attach/default/web/main", "[proxy]", 400},
		{"POST", "/portForward/default/web", "[proxy]", 400},
		{"POST", "/run/default/web/main?cmd=ls", "[proxy]", 500},
		{"POST", "/run/default/web/main", "[proxy]", 400},
		{"GET", "/debug/pprof/cmdline", "[proxy]", 200},
		{"GET", "/debug/pprof/heap", "[proxy]", 200},
		{"PUT", "/debug/flags/v", "[proxy]", 404},
		{"GET", "/nothing/of/the/kind", "[proxy]", 404},
		{"DELETE", "/pods", "[proxy]", 405},
		{"GET", "/pods%2f..%2fexec/default/web/main", "[proxy]", 404},
		{"GET", "/run/default/web/main", "[proxy]", 405},
	} {
		answer := r.ask(c.method, c.path)
		if got := fmt.Sprint(r.granted); got != c.granted || answer.Code != c.code {
			t.Errorf("%s %s: got %d %q by %s, want %d by %s", c.method, c.path, answer.Code, answer.Body, got, c.code, c.granted)
		}
	}
	if text := r.log.String(); strings.Contains(text, "cmd=ls") {
		t.Errorf("the log has what was to be run: %s", text)
	}
}

func TestConfigzHasNoSecret(t *testing.T) {
	r := newRig(t)
	body := r.ask("GET", "/configz").Body.String()
	if strings.Contains(body, "hunter2") || !strings.Contains(body, "masked") || !strings.Contains(body, `{"kubeletconfig":{`) {
		t.Errorf("body = %s, want text without %q, with %q and with %q", body, "hunter2", "masked", `{"kubeletconfig":{`)
	}
	if r.cfg.Kubelet.StaticPodURLHeader["Authorization"][0] != "hunter2" {
		t.Error("the configuration itself has been changed")
	}
}

func TestWhatTheConfigurationTurnsOff(t *testing.T) {
	r := newRig(t)
	*r.cfg.Kubelet.EnableSystemLogHandler, *r.cfg.Kubelet.EnableProfilingHandler = false, false
	for path, field := range map[string]string{"/logs/": "enableSystemLogHandler", "/debug/pprof/": "enableProfilingHandler"} {
		if answer := r.ask("GET", path); answer.Code != 405 || !strings.Contains(answer.Body.String(), field) {
			t.Errorf("%s: answer.Code = %d %s, want 405 and with %q", path, answer.Code, answer.Body, field)
		}
	}
	*r.cfg.Kubelet.EnableDebuggingHandlers = false
	for path, want := range map[string]int{"/exec/default/web/main": 405, "/containerLogs/default/web/main": 405, "/logs/": 405, "/configz": 404, "/pods": 200} {
		if answer := r.ask("GET", path); answer.Code != want {
			t.Errorf("%s: got %d, want %d", path, answer.Code, want)
		}
	}
}

// TestLogsOfTheMachineAreThoseBelowTheirFolder checks that /logs/ serves only files below its directory.
func TestLogsOfTheMachineAreThoseBelowTheirFolder(t *testing.T) {
	r := newRig(t)
	secret := filepath.Join(t.TempDir(), "secret")
	in := func(name string) string { return filepath.Join(r.cfg.LogDir, name) }
	err := errors.Join(
		os.WriteFile(secret, []byte("hunter2"), 0o600), os.WriteFile(in("syslog"), []byte("a line\n"), 0o600), os.Mkdir(in("pods"), 0o700),
		os.Symlink(secret, in("absolute")), os.Symlink("../"+filepath.Base(filepath.Dir(secret))+"/secret", in("relative")), os.Symlink("syslog", in("inside")),
		syscall.Mkfifo(in("pipe"), 0o600),
	)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"/logs/syslog": "a line\n", "/logs/inside": "a line\n", "/logs/": "pods/"} {
		if answer := r.ask("GET", path); answer.Code != 200 || !strings.Contains(answer.Body.String(), want) {
			t.Errorf("%s: answer.Code = %d %s, want 200 and with %q", path, answer.Code, answer.Body, want)
		}
	}
	for _, path := range []string{"/logs/absolute", "/logs/relative", "/logs/pipe", "/logs/..%2fsecret", "/logs/%2e%2e/secret", "/logs/none", "/logs/../secret"} {
		if answer := r.ask("GET", path); answer.Code == 200 || strings.Contains(answer.Body.String(), "hunter2") {
			t.Errorf("%s: answer.Code = %d %s, want other than 200 and without %q", path, answer.Code, answer.Body, "hunter2")
		}
	}
}

// fakeRuntime has one container and serves streams at a URL.
type fakeRuntime struct {
	internalapi.RuntimeService
	url string
	run *runtimeapi.ExecRequest
}

func (f *fakeRuntime) ListContainers(context.Context, *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	return []*runtimeapi.Container{{Id: "old", CreatedAt: 1}, {Id: "new", CreatedAt: 2}}, nil
}

func (f *fakeRuntime) Exec(_ context.Context, request *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	f.run = request
	return &runtimeapi.ExecResponse{Url: f.url}, nil
}

// TestAStreamGoesToTheRuntimesServer checks that bytes go both ways, that credentials are not forwarded, and that the
// log contains no secrets.
func TestAStreamGoesToTheRuntimesServer(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.String() != "/exec/token" || req.Header.Get("Authorization") != "" {
			t.Errorf("asked for %s with %v", req.URL, req.Header)
		}
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close() //nolint:errcheck // the client looks at what it gets
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
		_ = rw.Flush()
		line, _ := rw.ReadString('\n')
		_, _ = rw.WriteString("back: " + line)
		_ = rw.Flush()
	}))
	defer backend.Close()
	r := newRig(t)
	runtime := &fakeRuntime{url: backend.URL + "/exec/token"}
	r.cfg.Runtime = func() (internalapi.RuntimeService, error) { return runtime, nil }
	api := Node(r.cfg)
	defer api.Close()
	front := httptest.NewServer(api)
	defer front.Close()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", front.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // it was read to its end
	_, err = fmt.Fprintf(conn, "POST /exec/default/web/main?command=/bin/login&command=hunter2&input=1&output=1&error=1&tty=1 HTTP/1.1\r\nHost: node\r\n"+
		"Authorization: Bearer hunter2\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 0\r\n\r\nhello\n")
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	if err := conn.SetDeadline(time.Now().Add(60 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 4096)
	for !strings.Contains(got.String(), "back: hello\n") {
		n, err := conn.Read(buffer)
		got.Write(buffer[:n])
		if err != nil {
			t.Fatalf("got %q, %v", got.String(), err)
		}
	}
	if want := []string{"/bin/login", "hunter2"}; runtime.run.GetContainerId() != "new" || !slices.Equal(runtime.run.GetCmd(), want) || runtime.run.GetStderr() || !runtime.run.GetTty() {
		t.Errorf("the runtime was asked %v", runtime.run)
	}
	if text := r.log.String(); !strings.Contains(text, "exec by the HTTP API") || !strings.Contains(text, "program=login") || !strings.Contains(text, "user=me") || strings.Contains(text, "hunter2") {
		t.Errorf("the log has %s, want text with %q, with %q, with %q and without %q",
			text, "exec by the HTTP API", "program=login", "user=me", "hunter2")
	}
}

func TestWhichContainersLogIsMeant(t *testing.T) {
	ended := func(id string) v1.ContainerState {
		return v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ContainerID: id}}
	}
	waiting := func(reason string) v1.ContainerState {
		return v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason}}
	}
	runs := v1.ContainerState{Running: &v1.ContainerStateRunning{}}
	for _, c := range []struct {
		status   v1.ContainerStatus
		previous bool
		want     string
	}{
		{v1.ContainerStatus{ContainerID: "containerd://a", State: runs}, false, "a"},
		{v1.ContainerStatus{ContainerID: "containerd://b", State: runs, LastTerminationState: ended("containerd://a")}, true, "a"},
		{v1.ContainerStatus{ContainerID: "containerd://b", State: runs}, true, `previous terminated container "main" in pod "web" not found`},
		{v1.ContainerStatus{State: ended("containerd://a")}, false, "a"},
		{v1.ContainerStatus{State: waiting("CrashLoopBackOff"), LastTerminationState: ended("containerd://a")}, false, "a"},
		{v1.ContainerStatus{State: waiting("ImagePullBackOff")}, false, "trying and failing to pull image"},
		{v1.ContainerStatus{State: waiting("ContainerCreating")}, false, "is waiting to start: ContainerCreating"},
		{v1.ContainerStatus{State: ended("")}, false, "is terminated"},
		{v1.ContainerStatus{}, false, "no logs yet"},
	} {
		c.status.Name = "main"
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Status: v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{c.status}}}
		id, err := chooseContainer(pod, "main", c.previous)
		if id != c.want && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: got %q, %v, want %s", c.status, id, err, c.want)
		}
	}
}

// FuzzQueries checks that each query is either parsed or rejected.
func FuzzQueries(f *testing.F) {
	for _, seed := range []string{"follow=true&tailLines=3&timestamps", "sinceSeconds=9223372036854775807", "sinceTime=2026-01-01T00:00:00Z&limitBytes=1", "tail=all&previous=0", "port=80,443&port=1", "stream=Stdout"} {
		f.Add(seed)
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, text string) {
		query, err := url.ParseQuery(text)
		if err != nil {
			return
		}
		var p *problem
		o, err := logOptions(query, now)
		if err != nil && !errors.As(err, &p) {
			t.Errorf("%q: logOptions() error = %v, want a %T", text, err, p)
		}
		if err == nil &&
			(o.read.Limit < 0 || o.read.Tail < -1 || (query.Get("sinceSeconds") != "" && o.read.Since.After(now))) {
			t.Errorf("%q: %+v", text, o)
		}
		if _, err := streamsOf(query); err != nil && !errors.As(err, &p) {
			t.Errorf("%q: streamsOf() error = %v, want a %T", text, err, p)
		}
		if ports, err := portsOf(query); err == nil &&
			(len(ports) > maxPorts || slices.ContainsFunc(ports, func(port int32) bool { return port < 1 || port > 65535 })) {
			t.Errorf("%q: %v", text, ports)
		}
	})
}
