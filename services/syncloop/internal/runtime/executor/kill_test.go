package executor_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
	"github.com/quartet-node/quartet/test/eventually"
)

func TestKillPodEndsEverythingAtOnce(t *testing.T) {
	n := newNode(t)
	pod := newPod("a", "b", "c")
	n.sync(pod)
	gate := n.cri.Hang("StopContainer", "")
	ended := make(chan error, 1)
	go func() { ended <- n.manager.KillPod(n.ctx, pod, n.observe(pod), 30) }()
	eventually.That(t, "all are being stopped", func() bool { return gate.Waiting() == 3 })
	gate.Open()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if got := n.describe(pod); strings.Contains(got, "running") || strings.Contains(got, "ready") {
		t.Errorf("the runtime has %s, want text without %q and without %q", got, "running", "ready")
	}
	n.cri.ResetCalls()
	if err := n.manager.KillPod(n.ctx, pod, n.observe(pod), 30); err != nil || strings.Contains(n.methods(), "Stop") {
		t.Errorf("killing a dead pod: error %v, calls %s, want text without %q", err, n.methods(), "Stop")
	}
}

func TestKillPodAgainWithAShorterGrace(t *testing.T) {
	n := newNode(t)
	n.cri.IgnoreTerm("a")
	pod := newPod("a")
	pod.Spec.Containers[0].Lifecycle = &v1.Lifecycle{
		PreStop: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"bye"}}},
	}
	n.sync(pod)
	ctx, cancel := context.WithCancel(n.ctx)
	first := make(chan error, 1)
	go func() { first <- n.manager.KillPod(ctx, pod, n.observe(pod), 3600) }()
	eventually.That(t, "it is being stopped", func() bool { return n.cri.Count("StopContainer", "") == 1 })
	cancel()
	if err := <-first; err == nil {
		t.Error("the first call has no error")
	}
	n.want(pod, "sandbox-0:ready a-0:running")
	if err := n.manager.KillPod(n.ctx, pod, n.observe(pod), 1); err != nil {
		t.Fatal(err)
	}
	n.want(pod, "sandbox-0:dead a-0:exited(137)")
	if got := n.cri.Count("ExecSync", ""); got != 1 {
		t.Errorf("the preStop hook was run %d times, want 1", got)
	}
}

func TestPreStopComesBeforeTheEndAndCountsAgainstTheGrace(t *testing.T) {
	n := newNode(t)
	pod := newPod("a")
	pod.Spec.Containers[0].Lifecycle = &v1.Lifecycle{
		PreStop: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"bye"}}},
	}
	n.sync(pod)
	gate := n.cri.Hang("ExecSync", "") // it never ends on its own
	defer gate.Open()
	start := time.Now()
	if err := n.manager.KillPod(n.ctx, pod, n.observe(pod), 1); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < time.Second || took > 30*time.Second {
		t.Errorf("took %s, want the grace period of 1 s and the end", took)
	}
	n.want(pod, "sandbox-0:dead a-0:exited(143)")
}

// TestAnInterruptedPreStopHookIsRunAgain checks this for a shorter grace period and for a restart of syncloop.
func TestAnInterruptedPreStopHookIsRunAgain(t *testing.T) {
	n, events := newRecorded(t)
	pod := newPod("a")
	pod.Spec.Containers[0].Lifecycle = &v1.Lifecycle{
		PreStop: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"bye"}}},
	}
	n.sync(pod)
	gate := n.cri.Hang("ExecSync", "")
	ctx, cancel := context.WithCancel(n.ctx)
	first := make(chan error, 1)
	go func() { first <- n.manager.KillPod(ctx, pod, n.observe(pod), 3600) }()
	eventually.That(t, "the hook runs", func() bool { return gate.Waiting() == 1 })
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("the interrupted call returned %v, want %v", err, context.Canceled)
	}
	n.want(pod, "sandbox-0:ready a-0:running")
	gate.Open()
	if err := n.manager.KillPod(n.ctx, pod, n.observe(pod), 5); err != nil {
		t.Fatal(err)
	}
	n.want(pod, "sandbox-0:dead a-0:exited(143)")
	if got := n.cri.Count("ExecSync", ""); got != 2 {
		t.Errorf("the hook ran %d times, want one more run after the interruption", got)
	}
	if got := events.take(); strings.Contains(got, "Failed") {
		t.Errorf("an event says that something failed: %s", got)
	}
}

