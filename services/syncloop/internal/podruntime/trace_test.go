package podruntime_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/podruntime"
)

func TestEveryCallIsInTheTraceOfItsPhase(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test")
	n := newNode(t, func(c *podruntime.Config) { c.Tracer = tracer })
	pod := newPod("a")
	pod.Spec.Containers[0].Image = "other:1" // has to be pulled
	ctx, root := tracer.Start(n.ctx, "pod.sync")
	if _, err := n.manager.SyncPod(ctx, pod, nil); err != nil {
		t.Fatal(err)
	}
	root.End()

	names := map[string]string{}
	for _, span := range recorder.Ended() {
		names[span.SpanContext().SpanID().String()] = span.Name()
	}
	edges := map[string]string{}
	for _, span := range recorder.Ended() {
		if span.Parent().IsValid() {
			edges[span.Name()] = names[span.Parent().SpanID().String()]
		}
		if span.SpanContext().TraceID() != root.SpanContext().TraceID() {
			t.Errorf("span %s is of another trace", span.Name())
		}
	}
	want := map[string]string{
		"sandbox": "pod.sync", "cri.RunPodSandbox": "sandbox",
		"image": "pod.sync", "image.pull": "image", "cri.PullImage": "image.pull", "cri.ImageStatus": "image.pull",
		"container.create": "pod.sync", "cri.PodSandboxStatus": "container.create", "cri.CreateContainer": "container.create",
		"container.start": "pod.sync", "cri.StartContainer": "container.start",
	}
	if diff := cmp.Diff(want, edges); diff != "" {
		t.Errorf("child → parent (-want +got):\n%s", diff)
	}

	// The annotation names the span that has made the thing, so that what happens to it later can link there.
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
