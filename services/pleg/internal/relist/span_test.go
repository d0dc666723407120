package relist_test

import (
	"testing"
	"testing/synctest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// TestADeathWhilePLEGWasAwayHasASpanFromItsTimeOn: the span ends when the next pleg has noticed the exit. Exits that
// the previous pleg has sent have no span.
func TestADeathWhilePLEGWasAwayHasASpanFromItsTimeOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, disk, spans := newWorld(), &storage{}, tracetest.NewSpanRecorder()
		tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test")
		w.addSandbox("a")
		w.addContainer("a")
		app := w.containers[0]
		w.advance(app)
		first := startProcess(w, disk, tracer)
		synctest.Wait()
		first.end()
		if got := spans.Ended(); len(got) != 0 {
			t.Errorf("what was there before the first pleg has %d spans", len(got))
		}
		time.Sleep(time.Minute)
		w.advance(app)
		died := time.Now()
		time.Sleep(time.Minute)
		second := startProcess(w, disk, tracer)
		synctest.Wait()
		second.end()
		ended := spans.Ended()
		if len(ended) != 1 {
			t.Fatalf("it has %d spans, want that of the death", len(ended))
		}
		span := ended[0]
		if span.Name() != "lifecycle.event" || !span.StartTime().Equal(died) || !span.EndTime().Equal(died.Add(time.Minute)) {
			t.Errorf("span %s is from %v to %v, want from %v, for a minute", span.Name(), span.StartTime(), span.EndTime(), died)
		}
		attributes := map[string]string{}
		for _, kv := range span.Attributes() {
			attributes[string(kv.Key)] = kv.Value.String()
		}
		if attributes["quartet.event"] != "ContainerDied" || attributes["container.id"] != app.GetId() ||
			attributes["k8s.pod.name"] != "pod-a" {
			t.Errorf("it says %v, want quartet.event %q, container.id %v and k8s.pod.name %q",
				attributes, "ContainerDied", app.GetId(), "pod-a")
		}
	})
}
