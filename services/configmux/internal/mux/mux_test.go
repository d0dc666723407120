package mux_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/configmux/internal/mux"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// named is a source that sends nothing by itself.
type named string

func (n named) Name() string                           { return string(n) }
func (n named) Target() string                         { return "/" + string(n) }
func (n named) Run(context.Context, source.Sink) error { return nil }

type rig struct {
	t *testing.T
	*mux.Mux
	health   *rpc.Health
	registry *prometheus.Registry
	spans    *tracetest.InMemoryExporter
	tracer   trace.Tracer
	sub      stream.Subscription[mux.Entry]
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, health: rpc.NewHealth(), registry: prometheus.NewRegistry(), spans: tracetest.NewInMemoryExporter()}
	r.tracer = sdktrace.NewTracerProvider(sdktrace.WithSyncer(r.spans)).Tracer("")
	r.Mux = mux.New(mux.Config{
		Sources: []source.Source{named("file"), named("api")},
		Health:  r.health,
		Clock:   clock.RealClock{},
		Tracer:  r.tracer,
		Logger:  slog.New(slog.DiscardHandler),
		Metrics: mux.NewMetrics(r.registry),
	})
	t.Cleanup(r.Close)
	return r
}

// watch begins a subscription and skips to its deltas.
func (r *rig) watch() {
	r.t.Helper()
	sub, err := r.Stream(configv1.Mode_MODE_INCREMENTAL).Subscribe(r.t.Context(), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(sub.Close)
	r.sub = sub
	for r.next().Kind != stream.KindSynced {
	}
}

func (r *rig) next() stream.Message[mux.Entry] {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 60*time.Second)
	defer cancel()
	m, err := r.sub.Next(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	return m
}

// changes reads n messages as text.
func (r *rig) changes(n int) []string {
	r.t.Helper()
	var out []string
	for range n {
		m := r.next()
		if s := m.Value.Source; s != nil {
			out = append(out, fmt.Sprintf("%s ready=%v", s.GetName(), s.GetReady()))
			continue
		}
		out = append(out, fmt.Sprintf("%s %s", strings.TrimPrefix(m.Value.Pod.GetOp().String(), "OP_"), m.Key))
	}
	return out
}

// silent checks that nothing was published, by publishing a message that must be the next one.
func (r *rig) silent() {
	r.t.Helper()
	r.Set("api", reading(pod("probe", "i")))
	if got := r.changes(1); got[0] != "ADD probe" {
		r.t.Errorf("published %v, want nothing", got)
	}
}

func pod(uid, image string) source.Pod {
	return source.Pod{Path: "/file/" + uid, Pod: &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: uid, UID: types.UID(uid)},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: image}}},
	}}
}

func reading(pods ...source.Pod) source.Reading {
	return source.Reading{Pods: pods, ReadAt: time.Unix(1000, 0), Mode: "inotify"}
}

func (r *rig) expect(want ...string) {
	r.t.Helper()
	if diff := cmp.Diff(want, r.changes(len(want))); diff != "" {
		r.t.Errorf("published (-want +got):\n%s", diff)
	}
}

func TestEachMergeIsPublishedInOrderWithTheSourceLast(t *testing.T) {
	r := newRig(t)
	r.watch()
	r.Set("file", reading(pod("a", "1"), pod("b", "1")))
	r.expect("ADD a", "ADD b", "file ready=true")
	r.Set("file", reading(pod("b", "2"), pod("c", "1")))
	r.expect("REMOVE a", "ADD c", "UPDATE b", "file ready=true")
	r.Set("file", reading(pod("b", "2"), pod("c", "1")))
	r.silent()
}

func TestTheFirstSetOfASourceIsAnnouncedEvenWhenEmpty(t *testing.T) {
	r := newRig(t)
	if got := r.health.Waiting(); len(got) != 2 || !strings.Contains(got[1], "source file") {
		t.Errorf("health waits for %q, want the two sources", got)
	}
	r.watch()
	r.Set("file", reading())
	r.expect("file ready=true")
	if got := r.health.Waiting(); len(got) != 1 {
		t.Errorf("health still waits for %q", got)
	}
	r.Set("file", reading())
	r.silent()
}

