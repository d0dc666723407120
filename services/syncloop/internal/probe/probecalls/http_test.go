package probecalls_test

import (
	"bytes"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/klog/v2"

	"github.com/quartet-node/quartet/services/syncloop/internal/probe/probecalls"
	"github.com/quartet-node/quartet/test/logbuffer"
)

func TestTheCodeOfAnAnswerIsTheAnswer(t *testing.T) {
	for code, outcome := range map[int]probecalls.Outcome{
		200: probecalls.Success, 204: probecalls.Success, 299: probecalls.Success, 304: probecalls.Success,
		399: probecalls.Success,
		400: probecalls.Failure, 401: probecalls.Failure, 404: probecalls.Failure, 500: probecalls.Failure,
		599: probecalls.Failure,
	} {
		t.Run(strconv.Itoa(code), func(t *testing.T) {
			got := newRig(t).Probe(t.Context(), httpTarget(t, answering(t, code)))
			if got.Outcome != outcome || got.Warning != (code == 304 || code == 399) {
				t.Errorf("got %+v, want %v", got, outcome)
			}
		})
	}
}

// asked returns a server that records its last request.
func recording(t *testing.T, start func(*httptest.Server)) (server *httptest.Server, last func() *http.Request) {
	t.Helper()
	var mu sync.Mutex
	var request *http.Request
	server = httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		request = r
	}))
	start(server)
	t.Cleanup(server.Close)
	return server, func() *http.Request {
		mu.Lock()
		defer mu.Unlock()
		return request
	}
}

func TestWhatAProbeAsksFor(t *testing.T) {
	server, last := recording(t, (*httptest.Server).Start)
	address := server.Listener.Addr().String()
	for _, c := range []struct {
		name string
		get  v1.HTTPGetAction
		want string // address of the request, host, header
	}{
		{"nothing else", v1.HTTPGetAction{Path: "/"}, "/ " + address + " map[Accept:[*/*] Connection:[close] User-Agent:[kube-probe/1.37]]"},
		{"a path with a query", v1.HTTPGetAction{Path: "/health?full=1&x=%20"}, "/health?full=1&x=%20 " + address + " map[Accept:[*/*] Connection:[close] User-Agent:[kube-probe/1.37]]"},
		{"a path that is none", v1.HTTPGetAction{Path: "%zz"}, "/%25zz " + address + " map[Accept:[*/*] Connection:[close] User-Agent:[kube-probe/1.37]]"},
		{"headers", v1.HTTPGetAction{Path: "/", HTTPHeaders: []v1.HTTPHeader{
			{Name: "host", Value: "shop.example"}, {Name: "user-agent", Value: "me"}, {Name: "accept", Value: ""}, {Name: "x-a", Value: "1"}, {Name: "X-A", Value: "2"},
		}}, "/ shop.example map[Connection:[close] User-Agent:[me] X-A:[1 2]]"},
		{"no user agent", v1.HTTPGetAction{Path: "/", HTTPHeaders: []v1.HTTPHeader{{Name: "User-Agent"}}}, "/ " + address + " map[Accept:[*/*] Connection:[close]]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			to := httpTarget(t, server)
			c.get.Port = named()
			to.Probe.HTTPGet = &c.get
			want{outcome: probecalls.Success}.check(t, newRig(t).Probe(t.Context(), to))
			if r := last(); fmt.Sprint(r.RequestURI, " ", r.Host, " ", r.Header) != c.want {
				t.Errorf("it was asked for %s %s %v, want %s", r.RequestURI, r.Host, r.Header, c.want)
			}
		})
	}
}

func TestAProbeMayNameTheHostAndThePort(t *testing.T) {
	server := answering(t, http.StatusOK)
	_, port := split(t, server.Listener.Addr())
	to := httpTarget(t, server)
	to.PodIP = "198.51.100.1"
	to.Probe.HTTPGet.Host, to.Probe.HTTPGet.Port = "127.0.0.1", intstr.FromInt32(port)
	want{outcome: probecalls.Success}.check(t, newRig(t).Probe(t.Context(), to))
}

func TestAPodMayHaveAnIPv6Address(t *testing.T) {
	listener := listen(t, "[::1]:0")
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.Listener = listener
	server.Start()
	t.Cleanup(server.Close)
	want{outcome: probecalls.Success}.check(t, newRig(t).Probe(t.Context(), httpTarget(t, server)))
	want{outcome: probecalls.Success}.check(t, newRig(t).Probe(t.Context(),
		target(t, listener.Addr(), v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: named()}})))
}

