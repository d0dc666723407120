package configmux

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/health/grpc_health_v1"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/test/eventually"
)

// podServer serves pods.
type podServer struct {
	*httptest.Server
	body atomic.Pointer[string]
}

// answer sets the later answers of the server.
func (s *podServer) answer(body string) { s.body.Store(&body) }

// serves answers every request with a manifest until the test ends, and makes configmux use this server.
func (p *process) serves(manifest string) *podServer {
	p.t.Helper()
	s := &podServer{}
	s.answer(manifest)
	s.Server = httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, request *http.Request) {
		if request.Header.Get("X-Token") != "hunter2" {
			out.WriteHeader(http.StatusForbidden)
			return
		}
		_, _ = out.Write([]byte(*s.body.Load()))
	}))
	p.t.Cleanup(s.Close)
	p.cfg.Kubelet.StaticPodURL = strings.Replace(s.URL, "http://", "http://node:secret@", 1) + "/pods"
	p.cfg.Kubelet.StaticPodURLHeader = map[string][]string{"X-Token": {"hunter2"}}
	p.cfg.Kubelet.HTTPCheckFrequency.Duration = 10 * time.Millisecond
	return s
}

// source returns the listed state of a source; nil when it is not listed.
func (p *process) source(name string) *configv1.Source {
	p.t.Helper()
	listed, err := p.client.ListSources(p.t.Context(), &configv1.ListSourcesRequest{})
	must(p.t, err)
	for _, s := range listed.GetSources() {
		if s.GetName() == name {
			return s
		}
	}
	return nil
}

// pods returns the desired pods as "source name".
func (p *process) pods() []string {
	p.t.Helper()
	listed, err := p.client.ListPods(p.t.Context(), &configv1.ListPodsRequest{})
	must(p.t, err)
	var out []string
	for _, u := range listed.GetPods() {
		pod := decode(p.t, u)
		if got := pod.Annotations["kubernetes.io/config.source"]; got != u.GetSource() {
			p.t.Errorf("the pod %s of %s has the source %q in its annotations", pod.Name, u.GetSource(), got)
		}
		out = append(out, u.GetSource()+" "+pod.Name)
	}
	return out
}

func TestAPodOfAServerArrivesBesideOneOfAFileAndStaysWithoutTheServer(t *testing.T) {
	p := newProcess(t)
	p.write("a.yaml", manifest("a", "", "i:1"))
	server := p.serves(manifest("b", "", "i:1"))
	p.run()
	f := follow(p)
	f.until("ADD a-node i:1", "ADD b-node i:1")
	if got, want := p.pods(), []string{"file a-node", "http b-node"}; !slices.Equal(got, want) {
		t.Errorf("pods %q, want %q", got, want)
	}
	s := p.source("http")
	if s.GetTarget() != server.URL+"/pods" || !s.GetReady() || s.GetPods() != 1 || s.GetMode() != "polling" ||
		len(s.GetErrors()) > 0 {
		t.Errorf("source %v, want Target %v, Ready true, Pods 1, Mode %q and no Errors", s, server.URL+"/pods", "polling")
	}

	server.Close()
	eventually.That(p.t, "the server is missed again and again", func() bool {
		errs := p.source("http").GetErrors()
		return len(errs) == 1 && errs[0].GetCount() >= 5
	})
	e := p.source("http").GetErrors()[0]
	if e.GetPath() != server.URL+"/pods" || !strings.Contains(e.GetMessage(), "its last known pods are kept") ||
		!e.GetLastSeenAt().AsTime().After(e.GetFirstSeenAt().AsTime()) {
		t.Errorf("error %v", e)
	}
	p.write("c.yaml", manifest("c", "", "i:1"))
	f.until("ADD a-node i:1", "ADD b-node i:1", "ADD c-node i:1")
	if s := p.source("http"); !s.GetReady() || s.GetPods() != 1 {
		t.Errorf("source %v, want it ready with its pod", s)
	}
}

// After a restart without the server, subscribers must not conclude that its pods are no longer desired.
func TestASourceWithoutItsServerIsNotReady(t *testing.T) {
	p := newProcess(t)
	p.write("a.yaml", manifest("a", "", "i:1"))
	p.serves("").Close()
	p.run()
	eventually.That(p.t, "the file is read and the server missed", func() bool {
		if _, err := p.client.ListSources(t.Context(), &configv1.ListSourcesRequest{}); err != nil {
			return false // it is not serving yet
		}
		return p.source("file").GetReady() && len(p.source("http").GetErrors()) == 1
	})
	if p.source("http").GetReady() {
		t.Error("the source is ready, and its server never answered")
	}
	answer, err := grpc_health_v1.NewHealthClient(p.conn).
		Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "source/http"})
	must(t, err)
	if answer.GetStatus() != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("source/http is %s, want %s", answer.GetStatus(), grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	}
}

