package probecalls_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/kubernetes/pkg/probe"
	execprobe "k8s.io/kubernetes/pkg/probe/exec"
	grpcprobe "k8s.io/kubernetes/pkg/probe/grpc"
	httpprobe "k8s.io/kubernetes/pkg/probe/http"
	tcpprobe "k8s.io/kubernetes/pkg/probe/tcp"
	utilexec "k8s.io/utils/exec"

	"github.com/quartet-node/quartet/services/syncloop/internal/probe/probecalls"
)

// kubelets makes a call with the kubelet's probers.
func (e *execRig) kubelets(ctx context.Context, to probecalls.Target) (probe.Result, string, error) {
	timeout := time.Duration(to.Probe.TimeoutSeconds) * time.Second
	switch p := to.Probe; {
	case p.Exec != nil:
		return execprobe.New().Probe(&command{run: func() ([]byte, error) {
			runtime, err := e.config.Runtime()
			if err != nil {
				return nil, err
			}
			stdout, stderr, err := runtime.ExecSync(ctx, to.ContainerID, p.Exec.Command, timeout)
			return append(stdout, stderr...), err
		}})
	case p.HTTPGet != nil:
		request, err := httpprobe.NewRequestForHTTPGetAction(p.HTTPGet, to.Container, to.PodIP, "probe")
		if err != nil {
			return probe.Unknown, "", err
		}
		return httpprobe.New(false).Probe(request, timeout)
	case p.TCPSocket != nil:
		port, err := probe.ResolveContainerPort(p.TCPSocket.Port, to.Container)
		if err != nil {
			return probe.Unknown, "", err
		}
		return tcpprobe.New().Probe(to.PodIP, port, timeout)
	case p.GRPC != nil:
		return grpcprobe.New().Probe(to.PodIP, *p.GRPC.Service, int(p.GRPC.Port), timeout, grpcprobe.ProbeOptions{})
	}
	return probe.Unknown, "", errors.New("no action")
}

// command is a command for the kubelet's prober, which calls only these methods.
type command struct {
	utilexec.Cmd
	run func() ([]byte, error)
	out io.Writer
}

// SetStdout implements utilexec.Cmd.
func (c *command) SetStdout(out io.Writer) { c.out = out }

// SetStderr implements utilexec.Cmd.
func (c *command) SetStderr(out io.Writer) { c.out = out }

// Start implements utilexec.Cmd.
func (c *command) Start() error {
	output, err := c.run()
	_, _ = c.out.Write(output) // too long an output is cut, and the kubelet only logs that error
	return err
}

// Wait implements utilexec.Cmd.
func (c *command) Wait() error { return nil }

// differs has the intended differences from the kubelet's answers, with the text that only ours contain.
var differs = map[string]string{
	"grpc: no such service": "does not know the health of the service", // the kubelet returns the error of gRPC
}

// TestAnswersAreTheKubelets compares results and texts with the kubelet's, because users know them and search for them.
func TestAnswersAreTheKubelets(t *testing.T) {
	t.Parallel()
	e := newExecRig(t)
	e.cri.OnExec(execByCode)
	for name, to := range e.targets(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			result, output, err := e.kubelets(t.Context(), to)
			w := want{outcome: probecalls.Success, warning: result == probe.Warning, output: output}
			switch {
			case err != nil:
				w.outcome, w.output = probecalls.Unknown, err.Error()
			case result == probe.Failure:
				w.outcome = probecalls.Failure
			}
			got := e.Probe(t.Context(), to)
			if ours, meant := differs[name]; meant {
				if strings.Contains(w.output, ours) || !strings.Contains(got.Output, ours) {
					t.Errorf("the kubelet says %q, we %q, want text without %q and with %q", w.output, got.Output, ours, ours)
				}
				w.output = got.Output
			}
			w.check(t, got)
		})
	}
}

// execByCode executes a command that is one word.
func execByCode(_ string, words []string) (stdout, stderr []byte, code int32) {
	switch words[0] {
	case "ill":
		return []byte("some "), []byte("trouble"), 2
	case "much":
		return []byte(strings.Repeat("x", 20<<10)), nil, 1
	default:
		return []byte("fine"), nil, 0
	}
}

// late are the targets that answer only at their timeout.
var late = []string{"http: slow", "tcp: unanswered", "grpc: http", "grpc: refused"}

// targets returns probes of every kind that succeed and fail.
func (e *execRig) targets(t *testing.T) map[string]probecalls.Target {
	t.Helper()
	mux := http.NewServeMux()
	for _, code := range []int{200, 204, 304, 399, 400, 404, 500, 503} {
		mux.HandleFunc(fmt.Sprintf("/%d", code), func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			_, _ = w.Write([]byte("body")) // some status codes allow no body
		})
	}
	mux.Handle("/local", http.RedirectHandler("/200", http.StatusMovedPermanently))
	mux.Handle("/away", http.RedirectHandler("http://198.51.100.1/", http.StatusFound))
	mux.Handle("/round", http.RedirectHandler("/round", http.StatusFound))
	mux.HandleFunc("/slow", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	mux.HandleFunc("/short", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = w.Write([]byte("less")) // the connection closes
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	services := health.NewServer()
	services.SetServingStatus("ill", healthv1.HealthCheckResponse_NOT_SERVING)
	healthy := serveGRPC(t, func(s *grpc.Server) { healthv1.RegisterHealthServer(s, services) })
	other := serveGRPC(t, func(*grpc.Server) {})

	all := map[string]probecalls.Target{}
	add := func(name string, address net.Addr, handler v1.ProbeHandler) {
		to := target(t, address, handler)
		to.ContainerID = e.id
		if slices.Contains(late, name) {
			to.Probe.TimeoutSeconds = 1
		}
		all[name] = to
	}
	for _, path := range []string{"200", "204", "304", "399", "400", "404", "500", "503", "local", "away", "round", "slow", "short", "nothing"} {
		add("http: "+path, server.Listener.Addr(), v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: "/" + path, Port: named()}})
	}
	add("http: plain for https", server.Listener.Addr(), v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Port: named(), Scheme: v1.URISchemeHTTPS}})
	refused := unusedAddress(t)
	add("http: refused", refused, v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Port: named()}})
	add("http: no such port", refused, v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Port: intstr.FromString("gone")}})
	add("tcp: taken", server.Listener.Addr(), v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: named()}})
	add("tcp: refused", refused, v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: named()}})
	add("tcp: unanswered", full(t), v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: named()}})
	add("tcp: no such port", refused, v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: intstr.FromInt32(0)}})
	for name, service := range map[string]string{"well": "", "ill": "ill", "no such service": "gone"} {
		_, port := split(t, healthy)
		add("grpc: "+name, healthy, v1.ProbeHandler{GRPC: &v1.GRPCAction{Port: port, Service: &service}})
	}
	for name, address := range map[string]net.Addr{"no health service": other, "http": server.Listener.Addr(), "refused": refused} {
		_, port := split(t, address)
		add("grpc: "+name, address, v1.ProbeHandler{GRPC: &v1.GRPCAction{Port: port, Service: new(string)}})
	}
	for _, word := range []string{"well", "ill", "much"} {
		add("exec: "+word, refused, v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{word}}})
	}
	gone := target(t, refused, v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"well"}}})
	gone.ContainerID = "gone"
	all["exec: no such container"] = gone
	return all
}
