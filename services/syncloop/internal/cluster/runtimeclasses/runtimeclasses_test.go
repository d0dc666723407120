package runtimeclasses_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/runtimeclasses"
	"github.com/quartet-node/quartet/test/eventually"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds waits that usually take milliseconds.
const patience = time.Minute

// apiServer is an API server with nothing but runtime classes.
type apiServer struct {
	mu      sync.Mutex
	classes map[string]nodev1.RuntimeClass
	version int
	// If away is true, requests fail. If hangs is not closed, requests wait for it.
	away  bool
	hangs chan struct{}
	// lists counts the list requests, and watches has the open watches.
	lists   int
	watches map[chan metav1.WatchEvent]bool
}

// ServeHTTP implements http.Handler.
func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	hangs := s.hangs
	s.mu.Unlock()
	if hangs != nil {
		<-hangs
	}
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	s.mu.Lock()
	away := s.away
	s.mu.Unlock()
	switch {
	case r.URL.Path != "/apis/node.k8s.io/v1/runtimeclasses":
		http.NotFound(w, r)
	case away:
		w.WriteHeader(http.StatusServiceUnavailable)
		_ = json.NewEncoder(w).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
			Status:   metav1.StatusFailure, Code: http.StatusServiceUnavailable,
			Reason: metav1.StatusReasonServiceUnavailable, Message: "etcd is on fire",
		})
	case r.URL.Query().Get("watch") != "":
		s.watch(w, r)
	default:
		s.list(w)
	}
}

func (s *apiServer) list(w http.ResponseWriter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists++
	list := nodev1.RuntimeClassList{TypeMeta: metav1.TypeMeta{APIVersion: "node.k8s.io/v1", Kind: "RuntimeClassList"}}
	list.ResourceVersion = strconv.Itoa(s.version)
	for _, class := range s.classes {
		list.Items = append(list.Items, class)
	}
	_ = json.NewEncoder(w).Encode(list)
}

func (s *apiServer) watch(w http.ResponseWriter, r *http.Request) {
	events := make(chan metav1.WatchEvent, 10)
	s.mu.Lock()
	if from, err := strconv.Atoi(r.URL.Query().Get("resourceVersion")); err != nil || from != s.version {
		s.mu.Unlock()
		http.Error(w, "gone", http.StatusGone)
		return
	}
	s.watches[events] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watches, events)
	}()
	w.(http.Flusher).Flush() //nolint:forcetypeassert // that of a server is one
	for {
		select {
		case <-r.Context().Done():
			return
		case event := <-events:
			_ = json.NewEncoder(w).Encode(event)
			w.(http.Flusher).Flush() //nolint:forcetypeassert // that of a server is one
		}
	}
}

// set creates a class, or deletes it if handler is empty.
func (s *apiServer) set(name, handler string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	class := nodev1.RuntimeClass{
		TypeMeta: metav1.TypeMeta{APIVersion: "node.k8s.io/v1", Kind: "RuntimeClass"}, Handler: handler,
	}
	class.Name, class.ResourceVersion = name, strconv.Itoa(s.version)
	kind := watch.Added
	if s.classes[name] = class; handler == "" {
		kind = watch.Deleted
		delete(s.classes, name)
	}
	for events := range s.watches {
		events <- metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Object: &class}}
	}
}

func (s *apiServer) do(what func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	what()
}

// asked returns the number of list requests and of open watches.
func (s *apiServer) requests() (lists, watches int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lists, len(s.watches)
}

// rig has the runtime classes of a node.
type rig struct {
	*runtimeclasses.Classes

	t        *testing.T
	server   *apiServer
	notified chan types.UID
}

func newRig(t *testing.T, c clock.Clock) *rig {
	t.Helper()
	r := &rig{
		t: t,
		server: &apiServer{
			classes: map[string]nodev1.RuntimeClass{}, version: 1, watches: map[chan metav1.WatchEvent]bool{},
		},
		notified: make(chan types.UID, 100),
	}
	served := httptest.NewServer(r.server)
	t.Cleanup(served.Close)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\nusers: [{name: a, user: {}}]\n" +
		"clusters: [{name: a, cluster: {server: '" + served.URL + "'}}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	client, err := apiclient.New(apiclient.Config{
		Kubeconfig: file, Service: nodeconfig.SyncLoop, QPS: -1, ContentType: runtime.ContentTypeJSON,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	r.Classes = runtimeclasses.New(runtimeclasses.Config{
		Client: client.Node, Changed: func(uid types.UID) { r.notified <- uid }, Clock: c,
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = r.Run(ctx) })
	t.Cleanup(running.Wait)
	t.Cleanup(cancel)
	return r
}

func podOf(uid types.UID, class string) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: string(uid), UID: uid}}
	if class != "" {
		pod.Spec.RuntimeClassName = &class
	}
	return pod
}

// comesTo waits until a pod's handler is this one. It asks again each time the pod is notified.
func (r *rig) comesTo(pod *v1.Pod, want string) {
	r.t.Helper()
	r.Use(pod)
	deadline := time.After(patience)
	for {
		got, err := r.Handler(r.t.Context(), pod)
		if err == nil && got == want {
			return
		}
		select {
		case uid := <-r.notified:
			if uid != pod.UID {
				r.t.Errorf("%s is told, which waits for nothing", uid)
			}
		case <-deadline:
			r.t.Fatalf("the handler is %q, error %v; want %q", got, err, want)
		}
	}
}