func TestAnyCertificateWillDo(t *testing.T) {
	for name, start := range map[string]func(*httptest.Server){
		"HTTP/1.1": (*httptest.Server).StartTLS,
		"HTTP/2.0": func(s *httptest.Server) { s.EnableHTTP2 = true; s.StartTLS() },
	} {
		t.Run(name, func(t *testing.T) {
			server, last := recording(t, start)
			to := httpTarget(t, server)
			to.Probe.HTTPGet.Scheme = v1.URISchemeHTTPS
			want{outcome: probecalls.Success}.check(t, newRig(t).Probe(t.Context(), to))
			if got := last().Proto; got != name {
				t.Errorf("it was asked in %s, want %s", got, name)
			}
		})
	}
}

func TestPlainTextIsNotHTTPS(t *testing.T) {
	to := httpTarget(t, answering(t, http.StatusOK))
	to.Probe.HTTPGet.Scheme = v1.URISchemeHTTPS
	want{outcome: probecalls.Failure, output: "server gave HTTP response to HTTPS client"}.check(t, newRig(t).Probe(t.Context(), to))
}

func TestRedirectsAreFollowedOnTheSameHostOnly(t *testing.T) {
	other := answering(t, http.StatusInternalServerError)
	mux := http.NewServeMux()
	mux.Handle("/local", http.RedirectHandler("/well", http.StatusFound))
	mux.Handle("/ill", http.RedirectHandler("/gone", http.StatusFound))
	mux.Handle("/port", http.RedirectHandler(other.URL, http.StatusFound)) // another port of the same host
	mux.Handle("/away", http.RedirectHandler("http://198.51.100.1/", http.StatusFound))
	mux.Handle("/round", http.RedirectHandler("/round", http.StatusFound))
	mux.HandleFunc("/well", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("here")) })
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	for path, w := range map[string]want{
		"/local": {outcome: probecalls.Success, output: "here"},
		"/ill":   {outcome: probecalls.Failure, output: "statuscode: 404"},
		"/port":  {outcome: probecalls.Failure, output: "statuscode: 500"},
		"/away":  {outcome: probecalls.Success, warning: true, output: "Probe terminated redirects, Response body: <a href"},
		"/round": {outcome: probecalls.Failure, output: "stopped after 10 redirects"},
	} {
		t.Run(path, func(t *testing.T) {
			to := httpTarget(t, server)
			to.Probe.HTTPGet.Path = path
			w.check(t, newRig(t).Probe(t.Context(), to))
		})
	}
}

// TestABodyIsReadNoFurtherThanNeeded checks that 10 KiB of an endless body are read.
func TestABodyIsReadNoFurtherThanNeeded(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for line := bytes.Repeat([]byte("x"), 1000); ; {
			if _, err := w.Write(line); err != nil {
				return
			}
		}
	}))
	t.Cleanup(server.Close)
	want{outcome: probecalls.Success, output: strings.Repeat("x", 10<<10)}.check(t, newRig(t).Probe(t.Context(), httpTarget(t, server)))
}

func TestAHeaderIsNotReadWithoutEnd(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Much", strings.Repeat("x", 2<<20))
	}))
	t.Cleanup(server.Close)
	want{outcome: probecalls.Failure, output: "server response headers exceeded"}.check(t, newRig(t).Probe(t.Context(), httpTarget(t, server)))
}

func TestAnAnswerThatTakesTooLongIsNone(t *testing.T) {
	t.Parallel()
	for name, w := range map[string]want{
		"head": {outcome: probecalls.Failure, output: "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"},
		// The kubelet also treats this as an error of the call.
		"body": {outcome: probecalls.Unknown, output: "context deadline exceeded (Client.Timeout or context cancellation while reading body)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if name == "body" {
					_, _ = w.Write([]byte("well"))
					_ = http.NewResponseController(w).Flush()
				}
				<-r.Context().Done()
			}))
			t.Cleanup(server.Close)
			to := httpTarget(t, server)
			to.Probe.TimeoutSeconds = 3 // long enough for the header
			began := time.Now()
			w.check(t, newRig(t).Probe(t.Context(), to))
			soon(t, began)
		})
	}
}

