package relist_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	otelcodes "go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"
	clocktesting "k8s.io/utils/clock/testing"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/boottime"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/pleg/internal/relist"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/fakecri"
	"github.com/quartet-node/quartet/test/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type rig struct {
	*relist.Relister
	t        *testing.T
	fake     *fakecri.Server
	clock    *clocktesting.FakeClock
	events   *stream.Edge[*lifecyclev1.Event]
	spans    *tracetest.SpanRecorder
	registry *prometheus.Registry
}

// start runs a relister with a fake clock.
func start(t *testing.T, fake *fakecri.Server) *rig {
	t.Helper()
	client := harness.CRIClient(t, fake.Endpoint())
	spans := tracetest.NewSpanRecorder()
	r := &rig{
		t: t, fake: fake, clock: clocktesting.NewFakeClock(time.Now()), spans: spans,
		events: stream.NewEdge[*lifecyclev1.Event](stream.Config{}), registry: prometheus.NewRegistry(),
	}
	r.Relister = relist.New(relist.Config{
		Runtime:  client.Runtime,
		Events:   r.events,
		Timeout:  time.Minute,
		BootTime: boottime.Now,
		Clock:    r.clock,
		Logger:   slog.New(slog.DiscardHandler),
		Tracer:   sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test"),
		Metrics:  relist.NewMetrics(r.registry),
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-r.Synced():
	case <-time.After(60 * time.Second):
		t.Fatal("the first relist does not finish")
	}
	return r
}

func (r *rig) request() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 60*time.Second)
	defer cancel()
	if _, err := r.Request(ctx, 0); err != nil {
		r.t.Fatal(err)
	}
}