// missing waits until a pod's class does not exist.
func (r *rig) missing(pod *v1.Pod) {
	r.t.Helper()
	eventually.That(r.t, "there is no class", func() bool {
		_, err := r.Handler(r.t.Context(), pod)
		return apierrors.IsNotFound(err) && strings.Contains(err.Error(), `runtimeclass.node.k8s.io "`+runtimeclasses.ClassOf(pod)+`" not found`)
	})
}

func TestAPodIsNotifiedWhenItsClassIsCreated(t *testing.T) {
	r := newRig(t, clock.RealClock{})
	r.server.set("plain", "runc")
	plain, late := podOf("u-1", "plain"), podOf("u-2", "late")
	r.comesTo(plain, "runc")
	r.Use(late)
	r.missing(late)
	r.server.set("other", "kata")
	r.server.set("late", "gvisor")
	r.comesTo(late, "gvisor")
	r.server.set("late", "")
	r.missing(late)
	r.server.set("late", "kata")
	r.comesTo(late, "kata")
	if got, err := r.Handler(t.Context(), podOf("u-3", "")); got != "" || err != nil {
		t.Errorf("a pod without a class has the handler %q, error %v", got, err)
	}
}

// TestNoRequestIsMadeWhileNoPodNamesAClass checks that the API server gets no request before the first and after the
// last such pod.
func TestNoRequestIsMadeWhileNoPodNamesAClass(t *testing.T) {
	r := newRig(t, clock.RealClock{})
	r.server.set("plain", "runc")
	r.Use(podOf("u-1", ""))
	before := 0
	for range 3 {
		if lists, watches := r.server.requests(); lists != before || watches != 0 {
			t.Errorf("%d lists, where there were %d, and %d watches", lists, before, watches)
		}
		r.comesTo(podOf("u-2", "plain"), "runc")
		r.comesTo(podOf("u-3", "plain"), "runc")
		eventually.That(r.t, "it is watched", func() bool { _, watches := r.server.requests(); return watches == 1 })
		r.Forget("u-2")
		r.Use(podOf("u-3", "")) // a static pod whose manifest has changed
		eventually.That(r.t, "nobody watches any more", func() bool { _, watches := r.server.requests(); return watches == 0 })
		before, _ = r.server.requests()
	}
}

// TestObjectsAreUnknownWhileTheAPIServerIsUnavailable also checks that known classes stay, and that waiting pods are
// notified when the API server is back.
func TestObjectsAreUnknownWhileTheAPIServerIsUnavailable(t *testing.T) {
	r := newRig(t, clock.RealClock{})
	r.server.set("plain", "runc")
	r.server.do(func() { r.server.away = true })
	first, lost := podOf("u-1", "plain"), podOf("u-2", "lost")
	r.Use(first)
	eventually.That(r.t, "why is said", func() bool {
		_, err := r.Handler(t.Context(), first)
		return errors.As(err, new(*runtimeclasses.UnknownError)) && strings.Contains(err.Error(), `runtimeclass "plain" is not known yet: the API server: `) &&
			strings.Contains(err.Error(), "etcd is on fire")
	})
	r.server.do(func() { r.server.away = false })
	r.comesTo(first, "runc")
	r.Use(lost)
	r.missing(lost)
	r.server.do(func() { r.server.away = true })
	r.comesTo(first, "runc")
}

// TestAStartWaitsAMomentForAnAPIServerThatHangs checks that this wait is bounded.
func TestAStartWaitsAMomentForAnAPIServerThatHangs(t *testing.T) {
	fake := clocktesting.NewFakeClock(time.Now())
	r := newRig(t, fake)
	hangs := make(chan struct{})
	r.server.do(func() { r.server.hangs = hangs })
	r.server.set("plain", "runc")
	pod := podOf("u-1", "plain")
	r.Use(pod)
	answer := make(chan error, 1)
	go func() {
		_, err := r.Handler(context.Background(), pod)
		answer <- err
	}()
	eventually.That(r.t, "it waits", fake.HasWaiters)
	fake.Step(time.Second)
	if err := <-answer; !errors.As(err, new(*runtimeclasses.UnknownError)) ||
		!strings.Contains(err.Error(), "the API server has not answered yet") {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Handler(ctx, pod); !errors.Is(err, context.Canceled) {
		t.Errorf("a start that is cut short got %v, want %v", err, context.Canceled)
	}
	close(hangs)
	if uid := <-r.notified; uid != "u-1" {
		t.Errorf("told %s, want %q", uid, "u-1")
	}
	r.comesTo(pod, "runc")
}

func TestWithoutAnAPIServerTheNameIsTheHandler(t *testing.T) {
	for class, want := range map[string]string{"": "", "kata": "kata"} {
		if got, err := (runtimeclasses.ByName{}).Handler(t.Context(), podOf("u-1", class)); got != want || err != nil {
			t.Errorf("%q has the handler %q, error %v, want %q", class, got, err, want)
		}
	}
}
