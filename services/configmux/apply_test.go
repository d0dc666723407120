package configmux

import (
	"os"
	"path/filepath"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/test/eventually"
)

func (p *process) tryApply(name, image string) (*configv1.ApplyPodResponse, error) {
	p.t.Helper()
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: "applied"},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: image}}},
	}
	data, err := pod.Marshal()
	must(p.t, err)
	return p.client.ApplyPod(p.t.Context(), &configv1.ApplyPodRequest{Pod: data}, grpc.WaitForReady(true))
}

func (p *process) apply(name, image string) configv1.Op {
	p.t.Helper()
	answer, err := p.tryApply(name, image)
	must(p.t, err)
	return answer.GetPod().GetOp()
}

func TestAppliedPodsReachTheSubscriber(t *testing.T) {
	p := newProcess(t)
	p.run()
	p.ready()
	next := p.watch(nil)
	expect(t, next, "OPENED", "SNAPSHOT source file ready=true", "SYNCED")
	ops := []configv1.Op{p.apply("a", "i:1"), p.apply("a", "i:1"), p.apply("a", "i:2")}
	if ops[0] != configv1.Op_OP_ADD || ops[1] != configv1.Op_OP_UNSPECIFIED || ops[2] != configv1.Op_OP_UPDATE {
		t.Errorf("operations %v, want ADD, none, UPDATE", ops)
	}
	_, err := p.client.DeletePod(t.Context(), &configv1.DeletePodRequest{Name: "a"})
	must(t, err)
	// Changes are folded, but the order is kept: the stream ends with the removal of the pod.
	for m := next(); ; m = next() {
		if got := text(t, m); got == "DELTA REMOVE a-node i:2" {
			break
		} else if got != "DELTA ADD a-node i:1" && got != "DELTA UPDATE a-node i:2" && got != "DELTA ADD a-node i:2" {
			t.Fatalf("got %q, want an ADD of image i:1 or i:2, or an UPDATE to i:2", got)
		}
	}
	if _, err := p.client.DeletePod(
		t.Context(),
		&configv1.DeletePodRequest{Name: "a"},
	); status.Code(err) != codes.NotFound {
		t.Errorf("the second deletion: %v, want NOT_FOUND", err)
	}
}

func TestAnAppliedPodIsThereAfterAKill(t *testing.T) {
	p := newProcess(t)
	first := p.spawn()
	op := p.apply("a", "i:1")
	p.kill(first)
	eventually.That(p.t, "the client notices", func() bool { return p.conn.GetState() != connectivity.Ready })
	if op != configv1.Op_OP_ADD {
		t.Errorf("operation %v, want ADD", op)
	}
	second := p.spawn()
	defer p.kill(second)
	seen := false
	for next, m := p.watch(nil), ""; m != "SYNCED"; seen = seen || m == "SNAPSHOT ADD a-node i:1" {
		m = text(t, next())
	}
	if !seen {
		t.Error("the pod was not in what a subscriber sees first")
	}
	if op := p.apply("a", "i:1"); op != configv1.Op_OP_UNSPECIFIED {
		t.Errorf("applying it again is %v, want no change", op)
	}
	if _, err := p.client.DeletePod(t.Context(), &configv1.DeletePodRequest{Name: "a-node"}); err != nil {
		t.Errorf("deleting it by its whole name: %v", err)
	}
}

func TestProblemsOfAnAppliedPodAreReportedByField(t *testing.T) {
	p := newProcess(t)
	p.write("web.yaml", manifest("web", "", "i:1"))
	p.run()
	p.ready()
	_, err := p.tryApply("a", "")
	if status.Code(err) != codes.InvalidArgument {
		t.Fatalf("a pod without an image: %v, want INVALID_ARGUMENT", err)
	}
	var fields []string
	for _, detail := range status.Convert(err).Details() {
		if bad, is := detail.(*errdetails.BadRequest); is {
			for _, v := range bad.GetFieldViolations() {
				fields = append(fields, v.GetField()+": "+v.GetDescription())
			}
		}
	}
	if len(fields) != 1 || fields[0] != "spec.containers[0].image: Required value" {
		t.Errorf("violations %q, want exactly one and fields[0] %q", fields, "spec.containers[0].image: Required value")
	}
	_, err = p.tryApply("web", "i:1")
	want := `the name is that of the pod default/web-node of the source "file", in ` + filepath.Join(p.dir, "web.yaml") +
		": give this pod another, or take that one away first"
	if status.Code(err) != codes.AlreadyExists || status.Convert(err).Message() != want {
		t.Errorf("the name of another source's pod: %v, want ALREADY_EXISTS: %s", err, want)
	}
	_, err = p.client.ApplyPod(t.Context(), &configv1.ApplyPodRequest{Pod: []byte("no pod")})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("no pod: %v, want INVALID_ARGUMENT", err)
	}
	if files, err := os.ReadDir(filepath.Join(p.cfg.StateDir, "applied")); err != nil || len(files) != 0 {
		t.Errorf("%d files were left, %v, want none", len(files), err)
	}
}

// The trace of an apply begins when the source accepts the pod.
func TestTraceOfAnApply(t *testing.T) {
	p := newProcess(t)
	spans := tracetest.NewInMemoryExporter()
	p.tel.Tracer = sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)).Tracer("")
	p.run()
	p.ready()
	p.apply("a", "i:1")
	pods, err := p.client.ListPods(t.Context(), &configv1.ListPodsRequest{})
	must(t, err)
	publish := trace.SpanContextFromContext(telemetry.WithTraceparent(t.Context(), pods.GetPods()[0].GetTraceparent()))
	var path string
	for id := publish.SpanID(); id.IsValid(); {
		span := p.span(spans, publish.TraceID(), id)
		path, id = path+" "+span.Name, span.Parent.SpanID()
	}
	if path != " publish merge source.read" {
		t.Errorf("the trace is%s, want publish, merge, source.read", path)
	}
}