// TestAPreStopHookThatTheRuntimeDidNotAnswerIsRunAgain checks this because the hook may not have run.
func TestAPreStopHookThatTheRuntimeDidNotAnswerIsRunAgain(t *testing.T) {
	n, events := newRecorded(t)
	pod := newPod("a")
	pod.Spec.Containers[0].Lifecycle = &v1.Lifecycle{
		PreStop: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"bye"}}},
	}
	n.sync(pod)
	away := status.Error(codes.Unavailable, "the runtime is restarted")
	n.cri.Fail("ExecSync", "", 1, away)
	n.cri.Fail("StopContainer", "", 1, away)
	if err := n.manager.KillPod(n.ctx, pod, n.observe(pod), 5); err == nil {
		t.Error("the pod was stopped although the runtime is unavailable")
	}
	if err := n.manager.KillPod(n.ctx, pod, n.observe(pod), 5); err != nil {
		t.Fatal(err)
	}
	if got := n.cri.Count("ExecSync", ""); got != 2 {
		t.Errorf("the hook ran %d times, want one more run", got)
	}
	if got := events.take(); strings.Contains(got, "Failed") {
		t.Errorf("an event says that something failed: %s", got)
	}
}

// TestAnInterruptedPostStartHookHasNotFailed checks that the container continues to run, and that its preStop hook runs
// when it is killed.
func TestAnInterruptedPostStartHookHasNotFailed(t *testing.T) {
	n, events := newRecorded(t)
	pod := newPod("a")
	exec := func(command string) *v1.LifecycleHandler {
		return &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{command}}}
	}
	pod.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PostStart: exec("hi"), PreStop: exec("bye")}
	var run []string
	n.cri.OnExec(func(_ string, command []string) ([]byte, []byte, int32) {
		run = append(run, command...)
		return nil, nil, 0
	})
	gate := n.cri.Hang("ExecSync", "")
	ctx, cancel := context.WithCancel(n.ctx)
	ended := make(chan error, 1)
	var result executor.Result
	go func() {
		var err error
		result, err = n.manager.SyncPod(ctx, pod, nil)
		ended <- err
	}()
	eventually.That(t, "the hook runs", func() bool { return gate.Waiting() == 1 })
	cancel() // the pod is deleted, or syncloop is stopped
	if err := <-ended; !errors.Is(err, context.Canceled) || len(result.Reasons) > 0 {
		t.Errorf("the interrupted sync returned %v and the reasons %v, want %v and none",
			err, result.Reasons, context.Canceled)
	}
	n.want(pod, "sandbox-0:ready a-0:running")
	if got := events.take(); strings.Contains(got, "Failed") || strings.Contains(got, "Killing") {
		t.Errorf("the events are %s, want text without %q and without %q", got, "Failed", "Killing")
	}
	gate.Open()
	if err := n.manager.KillPod(n.ctx, pod, n.observe(pod), 5); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(run, []string{"bye"}) {
		t.Errorf("the hooks that were run to their end are %v, want preStop", run)
	}
	n.want(pod, "sandbox-0:dead a-0:exited(143)")
}

