package telemetry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/quartet-node/quartet/internal/logging"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/test/otlpsink"
)

// TestTheVariablesWinOverTheConfiguration begins ten traces, and continues ten sampled traces of a caller.
func TestTheVariablesWinOverTheConfiguration(t *testing.T) {
	const (
		caller  = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
		nowhere = "127.0.0.1:1"
		all     = 1_000_000
	)
	own, other := otlpsink.Start(t), otlpsink.Start(t)
	address := strings.TrimPrefix(own.Endpoint(), "http://")
	for name, tc := range map[string]struct {
		export telemetry.Export
		env    []string
		// own and other are the numbers of spans of the two receivers.
		own, other int
	}{
		"configured":            {telemetry.Export{Endpoint: address, SampledPerMillion: all}, nil, 20, 0},
		"callers' traces alone": {telemetry.Export{Endpoint: address}, nil, 10, 0},
		"another endpoint":      {telemetry.Export{Endpoint: address, SampledPerMillion: all}, []string{"OTEL_EXPORTER_OTLP_ENDPOINT", other.Endpoint()}, 0, 20},
		"another sampler":       {telemetry.Export{Endpoint: address}, []string{"OTEL_TRACES_SAMPLER", "always_on"}, 20, 0},
		"turned off":            {telemetry.Export{Endpoint: nowhere, SampledPerMillion: all}, []string{"OTEL_SDK_DISABLED", "true"}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			before, beforeOther := len(own.Spans()), len(other.Spans())
			tel := setUp(t, telemetry.Config{Service: "pleg", Export: &tc.export}, tc.env...)
			for range 10 {
				for _, parent := range []string{"", caller} {
					_, span := tel.Tracer.Start(telemetry.WithTraceparent(context.Background(), parent), "work")
					span.End()
				}
			}
			if err := tel.Shutdown(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got, gotOther := len(own.Spans())-before, len(other.Spans())-beforeOther; got != tc.own || gotOther != tc.other {
				t.Errorf(
					"the configured receiver has %d spans and the variable's %d, want %d and %d",
					got,
					gotOther,
					tc.own,
					tc.other,
				)
			}
		})
	}
}

// TestTheProcessLogsAsItIsConfigured uses Setup.
func TestTheProcessLogsAsItIsConfigured(t *testing.T) {
	var out bytes.Buffer
	tel := setUp(
		t,
		telemetry.Config{
			Service: "pleg",
			Output:  &out,
			Logging: logging.Config{JSON: true, Parts: []logging.Part{{Pattern: "configured_test", Verbosity: 4}}},
		},
		"OTEL_EXPORTER_OTLP_ENDPOINT",
		"",
	)
	ctx := telemetry.WithTraceparent(t.Context(), "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01")
	tel.Logger.DebugContext(ctx, "a detail")
	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatalf("%s: %v", out.String(), err)
	}
	if line["msg"] != "a detail" || line["trace_id"] != "0123456789abcdef0123456789abcdef" {
		t.Errorf("line = %v, want msg %q and trace_id %q", line, "a detail", "0123456789abcdef0123456789abcdef")
	}
}