// An empty body with the status 200 is an empty source and an error, which remains until there is a body.
func TestAnEmptyBodyTakesThePodsOfTheServerAwayAndIsAnError(t *testing.T) {
	p := newProcess(t)
	p.write("a.yaml", manifest("a", "", "i:1"))
	server := p.serves(manifest("b", "", "i:1"))
	p.run()
	f := follow(p)
	f.until("ADD a-node i:1", "ADD b-node i:1")
	server.answer("")
	f.until("ADD a-node i:1", "ADD b-node i:1", "REMOVE b-node i:1")
	eventually.That(p.t, "the empty body is seen again and again", func() bool {
		errs := p.source("http").GetErrors()
		return len(errs) == 1 && errs[0].GetCount() >= 5
	})
	s := p.source("http")
	e := s.GetErrors()[0]
	if !s.GetReady() || s.GetPods() != 0 || e.GetPath() != server.URL+"/pods" ||
		!strings.Contains(e.GetMessage(), "the answer is empty") ||
		!e.GetLastSeenAt().AsTime().After(e.GetFirstSeenAt().AsTime()) {
		t.Errorf("source %v, want it ready, without pods and with the error", s)
	}
	server.answer(manifest("b", "", "i:1"))
	f.until("ADD a-node i:1", "ADD b-node i:1", "REMOVE b-node i:1", "ADD b-node i:1")
	if errs := p.source("http").GetErrors(); len(errs) > 0 {
		t.Errorf("errors %v, want none", errs)
	}
}

// A failure of each request is logged three times, and then when it changes or ends.
func TestAFailureOfTheServerIsLoggedThreeTimes(t *testing.T) {
	p := newProcess(t)
	server := p.serves(manifest("b", "", "i:1"))
	log := &lines{}
	p.tel.Logger = slog.New(slog.NewTextHandler(log, nil))
	p.run()
	eventually.That(p.t, "the server is read", func() bool {
		_, err := p.client.ListSources(t.Context(), &configv1.ListSourcesRequest{})
		return err == nil && p.source("http").GetReady()
	})
	fails := func(body, message string) {
		t.Helper()
		server.answer(body)
		eventually.That(p.t, "it fails again and again", func() bool {
			errs := p.source("http").GetErrors()
			return len(errs) == 1 && strings.Contains(errs[0].GetMessage(), message) && errs[0].GetCount() >= 6
		})
		if n := log.count("level=WARN", message); n != 3 {
			t.Errorf("%q is logged %d times, want 3", message, n)
		}
	}
	fails("a: [", "cannot parse it")
	fails("", "the answer is empty")
	if n := log.count("msg=mended", "cannot parse it"); n != 1 {
		t.Errorf("the end of the first failure is logged %d times, want once", n)
	}
	server.answer(manifest("b", "", "i:1"))
	eventually.That(p.t, "the server is mended", func() bool { return len(p.source("http").GetErrors()) == 0 })
	p.stop()
	if n := log.count("msg=mended", "the answer is empty"); n != 1 {
		t.Errorf("the end of the failure is logged %d times, want once", n)
	}
}

// lines is a log that can be read while it is being written.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

// count returns the number of lines that contain all texts.
func (l *lines) count(texts ...string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for line := range strings.Lines(l.text.String()) {
		if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) }) {
			n++
		}
	}
	return n
}

// The sources' pods are independent: a pod of a file and one of a server with the same name are two pods, and the node
// runs the second when the first has ended. Two pods with one UID cannot be distinguished: the first keeps it.
func TestAFileAndAServerWithPodsOfOneName(t *testing.T) {
	p := newProcess(t)
	p.write("a.yaml", manifest("a", "", "i:1"))
	p.write("b.yaml", manifest("b", "same", "i:1"))
	server := p.serves("apiVersion: v1\nkind: List\n")
	p.run()
	f := follow(p)
	f.until("ADD a-node i:1", "ADD b-node i:1")
	server.answer(manifest("a", "", "i:1") + "---\n" + manifest("c", "same", "i:2"))
	f.until("ADD a-node i:1", "ADD a-node i:1", "ADD b-node i:1")
	if got, want := p.pods(), []string{"file a-node", "http a-node", "file b-node"}; !slices.Equal(got, want) {
		t.Errorf("pods %q, want %q", got, want)
	}
	errs := p.source("http").GetErrors()
	if len(errs) != 1 || errs[0].GetPod() != "default/c-node" || errs[0].GetField() != "metadata.uid" ||
		!strings.Contains(errs[0].GetMessage(), `the source "file"`) {
		t.Errorf("errors %v, want that the UID is taken", errs)
	}
}