// TestTheSameTroubleIsTheSameText checks that equal failures have equal texts, because otherwise each would be an event
// of its own.
func TestTheSameTroubleIsTheSameText(t *testing.T) {
	listener := listen(t, "127.0.0.1:0")
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			reset(conn)
		}
	}()
	r := newRig(t)
	_, port := split(t, listener.Addr())
	for range 3 {
		got := r.Probe(t.Context(), target(t, listener.Addr(), v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Port: named()}}))
		want{outcome: probecalls.Failure, output: fmt.Sprintf(`Get "http://127.0.0.1:%d": `, port)}.check(t, got)
		if strings.Contains(got.Output, "->") {
			t.Errorf("it says %q, want text without %q", got.Output, "->")
		}
	}
}

// TestTheNodesProxyIsNotThePods checks that the node's HTTP proxy is not used. It uses an address other than a loopback
// address, for which no proxy would be used anyway.
func TestTheNodesProxyIsNotThePods(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://"+unusedAddress(t).String())
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.Listener = listen(t, net.JoinHostPort(ownAddress(t), "0"))
	server.Start()
	t.Cleanup(server.Close)
	want{outcome: probecalls.Success}.check(t, newRig(t).Probe(t.Context(), httpTarget(t, server)))
}

// ownAddress returns an address of this machine that is not a loopback address.
func ownAddress(t *testing.T) string {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range addresses {
		if prefix, ok := address.(*net.IPNet); ok && prefix.IP.IsGlobalUnicast() && prefix.IP.To4() != nil {
			return prefix.IP.String()
		}
	}
	t.Skip("the machine has no address but that of the loopback interface")
	return ""
}

// TestSecretsStayOutOfTheLog also checks the log of the libraries at the highest verbosity.
func TestSecretsStayOutOfTheLog(t *testing.T) {
	var log logbuffer.Buffer
	logEverything(t, slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.Level(-10)}))
	e := newExecRig(t)
	e.cri.Fail("ExecSync", "", -1, status.Error(codes.DeadlineExceeded, "too long"))
	command := e.command(t, "login", "$(PASSWORD)")
	command.Container.Env = []v1.EnvVar{{Name: "PASSWORD", Value: "hunter2"}}
	e.Probe(t.Context(), command)
	to := httpTarget(t, answering(t, http.StatusUnauthorized))
	to.Probe.HTTPGet.HTTPHeaders = []v1.HTTPHeader{{Name: "Authorization", Value: "hunter2"}}
	e.Probe(t.Context(), to)
	if strings.Contains(log.String(), "hunter2") || strings.Contains(fmt.Sprint(e.events()), "hunter2") {
		t.Errorf("logged:\n%s\ntold: %q\nwant text without %q and without %q",
			log.String(), e.events(), "hunter2", "hunter2")
	}
}

// logEverything sends the libraries' log to a handler, at the highest verbosity, until the end of the test.
func logEverything(t *testing.T, to slog.Handler) {
	t.Helper()
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	before := flags.Lookup("v").Value.String()
	if err := flags.Set("v", "10"); err != nil {
		t.Fatal(err)
	}
	klog.SetSlogLogger(slog.New(to))
	t.Cleanup(func() {
		klog.ClearLogger()
		if err := flags.Set("v", before); err != nil {
			t.Error(err)
		}
	})
}

// TestManyProbesAtOnceLeaveNothingOpen checks that no connection stays open. TestMain checks that no goroutine is left.
func TestManyProbesAtOnceLeaveNothingOpen(t *testing.T) {
	r := newRig(t)
	well, hanging := answering(t, http.StatusOK), listen(t, "127.0.0.1:0")
	_, port := split(t, hanging.Addr())
	targets := []probecalls.Target{
		httpTarget(t, well), target(t, well.Listener.Addr(), v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: named()}}),
		target(t, hanging.Addr(), v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Port: named()}}),
		target(t, hanging.Addr(), v1.ProbeHandler{GRPC: &v1.GRPCAction{Port: port}}),
	}
	for _, to := range targets {
		to.Probe.TimeoutSeconds = 1
	}
	before := openFiles(t)
	var all sync.WaitGroup
	for range 50 {
		for _, to := range targets {
			all.Go(func() { r.Probe(t.Context(), to) })
		}
	}
	all.Wait()
	well.Close()
	// A connection that the listener has not accepted yet belongs to the kernel.
	for began := time.Now(); openFiles(t) > before; {
		if time.Since(began) > time.Minute {
			t.Fatalf("%d files are open, %d were before", openFiles(t), before)
		}
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}