// subscribe returns a function that waits for the next event from now on.
func (r *rig) subscribe() func() *lifecyclev1.Event {
	r.t.Helper()
	sub, err := r.events.Subscribe(r.t.Context(), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(sub.Close)
	return func() *lifecyclev1.Event {
		r.t.Helper()
		ctx, cancel := context.WithTimeout(r.t.Context(), 60*time.Second)
		defer cancel()
		for {
			m, err := sub.Next(ctx)
			if err != nil {
				r.t.Fatal(err)
			}
			if m.Kind == stream.KindDelta {
				return m.Value
			}
		}
	}
}

// fullLists returns the number of lists of all pods.
func (r *rig) fullLists() int {
	n := 0
	for _, call := range r.fake.Calls() {
		if call.Method == "ListPodSandbox" && len(call.IDs) == 0 {
			n++
		}
	}
	return n
}

func TestWithEventsTheFullRelistIsRare(t *testing.T) {
	r := start(t, fakecri.New(t))
	r.clock.Step(relist.Period)
	eventually.That(r.t, "a relist each second without events", func() bool { return r.fullLists() >= 2 })
	r.SetEvented(true)
	r.request()
	before := r.fullLists()
	for range 59 {
		r.Heard(r.clock.Now())
		r.clock.Step(5 * relist.Period)
	}
	// A fresh inspection uses the same goroutines; when it has ended, a relist would have begun.
	if _, err := r.Status(t.Context(), "none", boottime.Now()); err != nil {
		t.Fatal(err)
	}
	if got := r.fullLists(); got != before {
		t.Errorf("within 295 s there were %d full relists", got-before)
	}
	r.Heard(r.clock.Now())
	r.clock.Step(5 * time.Second)
	eventually.That(r.t, "a relist after 300 s", func() bool { return r.fullLists() == before+1 })
	r.SetEvented(false)
	eventually.That(r.t, "a relist when events are lost", func() bool { return r.fullLists() == before+2 })
}

func TestARelistLooksOnlyAtWhatHasChanged(t *testing.T) {
	fake := fakecri.New(t)
	var containers []string
	for i := range 100 {
		_, ids := fake.RunPod(fakecri.Pod{UID: fmt.Sprint("uid-", i), Containers: []string{"app"}})
		containers = append(containers, ids["app"])
	}
	fake.Delay("ContainerStatus", "", time.Millisecond)
	r := start(t, fake)
	if got := fake.MaxInFlight("ContainerStatus"); got < 2 || got > 4 {
		t.Errorf("up to %d inspections ran side by side, want some and at most 4", got)
	}
	if all, err := r.List(); err != nil || len(all) != 100 {
		t.Errorf("got %d pods and error %v, want 100", len(all), err)
	}
	fake.ResetCalls()
	fake.Kill(containers[7])
	r.request()
	if fake.Count("ContainerStatus", "") != 1 || fake.Count("ContainerStatus", containers[7]) != 1 {
		t.Errorf("one container of 100 died and %d were inspected, want 1 and Count 1", fake.Count("ContainerStatus", ""))
	}
	fake.ResetCalls()
	r.request()
	if got := len(fake.Calls()); got != 2 {
		t.Errorf("a relist without a change made %d calls, want the two lists", got)
	}
}

// TestARelistThatIsNewEnoughIsNotRepeated asks for relists since a moment: one that began after it is enough, whether
// it has finished or still runs.
func TestARelistThatIsNewEnoughIsNotRepeated(t *testing.T) {
	fake := fakecri.New(t)
	r := start(t, fake)
	r.SetEvented(true)
	r.request()
	fake.ResetCalls()
	begins := boottime.Now()
	for range 2 {
		if _, err := r.Request(t.Context(), begins); err != nil || r.fullLists() != 1 {
			t.Fatalf("%v, and %d lists, want 1", err, r.fullLists())
		}
	}

	gate := fake.Hang("ListPodSandbox", "")
	defer gate.Open()
	begins = boottime.Now()
	ended := make(chan error, 2)
	ask := func() {
		_, err := r.Request(t.Context(), begins)
		ended <- err
	}
	go ask()
	eventually.That(t, "the list runs", func() bool { return gate.Waiting() == 1 })
	go ask()
	within := boottime.Now()
	gate.Open()
	for range 2 {
		if err := <-ended; err != nil || r.fullLists() != 2 {
			t.Fatalf("%v, and %d lists, want 2", err, r.fullLists())
		}
	}
	if _, err := r.Request(t.Context(), within); err != nil || r.fullLists() != 3 {
		t.Errorf("%v, and %d lists, want one that began later", err, r.fullLists())
	}
	if _, err := r.Request(t.Context(), boottime.Now()+time.Hour); !errors.Is(err, relist.ErrFuture) {
		t.Errorf("a moment in the future: %v", err)
	}
}

func TestAFailedListIsReportedAndRetried(t *testing.T) {
	fake := fakecri.New(t)
	r := start(t, fake)
	r.SetEvented(true)
	r.request()
	undo := fake.Fail("ListContainers", "", -1, fmt.Errorf("scripted"))
	ctx, cancel := context.WithCancel(t.Context())
	finished := make(chan error, 1)
	go func() {
		_, err := r.Request(ctx, 0)
		finished <- err
	}()
	eventually.That(r.t, "the failure shows", func() bool { return r.Progress().Err != nil })
	cancel()
	if err := <-finished; err == nil {
		t.Error("a relist that cannot finish was said to have")
	}
	undo()
	eventually.That(r.t, "it is tried again with the next tick, also with events", func() bool {
		r.clock.Step(relist.Period)
		return r.Progress().Err == nil
	})
}

func TestAnEventOfAnUnknownPodCausesOneRelist(t *testing.T) {
	fake := fakecri.New(t)
	_, ids := fake.RunPod(fakecri.Pod{UID: "uid-1", Containers: []string{"app"}})
	r := start(t, fake)
	r.SetEvented(true)
	r.request()
	fake.ResetCalls()
	for range 1000 {
		r.HintAny("unheard-of", r.clock.Now())
		r.HintAny("stale", r.clock.Now().Add(-time.Minute))
	}
	r.clock.Step(relist.Period)
	eventually.That(r.t, "one full relist", func() bool { return r.fullLists() == 1 })
	r.HintAny(ids["app"], r.clock.Now())
	eventually.That(r.t,
		"the pod of a known id is inspected",
		func() bool { return fake.Count("ContainerStatus", ids["app"]) == 1 },
	)
	if got := r.fullLists(); got != 1 {
		t.Errorf("there were %d full relists, want 1", got)
	}
}

// traced returns a traceparent of a trace and a span with this digit.
func traced(digit string) (traceparent string, of trace.SpanContext) {
	id := func(n int) string {
		s := ""
		for range n {
			s += digit
		}
		return s
	}
	traceparent = "00-" + id(32) + "-" + id(16) + "-01"
	return traceparent, trace.SpanContextFromContext(telemetry.WithTraceparent(context.Background(), traceparent))
}

func TestAStartContinuesItsTraceAndADeathIsLinkedToIt(t *testing.T) {
	traceparent, origin := traced("a")
	fake := fakecri.New(t)
	r := start(t, fake)
	next := r.subscribe()
	_, ids := fake.RunPod(fakecri.Pod{
		UID:         "uid-1",
		Name:        "web",
		Containers:  []string{"app"},
		Annotations: map[string]string{telemetry.AnnotationTraceparent: traceparent},
	})
	r.Hint("uid-1", time.Time{})
	up, started := next(), next()
	fake.Kill(ids["app"])
	r.Hint("uid-1", time.Time{})
	died := next()

	spans := map[string]sdktrace.ReadOnlySpan{}
	for _, span := range r.spans.Ended() {
		spans[telemetry.Traceparent(trace.ContextWithSpanContext(context.Background(), span.SpanContext()))] = span
	}
	for what, event := range map[string]*lifecyclev1.Event{"the sandbox": up, "the container's start": started} {
		span := spans[event.GetTraceparent()]
		if span == nil || span.Name() != "lifecycle.event" || span.Parent().SpanID() != origin.SpanID() ||
			span.SpanContext().TraceID() != origin.TraceID() {
			t.Errorf("%s: its span is %v, want one of the trace that is written on it", what, span)
		}
	}
	attributes := map[string]string{}
	for _, kv := range spans[started.GetTraceparent()].Attributes() {
		attributes[string(kv.Key)] = kv.Value.String()
	}
	want := map[string]string{
		"k8s.namespace.name": "default", "k8s.pod.name": "web", "k8s.pod.uid": "uid-1", "quartet.event": "ContainerStarted",
		"k8s.container.name": "app", "container.id": ids["app"], "k8s.container.restart_count": "0",
	}
	if diff := cmp.Diff(want, attributes); diff != "" {
		t.Errorf("attributes of a start (-want +got):\n%s", diff)
	}
	death := spans[died.GetTraceparent()]
	switch {
	case death == nil:
		t.Fatal("a death has no span")
	case death.Parent().IsValid() || death.SpanContext().TraceID() == origin.TraceID():
		t.Error("a death does not begin a trace of its own")
	case len(death.Links()) != 1 || death.Links()[0].SpanContext.SpanID() != origin.SpanID():
		t.Errorf("a death is linked to %v, want the span that created the container", death.Links())
	}
	for _, kv := range death.Attributes() {
		attributes[string(kv.Key)] = kv.Value.String()
	}
	want["quartet.event"], want["process.exit.code"] = "ContainerDied", "137"
	want["k8s.container.status.reason"], want["error.type"] = "Error", "Error"
	if diff := cmp.Diff(want, attributes); diff != "" {
		t.Errorf("attributes of a death (-want +got):\n%s", diff)
	}
	if s := death.Status(); s.Code != otelcodes.Error ||
		!strings.Contains(s.Description, `"app" ended with exit code 137 (Error)`) {
		t.Errorf("the status of a death is %v, want an error that says how", s)
	}
}

// TestTheGoodEndOfAnInitContainerIsPartOfThePodsStart, so that a pod with init containers has one trace until it is
// Ready; a failed one is a crash like that of any container.
func TestTheGoodEndOfAnInitContainerIsPartOfThePodsStart(t *testing.T) {
	for code, same := range map[int32]bool{0: true, 1: false} {
		traceparent, origin := traced("b")
		fake := fakecri.New(t)
		r := start(t, fake)
		next := r.subscribe()
		_, ids := fake.RunPod(fakecri.Pod{UID: "uid-1", Containers: []string{"setup"}, Annotations: map[string]string{
			telemetry.AnnotationTraceparent: traceparent, podlabels.InitContainer: "true",
		}})
		r.Hint("uid-1", time.Time{})
		next()
		next()
		fake.Exit(ids["setup"], code)
		r.Hint("uid-1", time.Time{})
		died := trace.SpanContextFromContext(telemetry.WithTraceparent(context.Background(), next().GetTraceparent()))
		if (died.TraceID() == origin.TraceID()) != same {
			t.Errorf("exit code %d: the end is in the trace of the start: %v, want %v", code, !same, same)
		}
	}
}

func TestAContainerThatEndsWellHasNotFailed(t *testing.T) {
	fake := fakecri.New(t)
	r := start(t, fake)
	next := r.subscribe()
	_, ids := fake.RunPod(fakecri.Pod{UID: "uid-1", Containers: []string{"app"}})
	r.Hint("uid-1", time.Time{})
	next()
	next()
	fake.Exit(ids["app"], 0)
	r.Hint("uid-1", time.Time{})
	next()
	for _, span := range r.spans.Ended() {
		if span.Status().Code == otelcodes.Error {
			t.Errorf("span %s has failed: %s", span.Name(), span.Status().Description)
		}
	}
}

// pleg's own calls belong to no trace, so the runtime makes no spans of them.
func TestCallsOfPLEGHaveNoTrace(t *testing.T) {
	fake := fakecri.New(t)
	r := start(t, fake)
	fake.RunPod(fakecri.Pod{UID: "uid-1", Containers: []string{"app"}})
	traceparent, _ := traced("a")
	if _, err := r.Status(telemetry.WithTraceparent(t.Context(), traceparent), "uid-1", boottime.Now()); err != nil {
		t.Fatal(err)
	}
	for _, call := range fake.Calls() {
		if call.Traceparent != "" {
			t.Errorf("%s carries the traceparent %s, want an empty text", call.Method, call.Traceparent)
		}
	}
}

func TestWhatWasThereBeforeMakesNoSpans(t *testing.T) {
	fake := fakecri.New(t)
	fake.RunPod(fakecri.Pod{UID: "uid-1", Containers: []string{"app"}})
	r := start(t, fake)
	if got := r.spans.Ended(); len(got) != 0 {
		t.Errorf("after a start of pleg %d spans tell of what has happened long before", len(got))
	}
}

func TestAnEventOlderThanTheRecordSaysNothing(t *testing.T) {
	fake := fakecri.New(t)
	_, ids := fake.RunPod(fakecri.Pod{UID: "uid-1", Containers: []string{"app"}})
	r := start(t, fake)
	fake.ResetCalls()
	for range 1000 {
		r.Hint("uid-1", r.clock.Now().Add(-time.Minute))
		r.Hint("long-gone", r.clock.Now().Add(-time.Minute))
	}
	if _, err := r.Status(t.Context(), "other", boottime.Now()); err != nil {
		t.Fatal(err)
	}
	if got := fake.Count("ContainerStatus", "") + fake.Count("ListPodSandbox", "long-gone"); got != 0 {
		t.Errorf("stale events made %d calls, want 0", got)
	}
	r.Hint("uid-1", r.clock.Now())
	eventually.That(r.t, "a new event is heeded", func() bool { return fake.Count("ContainerStatus", ids["app"]) == 1 })
}
