package executor_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
)

// traced is a node whose spans are recorded.
type traced struct {
	*node
	recorder *tracetest.SpanRecorder
	tracer   trace.Tracer
}

func newTraced(t *testing.T) *traced {
	t.Helper()
	recorder := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test")
	n := newNode(t, func(c *executor.Config) {
		c.Tracer = tracer
		c.Kubelet.ContainerRuntimeEndpoint = "unix:///run/fake.sock"
	})
	return &traced{node: n, recorder: recorder, tracer: tracer}
}

// syncTraced runs SyncPod on the current observation in the span "pod.sync". It returns the span and the error.
func (n *traced) syncTraced(pod *v1.Pod) (trace.Span, error) {
	observed := n.observe(pod)
	n.cri.ResetCalls()
	ctx, root := n.tracer.Start(n.ctx, "pod.sync")
	defer root.End()
	_, err := n.manager.SyncPod(ctx, pod, observed)
	return root, err
}

// span returns the only span of a name.
func (n *traced) span(name string) sdktrace.ReadOnlySpan {
	n.t.Helper()
	var found []sdktrace.ReadOnlySpan
	for _, s := range n.recorder.Ended() {
		if s.Name() == name {
			found = append(found, s)
		}
	}
	if len(found) != 1 {
		n.t.Fatalf("%d spans %q, want 1", len(found), name)
	}
	return found[0]
}

func textOf(s sdktrace.ReadOnlySpan) map[string]string {
	text := map[string]string{}
	for _, a := range s.Attributes() {
		text[string(a.Key)] = a.Value.String()
	}
	return text
}

func TestEveryCallIsInTheTraceOfItsPhase(t *testing.T) {
	n := newTraced(t)
	pod := newPod("a")
	pod.Spec.Containers[0].Image = "other:1" // the image must be pulled
	root, err := n.syncTraced(pod)
	if err != nil {
		t.Fatal(err)
	}

	names := map[string]string{}
	for _, span := range n.recorder.Ended() {
		names[span.SpanContext().SpanID().String()] = span.Name()
	}
	edges := map[string]string{}
	for _, span := range n.recorder.Ended() {
		if span.Parent().IsValid() {
			edges[span.Name()] = names[span.Parent().SpanID().String()]
		}
		if span.SpanContext().TraceID() != root.SpanContext().TraceID() {
			t.Errorf("span %s is of another trace", span.Name())
		}
	}
	want := map[string]string{
		"sandbox": "pod.sync", "runtime.v1.RuntimeService/RunPodSandbox": "sandbox",
		"image": "pod.sync", "image.pull": "image",
		"runtime.v1.ImageService/PullImage": "image.pull", "runtime.v1.ImageService/ImageStatus": "image.pull",
		"container.create": "pod.sync", "runtime.v1.RuntimeService/PodSandboxStatus": "container.create",
		"runtime.v1.RuntimeService/CreateContainer": "container.create",
		"container.start": "pod.sync", "runtime.v1.RuntimeService/StartContainer": "container.start",
	}
	delete(edges, telemetry.SpanWait) // on a busy machine the sandbox may wait at the gate
	if diff := cmp.Diff(want, edges); diff != "" {
		t.Errorf("child → parent (-want +got):\n%s", diff)
	}

	// The annotation holds the span of the creation, so that later spans can link to it.
	observed := n.observe(pod)
	for what, annotations := range map[string]map[string]string{
		"sandbox": observed.Sandboxes[0].Annotations, "container.create": observed.Containers[0].Annotations,
	} {
		parts := strings.Split(annotations[telemetry.AnnotationTraceparent], "-")
		if len(parts) != 4 || names[parts[2]] != what {
			t.Errorf("traceparent %v is not of the span %q", parts, what)
		}
	}
}