// TestSidecarsWhosePreStopHangsAreKilledTogether checks that they are killed after the grace period and the two seconds
// that each container has. Their hooks run until then.
func TestSidecarsWhosePreStopHangsAreKilledTogether(t *testing.T) {
	n := newNode(t)
	always := v1.ContainerRestartPolicyAlways
	pod := newPod("init-1", "init-2", "a")
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		c.RestartPolicy = &always
		c.Lifecycle = &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"bye"}}}}
	}
	for range 3 {
		n.sync(pod)
	}
	n.want(pod, "sandbox-0:ready init-1-0:running init-2-0:running a-0:running")
	n.cri.IgnoreTerm("init-1")
	n.cri.IgnoreTerm("init-2")
	hooks, stops := n.cri.Hang("ExecSync", ""), n.cri.Hang("StopContainer", "")
	defer hooks.Open()
	begun := time.Now()
	ended := make(chan error, 1)
	go func() { ended <- n.manager.KillPod(n.ctx, pod, n.observe(pod), 1) }()
	eventually.That(t, "all are stopped at once while their hooks run", func() bool { return stops.Waiting() == 3 && hooks.Waiting() == 2 })
	if took := time.Since(begun); took < time.Second {
		t.Errorf("the sidecars are stopped after %v, before the grace period is over", took)
	}
	stops.Open()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took < 3*time.Second {
		t.Errorf("the pod has ended after %v, want the grace period and 2 s", took)
	}
	n.want(pod, "sandbox-0:dead init-1-0:exited(137) init-2-0:exited(137) a-0:exited(143)")
}

func TestHTTPAndSleepHooks(t *testing.T) {
	n := newNode(t)
	var calls atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/bye" && r.Header.Get("User-Agent") == "kube-lifecycle" {
			calls.Add(1)
		}
	}))
	defer server.Close()
	address, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	pod := newPod("a", "b")
	pod.Spec.Containers[0].Lifecycle = &v1.Lifecycle{
		PostStart: &v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: 0}},
		PreStop: &v1.LifecycleHandler{HTTPGet: &v1.HTTPGetAction{
			Host: address.Hostname(), Port: intstr.FromString(address.Port()), Path: "bye",
		}},
	}
	n.sync(pod)
	if err := n.manager.KillPod(n.ctx, pod, n.observe(pod), 5); err != nil {
		t.Fatal(err)
	}
	if calls.Load() != 1 {
		t.Errorf("the hook's address was asked %d times, want 1", calls.Load())
	}
}

func TestAnHTTPHookSucceedsWithAnyAnswerAlsoInPlainText(t *testing.T) {
	n, events := newRecorded(t)
	var calls []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls = append(calls, fmt.Sprint(r.URL, " ", r.Host, " ", r.Header["Accept"], r.Header["User-Agent"], r.Header["Authorization"]))
		w.WriteHeader(http.StatusInternalServerError)
	}))
	defer server.Close()
	address, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	pod := newPod("a")
	pod.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PostStart: &v1.LifecycleHandler{HTTPGet: &v1.HTTPGetAction{
		Scheme: v1.URISchemeHTTPS, Host: address.Hostname(), Port: intstr.FromString(address.Port()), Path: "/hello?x=1",
		HTTPHeaders: []v1.HTTPHeader{{Name: "Host", Value: "web.test"}, {Name: "Authorization", Value: "secret"}, {Name: "User-Agent", Value: "me"}},
	}}}
	n.sync(pod)
	n.want(pod, "sandbox-0:ready a-0:running")
	if want := "/hello?x=1 web.test [*/*] [me] []"; len(calls) != 1 || calls[0] != want {
		t.Errorf("the server was asked for %v, want %s", calls, want)
	}
	if got := events.take(); !strings.Contains(got, "Warning LifecycleHTTPFallback [] request to HTTPS lifecycle hook "+address.Host) {
		t.Errorf("events %q, want text with %q",
			got, "Warning LifecycleHTTPFallback [] request to HTTPS lifecycle hook "+address.Host)
	}
}

