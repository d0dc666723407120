package executor_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/fakecri"
)

// recordedEvents records events, one line each.
type recordedEvents struct {
	mu    sync.Mutex
	lines []string
}

func (e *recordedEvents) Normal(_ context.Context, _ *v1.Pod, container, reason, message string) {
	e.add("Normal", container, reason, message)
}

func (e *recordedEvents) Warning(_ context.Context, _ *v1.Pod, container, reason, message string) {
	e.add("Warning", container, reason, message)
}

func (e *recordedEvents) add(kind, container, reason, message string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if reason != "Pulled" { // recorded by package images
		e.lines = append(e.lines, fmt.Sprintf("%s %s [%s] %s", kind, reason, container, message))
	}
}

// take returns the events since the last call.
func (e *recordedEvents) take() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := strings.Join(e.lines, "\n")
	e.lines = nil
	return all
}

// want compares the events since the last call with lines.
func (e *recordedEvents) want(t *testing.T, lines ...string) {
	t.Helper()
	if got := e.take(); got != strings.Join(lines, "\n") {
		t.Errorf("events\n%s\nwant\n%s", got, strings.Join(lines, "\n"))
	}
}

// newRecorded returns a node whose events are recorded.
func newRecorded(t *testing.T) (*node, *recordedEvents) {
	events := &recordedEvents{}
	return newNode(t, func(c *executor.Config) { c.Events = events }), events
}

func TestActionsForAPodAreInItsEvents(t *testing.T) {
	n, events := newRecorded(t)
	pod := newPod("a")
	n.sync(pod)
	events.want(t, "Normal Created [a] Container created", "Normal Started [a] Container started")
	n.sync(pod)
	events.want(t)
	pod.Spec.Containers[0].Image = "image:2"
	n.sync(pod)
	events.want(t, "Normal Killing [a] Container a definition changed, will be restarted",
		"Normal Created [a] Container created", "Normal Started [a] Container started again: spec changed")
	n.cri.KillSandbox(n.observe(pod).Sandboxes[0].Id)
	n.sync(pod)
	events.want(t, "Normal SandboxChanged [] Pod sandbox changed, it will be killed and re-created.", "Normal Created [a] Container created",
		"Normal Started [a] Container started again: sandbox replaced (pod sandbox is not ready), exited with 137 (Error)")
	if err := n.manager.KillPod(n.ctx, pod, n.observe(pod), 5); err != nil {
		t.Fatal(err)
	}
	events.want(t, "Normal Killing [a] Stopping container a")
}

func TestWhyAPodDoesNotStartIsInItsEvents(t *testing.T) {
	n, events := newRecorded(t)
	logged := &logLines{}
	n.config.Logger = logged.logger()
	n.manager = executor.New(n.config)
	pod := newPod("a")
	fail := func(method, text string, want ...string) {
		t.Helper()
		n.cri.Fail(method, "", 1, status.Error(codes.Unknown, text))
		if _, err := n.manager.SyncPod(n.ctx, pod, n.observe(pod)); err == nil {
			t.Fatalf("a failed %s was no error", method)
		}
		events.want(t, want...)
	}
	fail("RunPodSandbox", "no network", "Warning FailedCreatePodSandBox [] Failed to create pod sandbox: rpc error: code = Unknown desc = no network")
	fail("RunPodSandbox", "network for sandbox "+strings.Repeat("0f", 32),
		"Warning FailedCreatePodSandBox [] Failed to create pod sandbox: rpc error: code = Unknown desc = network for sandbox web")
	fail("CreateContainer", "no room", "Warning Failed [a] Error: no room")
	// The runtime's error contains the ID of the container, which differs each time.
	fail("StartContainer", "no command in container-0002", "Normal Created [a] Container created", "Warning Failed [a] Error: no command in a")
	if lines := logged.count("did not start"); lines != 0 {
		t.Errorf("%d lines of the log repeat what the caller logs", lines)
	}
	pod.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "gpu"}}
	if _, err := n.manager.SyncPod(n.ctx, pod, n.observe(pod)); err == nil {
		t.Fatal("a resource claim was no error")
	}
	if got := events.take(); !strings.HasPrefix(got, "Warning UnsupportedPodSpec [] spec.resourceClaims") {
		t.Errorf("events %q, want text beginning with %q", got, "Warning UnsupportedPodSpec [] spec.resourceClaims")
	}
}

func TestWorkThatIsCutShortIsNoFailureInTheEvents(t *testing.T) {
	n, events := newRecorded(t)
	gate := n.cri.Hang("RunPodSandbox", "")
	ctx, cancel := context.WithCancel(n.ctx)
	ended := make(chan error, 1)
	go func() {
		_, err := n.manager.SyncPod(ctx, newPod("a"), nil)
		ended <- err
	}()
	eventually.That(t, "the sandbox is being made", func() bool { return gate.Waiting() == 1 })
	cancel()
	if err := <-ended; err == nil {
		t.Fatal("interrupted work succeeded")
	}
	gate.Open()
	events.want(t)
}

func TestABackOffIsAnEvent(t *testing.T) {
	n, events := newRecorded(t)
	n.cri.OnStart(func(fakecri.Container) (int32, bool) { return 1, true })
	pod := newPod("a")
	n.sync(pod)
	n.sync(pod) // the first restart is immediate
	events.take()
	n.sync(pod)
	events.want(t, "Warning BackOff [a] Back-off restarting failed container a in pod web_shop(u-1)")
}

func TestAFailedHookIsAnEventWithoutItsOutput(t *testing.T) {
	n, events := newRecorded(t)
	n.cri.OnExec(func(string, []string) ([]byte, []byte, int32) { return nil, []byte("secret"), 7 })
	hook := &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"hi"}}}
	pod := newPod("a")
	pod.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PostStart: hook, PreStop: hook}
	if _, err := n.manager.SyncPod(n.ctx, pod, nil); err == nil {
		t.Fatal("a failed hook was no error")
	}
	events.want(t, "Normal Created [a] Container created", "Normal Started [a] Container started", "Warning FailedPostStartHook [a] PostStartHook failed",
		"Normal Killing [a] FailedPostStartHook", "Warning FailedPreStopHook [a] PreStopHook failed")
}

func TestWhatIsCutOfTheDNSConfigurationIsAnEventOnce(t *testing.T) {
	n, events := newRecorded(t)
	lines := bytes.Repeat([]byte("nameserver 198.51.100.1\n"), 4)
	if err := os.WriteFile(*n.config.Kubelet.ResolverConfig, lines, 0o600); err != nil {
		t.Fatal(err)
	}
	pod := newPod("a")
	n.sync(pod)
	n.cri.Exit(n.id(pod, "a"), 1)
	n.sync(pod)
	all := strings.Split(events.take(), "\n")
	cut := slices.DeleteFunc(all, func(line string) bool {
		return !strings.HasPrefix(line, "Warning DNSConfigForming [] Nameserver limits were exceeded")
	})
	if len(cut) != 1 {
		t.Errorf("%d events say that name servers were left out, want 1, when the sandbox was made", len(cut))
	}
}