func TestTheRuntimeGetsTheSpanOfTheCall(t *testing.T) {
	n := newTraced(t)
	pod := newPod("a")
	pod.Spec.Containers[0].Image = "other:1"
	if _, err := n.syncTraced(pod); err != nil {
		t.Fatal(err)
	}
	clients := map[string]string{}
	for _, span := range n.recorder.Ended() {
		_, method, isCall := strings.Cut(span.Name(), "Service/")
		if isCall != (span.SpanKind() == trace.SpanKindClient) {
			t.Errorf("span %s is of the kind %v", span.Name(), span.SpanKind())
		}
		clients[telemetry.Traceparent(trace.ContextWithSpanContext(context.Background(), span.SpanContext()))] = method
	}
	called := map[string]bool{}
	for _, call := range n.cri.Calls() {
		if clients[call.Traceparent] != call.Method {
			t.Errorf("%s carries the traceparent %q of the span %q, want that of its own call", call.Method, call.Traceparent, clients[call.Traceparent])
		}
		called[call.Method] = true
	}
	want := []string{"CreateContainer", "ImageStatus", "PodSandboxStatus", "PullImage", "RunPodSandbox", "StartContainer"}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(called))); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	wantAttributes := map[string]string{
		"rpc.system.name": "grpc", "rpc.method": "runtime.v1.RuntimeService/CreateContainer", "rpc.response.status_code": "OK",
		"server.address": "/run/fake.sock", "k8s.namespace.name": pod.Namespace, "k8s.pod.name": pod.Name, "k8s.pod.uid": string(pod.UID),
		"k8s.container.name": "a", "container.image.name": "other:1", "quartet.sandbox.id": n.observe(pod).Sandboxes[0].Id,
	}
	if diff := cmp.Diff(wantAttributes, textOf(n.span("runtime.v1.RuntimeService/CreateContainer"))); diff != "" {
		t.Errorf("attributes of CreateContainer (-want +got):\n%s", diff)
	}
}

func TestCallsOutsideOfATraceCarryNone(t *testing.T) {
	n := newNode(t)
	n.sync(newPod("a"))
	for _, call := range n.cri.Calls() {
		if call.Traceparent != "" {
			t.Errorf("%s carries the traceparent %q, and nobody traces, want an empty text", call.Method, call.Traceparent)
		}
	}
}

