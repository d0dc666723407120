package telemetry_test

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/grpc/metadata"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/test/otlpsink"
)

// process returns the telemetry of a process with its own sampler.
func process(t *testing.T, sink *otlpsink.Sink, service, sampler, arg string) *telemetry.Telemetry {
	t.Helper()
	return setUp(t, telemetry.Config{Service: service}, "OTEL_EXPORTER_OTLP_ENDPOINT", sink.Endpoint(),
		"OTEL_TRACES_SAMPLER", sampler, "OTEL_TRACES_SAMPLER_ARG", arg)
}

// passThrough begins a trace in the first process, and continues it in the others: with the traceparent of a message,
// as between the four processes, and with the metadata of a call, as to the runtime.
func passThrough(first *telemetry.Telemetry, others ...*telemetry.Telemetry) {
	ctx, span := first.Tracer.Start(context.Background(), "begin")
	defer span.End()
	for i, other := range others {
		traceparent := telemetry.Traceparent(ctx)
		if i%2 == 1 {
			sent, _ := metadata.FromOutgoingContext(telemetry.Outgoing(ctx))
			traceparent = sent.Get("traceparent")[0]
		}
		next, span := other.Tracer.Start(
			telemetry.WithTraceparent(context.Background(), traceparent),
			fmt.Sprint("go on ", i),
		)
		span.End()
		ctx = next
	}
}

// spansByTrace ends the processes and counts their spans by trace.
func spansByTrace(t *testing.T, sink *otlpsink.Sink, processes ...*telemetry.Telemetry) map[string]int {
	t.Helper()
	for _, p := range processes {
		if err := p.Shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	traces := map[string]int{}
	for _, s := range sink.Spans() {
		traces[s.TraceID]++
	}
	return traces
}

func TestTheFirstProcessOfATraceDecidesItsSampling(t *testing.T) {
	sink := otlpsink.Start(t)
	first := process(t, sink, "configmux", "always_off", "")
	second := process(t, sink, "syncloop", "parentbased_always_on", "")
	third := process(t, sink, "pleg", "parentbased_always_on", "")
	passThrough(first, second, third, second)
	if traces := spansByTrace(t, sink, first, second, third); len(traces) != 0 {
		t.Errorf("traces of %v spans were sent, want none: the first process keeps none", traces)
	}
}

func TestATraceIsWholeOrAbsent(t *testing.T) {
	for name, downstream := range map[string]string{"the same sampler in all": "traceidratio", "the default in the others": "parentbased_always_on"} {
		t.Run(name, func(t *testing.T) {
			sink := otlpsink.Start(t)
			first := process(t, sink, "configmux", "traceidratio", "0.5")
			second := process(t, sink, "syncloop", downstream, "0.5")
			third := process(t, sink, "pleg", downstream, "0.5")
			const begun = 200
			for range begun {
				passThrough(first, second, third, second)
			}
			traces := spansByTrace(t, sink, first, second, third)
			for id, n := range traces {
				if n != 4 {
					t.Errorf("trace %s has %d spans, want all 4 or none", id, n)
				}
			}
			if len(traces) < begun/4 || len(traces) > begun*3/4 {
				t.Errorf("%d of %d traces were kept, want about half", len(traces), begun)
			}
		})
	}
}