// A redirect is followed only on the same host; in either case the hook has succeeded.
func TestAnHTTPHookFollowsARedirectOnItsOwnHostOnly(t *testing.T) {
	var elsewhere, here atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	defer other.Close()
	// The same address under another name: a pod must not make the node call other hosts.
	otherHost := strings.Replace(other.URL, "127.0.0.1", "localhost", 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/away":
			http.Redirect(w, r, otherHost, http.StatusFound)
		case "/on":
			http.Redirect(w, r, "/end", http.StatusFound)
		case "/round":
			http.Redirect(w, r, "/round", http.StatusFound)
		default:
			here.Add(1)
		}
	}))
	defer server.Close()
	address, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	for path, failure := range map[string]string{"/away": "", "/on": "", "/round": "PostStartHookError"} {
		pod := newPod("a")
		pod.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PostStart: &v1.LifecycleHandler{HTTPGet: &v1.HTTPGetAction{
			Host: address.Hostname(), Port: intstr.FromString(address.Port()), Path: path,
		}}}
		n := newNode(t)
		result, err := n.manager.SyncPod(n.ctx, pod, nil)
		if result.Reasons["a"].Reason != failure || (err != nil) != (failure != "") {
			t.Errorf("%s: reasons %v, error %v", path, result.Reasons, err)
		}
	}
	if elsewhere.Load() != 0 || here.Load() != 1 {
		t.Errorf("another host was asked %d times, and where the redirect on the host leads %d times", elsewhere.Load(), here.Load())
	}
}

// The API server accepts a tcpSocket hook, which the kubelet has never run.
func TestATCPSocketHookIsInvalid(t *testing.T) {
	n := newNode(t)
	pod := newPod("a")
	pod.Spec.Containers[0].Lifecycle = &v1.Lifecycle{
		PostStart: &v1.LifecycleHandler{TCPSocket: &v1.TCPSocketAction{Port: intstr.FromInt32(80)}},
	}
	result, err := n.manager.SyncPod(n.ctx, pod, nil)
	if err == nil || result.Reasons["a"].Reason != "PostStartHookError" || !strings.Contains(err.Error(), "tcpSocket") {
		t.Errorf("reasons %v, error %v", result.Reasons, err)
	}
}

func TestFailedPostStartKillsTheContainerAndDelaysNoOther(t *testing.T) {
	n := newNode(t)
	n.cri.OnExec(func(string, []string) ([]byte, []byte, int32) { return nil, []byte("no"), 7 })
	pod := newPod("a", "b")
	pod.Spec.Containers[0].Lifecycle = &v1.Lifecycle{
		PostStart: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"hi"}}},
	}
	result, err := n.manager.SyncPod(n.ctx, pod, nil)
	if err == nil || result.Reasons["a"].Reason != "PostStartHookError" {
		t.Fatalf("reasons %v, error %v", result.Reasons, err)
	}
	if got := n.describe(pod); !strings.Contains(got, "a-0:exited(143)") || !strings.Contains(got, "b-0:running") {
		t.Errorf("the runtime has %s, want text with %q and with %q", got, "a-0:exited(143)", "b-0:running")
	}
}

func TestPostStartDelaysTheNext(t *testing.T) {
	n := newNode(t)
	gate := n.cri.Hang("ExecSync", "")
	pod := newPod("a", "b")
	pod.Spec.Containers[0].Lifecycle = &v1.Lifecycle{
		PostStart: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"hi"}}},
	}
	ended := make(chan error, 1)
	go func() {
		_, err := n.manager.SyncPod(n.ctx, pod, nil)
		ended <- err
	}()
	eventually.That(t, "the hook runs and the other is created", func() bool {
		return gate.Waiting() == 1 && n.cri.Count("CreateContainer", "") == 2
	})
	if got := n.cri.Count("StartContainer", ""); got != 1 {
		t.Errorf("%d containers started beside the hook, want 1", got)
	}
	gate.Open()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if got := n.cri.Count("StartContainer", ""); got != 2 {
		t.Errorf("%d containers started, want 2", got)
	}
}