func TestAFailureShowsOnTheCallAndOnItsPhase(t *testing.T) {
	for name, tc := range map[string]struct {
		method string
		// kinds are the error.type of each failed span.
		kinds map[string]string
	}{
		"the sandbox": {"RunPodSandbox", map[string]string{"runtime.v1.RuntimeService/RunPodSandbox": "UNAVAILABLE", "sandbox": "UNAVAILABLE"}},
		"the image": {"PullImage", map[string]string{
			"runtime.v1.ImageService/PullImage": "UNAVAILABLE", "image.pull": "UNAVAILABLE", "image": "ErrImagePull",
		}},
		"the creation": {"CreateContainer", map[string]string{
			"runtime.v1.RuntimeService/CreateContainer": "UNAVAILABLE", "container.create": "CreateContainerError",
		}},
		"the start": {"StartContainer", map[string]string{
			"runtime.v1.RuntimeService/StartContainer": "UNAVAILABLE", "container.start": "RunContainerError",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newTraced(t)
			pod := newPod("a")
			pod.Spec.Containers[0].ImagePullPolicy = v1.PullAlways
			n.cri.Fail(tc.method, "", -1, status.Error(codes.Unavailable, "no room"))
			if _, err := n.syncTraced(pod); err == nil {
				t.Fatal("nothing fails")
			}
			kinds := map[string]string{}
			for _, span := range n.recorder.Ended() {
				if span.Status().Code != otelcodes.Error {
					continue
				}
				kinds[span.Name()] = textOf(span)["error.type"]
				if !strings.Contains(span.Status().Description, "no room") || len(span.Events()) != 1 || span.Events()[0].Name != "exception" {
					t.Errorf("span %s does not say why it failed: %v, %v", span.Name(), span.Status(), span.Events())
				}
			}
			if diff := cmp.Diff(tc.kinds, kinds); diff != "" {
				t.Errorf("error.type of the spans that failed (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAMissingContainerIsNoFailureOfAStop(t *testing.T) {
	n := newTraced(t)
	pod := newPod("a")
	n.sync(pod)
	observed := n.observe(pod)
	n.cri.Fail("StopContainer", "", -1, status.Error(codes.NotFound, "no such container"))
	ctx, root := n.tracer.Start(n.ctx, "pod.terminate")
	if err := n.manager.KillPod(ctx, pod, observed, 1); err != nil {
		t.Fatal(err)
	}
	root.End()
	stop := n.span("runtime.v1.RuntimeService/StopContainer")
	if stop.Status().Code == otelcodes.Error || textOf(stop)["rpc.response.status_code"] != "NOT_FOUND" {
		t.Errorf("the span has the status %v and the code %s, want one that has not failed and says NOT_FOUND", stop.Status(), textOf(stop)["rpc.response.status_code"])
	}
	if got := textOf(stop)["quartet.grace_period"]; got != "2" {
		t.Errorf("the grace period on the span is %q, want 2", got)
	}
}

func TestARestartIsLinkedToTheStartBefore(t *testing.T) {
	n := newTraced(t)
	pod := newPod("a")
	first, err := n.syncTraced(pod)
	if err != nil {
		t.Fatal(err)
	}
	created := n.span("container.create").SpanContext().SpanID()
	n.cri.Exit(n.observe(pod).Containers[0].Id, 1)
	n.recorder.Reset()
	second, err := n.syncTraced(pod)
	if err != nil {
		t.Fatal(err)
	}
	again := n.span("container.create")
	switch links := again.Links(); {
	case first.SpanContext().TraceID() == second.SpanContext().TraceID():
		t.Fatal("the test is wrong: both starts are in one trace")
	case len(links) != 1 || links[0].SpanContext.SpanID() != created:
		t.Errorf("links are %v, want one to the span that created the container before", links)
	}
	if got := textOf(again)["k8s.container.restart_count"]; got != "1" {
		t.Errorf("the restart count is %q, want 1", got)
	}
}

func TestAHooksCommandAndOutputStayInTheContainer(t *testing.T) {
	n := newTraced(t)
	pod := newPod("a")
	pod.Spec.Containers[0].Lifecycle = &v1.Lifecycle{
		PostStart: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"login", "hunter2"}}},
	}
	n.cri.OnExec(func(string, []string) (stdout, stderr []byte, exitCode int32) {
		return nil, []byte("hunter2 is wrong"), 3
	})
	_, err := n.syncTraced(pod)
	if err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "exit code 3") {
		t.Errorf("got %v, want an error with the exit code and no more", err)
	}
	hook := n.span("container.hook")
	if hook.Status().Code != otelcodes.Error || textOf(hook)["quartet.hook"] != "postStart" || textOf(hook)["k8s.container.name"] != "a" {
		t.Errorf("the hook's span has the status %v and the attributes %v", hook.Status(), textOf(hook))
	}
	for _, span := range n.recorder.Ended() {
		for _, event := range span.Events() {
			attributes := attribute.NewSet(event.Attributes...)
			if message, _ := attributes.Value("exception.message"); strings.Contains(message.AsString(), "hunter2") {
				t.Errorf("span %s has the secret: %s, want text without %q", span.Name(), message.AsString(), "hunter2")
			}
		}
	}
}

// nowhere is an exporter that discards spans.
type nowhere struct{}

func (nowhere) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return nil }
func (nowhere) Shutdown(context.Context) error                             { return nil }

// BenchmarkTracedPod starts and removes a pod on a fake runtime: it measures the agent's own work, its calls, and its
// traces.
func BenchmarkTracedPod(b *testing.B) {
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(nowhere{}))
	defer func() {
		if err := provider.Shutdown(context.Background()); err != nil {
			b.Error(err)
		}
	}()
	for name, tracer := range map[string]trace.Tracer{"off": telemetry.Off(), "on": provider.Tracer("")} {
		b.Run(name, func(b *testing.B) {
			n := newNode(b, func(c *executor.Config) { c.Tracer = tracer })
			pod := newPod("a")
			b.ReportAllocs()
			for b.Loop() {
				if _, err := n.manager.SyncPod(n.ctx, pod, nil); err != nil {
					b.Fatal(err)
				}
				if err := n.manager.KillPod(n.ctx, pod, n.observe(pod), 1); err != nil {
					b.Fatal(err)
				}
				if err := n.manager.CleanUpPod(n.ctx, pod, n.observe(pod)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