func TestASnapshotNamesSourcesThatAreNotReady(t *testing.T) {
	r := newRig(t)
	r.Set("file", reading(pod("a", "1")))
	sub, err := r.Stream(configv1.Mode_MODE_INCREMENTAL).Subscribe(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	r.sub = sub
	r.next()
	r.expect("api ready=false", "ADD a", "file ready=true")
}

func TestAFailedReadingChangesNoPodAndMakesNothingReady(t *testing.T) {
	r := newRig(t)
	failed := source.Reading{
		Failed: true,
		Mode:   "polling",
		Errors: []source.Error{{Path: "/file", Message: "cannot read it"}},
	}
	r.Set("file", failed)
	if s := r.Sources()[1]; s.GetReady() || len(s.GetErrors()) != 1 || s.GetLastReadAt() != nil {
		t.Errorf("source %v, want it not ready, with its error", s)
	}
	r.Set("file", reading(pod("a", "1")))
	r.watch()
	r.Set("file", failed)
	r.silent()
	if s := r.Sources()[1]; !s.GetReady() || s.GetPods() != 1 || s.GetMode() != "polling" || len(s.GetErrors()) != 1 {
		t.Errorf("source %v, want it as before, with its error", s)
	}
}

func TestPublishedPodsCarryTheAgentsAnnotations(t *testing.T) {
	r := newRig(t)
	given := pod("a", "1")
	given.Annotations = map[string]string{"mine": "x"}
	r.Set("file", reading(given))
	first := decode(t, r.Pods()[0])
	if first.Annotations[podset.AnnotationSource] != "file" || first.Annotations["mine"] != "x" {
		t.Errorf("annotations %v, want first.Annotations[podset.AnnotationSource] %q and mine %q",
			first.Annotations, "file", "x")
	}
	seen, err := time.Parse(time.RFC3339Nano, first.Annotations[podset.AnnotationSeen])
	if err != nil || time.Since(seen) > time.Minute {
		t.Errorf("seen at %v, %v", seen, err)
	}
	if len(given.Annotations) != 1 {
		t.Error("the source's pod has been changed")
	}
	r.Set("file", reading(pod("a", "2")))
	if again := decode(
		t,
		r.Pods()[0],
	); again.Annotations[podset.AnnotationSeen] != first.Annotations[podset.AnnotationSeen] {
		t.Error("an update changes the time at which the pod was first seen")
	}
}

func decode(t *testing.T, u *configv1.PodUpdate) *v1.Pod {
	t.Helper()
	p := &v1.Pod{}
	if err := p.Unmarshal(u.GetPod()); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestSourcesKeepToTheirOwnPods(t *testing.T) {
	r := newRig(t)
	r.Set("file", reading(pod("a", "1")))
	r.Set("api", reading(pod("a", "2"), pod("b", "1")))
	var got []string
	for _, u := range r.Pods() {
		p := decode(t, u)
		got = append(got, u.GetSource()+" "+p.Name+" "+p.Spec.Containers[0].Image)
	}
	if diff := cmp.Diff([]string{"file a 1", "api b 1"}, got); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
	api := r.Sources()[0]
	if len(api.GetErrors()) != 1 || api.GetErrors()[0].GetField() != "metadata.uid" {
		t.Errorf("errors of api %v, want one, of the UID that file has", api.GetErrors())
	}
	r.Set("file", reading())
	r.Set("api", reading(pod("a", "2"), pod("b", "1")))
	if n := len(r.Pods()); n != 2 {
		t.Errorf("%d pods, want both of api once file has given the UID up", n)
	}
}

func TestErrorsAreCountedWhileTheyLast(t *testing.T) {
	r := newRig(t)
	at := func(sec int64) source.Reading {
		got := reading()
		got.Errors = []source.Error{
			{Path: "/file/x", Pod: "default/x", Field: "f", Message: "bad", SeenAt: time.Unix(sec, 0)},
		}
		return got
	}
	for _, sec := range []int64{10, 10, 20, 30} {
		r.Set("file", at(sec))
	}
	errs := r.Sources()[1].GetErrors()
	if len(errs) != 1 || errs[0].GetCount() != 3 || errs[0].GetFirstSeenAt().GetSeconds() != 10 ||
		errs[0].GetLastSeenAt().GetSeconds() != 30 {
		t.Errorf("errors %v, want one that was seen at 10, 20 and 30", errs)
	}
	r.Set("file", reading())
	if errs := r.Sources()[1].GetErrors(); len(errs) != 0 {
		t.Errorf("errors %v, want none: it has been mended", errs)
	}
}

// Each change is one trace: the reading of its file, the merge, and the publication, whose context is sent along.
func TestTraceOfAChange(t *testing.T) {
	r := newRig(t)
	read := func() context.Context {
		ctx, span := r.tracer.Start(context.Background(), "source.read", trace.WithNewRoot())
		span.End()
		return ctx
	}
	causes := map[string]context.Context{"/file/a": read(), "/file/b": read()}
	got := reading(pod("a", "1"), pod("b", "1"))
	got.Causes = causes
	r.Set("file", got)
	r.watch()
	for i, uid := range []string{"a", "b"} {
		r.edges(causes["/file/"+uid], uid, "ADD", r.Pods()[i].GetTraceparent())
	}

	// The file is removed: the removal of the pod belongs to the trace that detected it.
	r.spans.Reset()
	gone := reading(pod("b", "1"))
	gone.Causes = map[string]context.Context{"/file/a": read()}
	r.Set("file", gone)
	m := r.next()
	if !m.Removed {
		t.Fatalf("message %+v, want a removal", m)
	}
	r.edges(gone.Causes["/file/a"], "a", "REMOVE", m.Value.Pod.GetTraceparent())
}

// edges holds that a pod's publish span is the child of a merge span, which is the child of the reading.
func (r *rig) edges(cause context.Context, uid, op, traceparent string) {
	r.t.Helper()
	var publish, merge tracetest.SpanStub
	for _, s := range r.spans.GetSpans() {
		for _, a := range s.Attributes {
			if s.Name == "publish" && a.Key == "k8s.pod.uid" && a.Value.AsString() == uid {
				publish = s
			}
		}
	}
	for _, s := range r.spans.GetSpans() {
		if s.Name == "merge" && s.SpanContext.SpanID() == publish.Parent.SpanID() {
			merge = s
		}
	}
	root := trace.SpanContextFromContext(cause)
	if merge.Parent.SpanID() != root.SpanID() || merge.SpanContext.TraceID() != root.TraceID() {
		r.t.Errorf("%s of %s: no publish under a merge under the reading of its file", op, uid)
	}
	want := telemetry.Traceparent(trace.ContextWithSpanContext(context.Background(), publish.SpanContext))
	if traceparent != want || want == "" {
		r.t.Errorf("%s of %s carries %q, want the publish span %q", op, uid, traceparent, want)
	}
}