func TestSidecarsEndLastInReverse(t *testing.T) {
	n := newNode(t)
	always := v1.ContainerRestartPolicyAlways
	pod := newPod("init-1", "init-2", "a")
	for i := range pod.Spec.InitContainers {
		pod.Spec.InitContainers[i].RestartPolicy = &always
	}
	for range 3 {
		n.sync(pod)
	}
	n.want(pod, "sandbox-0:ready init-1-0:running init-2-0:running a-0:running")
	names := map[string]string{}
	for _, name := range []string{"init-1", "init-2", "a"} {
		names[n.id(pod, name)] = name
	}
	n.cri.ResetCalls()
	if err := n.manager.KillPod(n.ctx, pod, n.observe(pod), 30); err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, call := range n.cri.Calls() {
		if call.Method == "StopContainer" {
			order = append(order, names[call.IDs[0]])
		}
	}
	if want := []string{"a", "init-2", "init-1"}; !slices.Equal(order, want) {
		t.Errorf("stopped in the order %v, want %v", order, want)
	}
}

func TestAnOrphanIsKilledByWhatTheRuntimeRecords(t *testing.T) {
	n := newNode(t)
	pod := newPod("a")
	pod.Labels = map[string]string{"app": "web"}
	pod.Spec.Containers[0].Lifecycle = &v1.Lifecycle{
		PreStop: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"bye"}}},
	}
	n.sync(pod)
	observed := n.observe(pod)
	orphan := executor.PodFromObserved(observed)
	if orphan.Name != "web" || orphan.Namespace != "shop" || orphan.UID != "u-1" || orphan.Labels["app"] != "web" ||
		len(orphan.Labels) != 1 || *orphan.Spec.TerminationGracePeriodSeconds != 30 || len(orphan.Spec.Containers) != 1 {
		t.Errorf("recovered %+v, want Name %q, Namespace %q, UID %q, app %q, len(Labels) 1, *orphan.Spec.TerminationGracePeriodSeconds 30 and len(Spec.Containers) 1",
			orphan, "web", "shop", "u-1", "web")
	}
	if err := n.manager.KillPod(n.ctx, orphan, observed, 1); err != nil {
		t.Fatal(err)
	}
	if got := n.cri.Count("ExecSync", ""); got != 1 {
		t.Errorf("the preStop hook was run %d times, want 1", got)
	}
	n.want(pod, "sandbox-0:dead a-0:exited(143)")
}

func TestCleanUpRemovesEverythingOfAPod(t *testing.T) {
	n := newNode(t)
	pod := newPod("a")
	pod.Spec.Containers[0].TerminationMessagePath = "/dev/termination-log"
	n.sync(pod)
	if err := n.manager.CleanUpPod(n.ctx, pod, n.observe(pod)); err == nil {
		t.Fatal("a pod that runs is cleaned up")
	}
	if err := n.manager.KillPod(n.ctx, pod, n.observe(pod), 1); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a second call is a no-op
		if err := n.manager.CleanUpPod(n.ctx, pod, n.observe(pod)); err != nil {
			t.Fatal(err)
		}
	}
	n.want(pod, "")
	for _, dir := range []string{filepath.Join(n.config.PodLogsDir, "shop_web_u-1"), filepath.Join(n.config.RootDir, "pods", "u-1")} {
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", dir, err)
		}
	}
}

func TestPruneKeepsTheNewestEndOfEachName(t *testing.T) {
	n := newNode(t)
	pod := newPod("a", "b")
	n.sync(pod)
	n.cri.Exit(n.id(pod, "a"), 1)
	n.sync(pod)
	n.cri.Exit(n.id(pod, "a"), 1)
	if err := n.manager.PruneContainers(n.ctx, n.observe(pod), 1); err != nil {
		t.Fatal(err)
	}
	got := n.describe(pod)
	if strings.Contains(got, "a-0:") || !strings.Contains(got, "a-1:exited(1)") || !strings.Contains(got, "b-0:running") {
		t.Errorf("the runtime has %s, want text without %q, with %q and with %q",
			got, "a-0:", "a-1:exited(1)", "b-0:running")
	}
	if err := n.manager.PruneContainers(n.ctx, n.observe(pod), 0); err != nil {
		t.Fatal(err)
	}
	if again := n.describe(pod); again != got {
		t.Errorf("the last end of a container was removed: %s", again)
	}
}
