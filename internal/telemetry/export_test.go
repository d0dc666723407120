package telemetry_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/test/logbuffer"
	"github.com/quartet-node/quartet/test/otlpsink"
)

// hang listens, accepts connections, and never answers.
func hang(t *testing.T) (endpoint string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var conns []net.Conn
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // the test has ended
			}
			conns = append(conns, conn)
		}
	}()
	t.Cleanup(func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
		<-done
		for _, conn := range conns {
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return "http://ann:hunter2@" + listener.Addr().String()
}

func TestAnEndpointThatHangsSlowsNothingDown(t *testing.T) {
	var out logbuffer.Buffer
	tel := setUp(t, telemetry.Config{Service: "pleg", Output: &out}, "OTEL_EXPORTER_OTLP_ENDPOINT", hang(t),
		"OTEL_EXPORTER_OTLP_TIMEOUT", "100", "OTEL_BSP_MAX_QUEUE_SIZE", "64", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "8")
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		if err := tel.Shutdown(ctx); err == nil {
			t.Error("nothing is said of the traces that are lost")
		}
	}()
	spans := 0
	for end := time.Now().Add(time.Second); time.Now().Before(end) || !strings.Contains(out.String(), "traces are lost"); {
		if time.Now().After(end.Add(30 * time.Second)) {
			t.Fatalf("nothing is said of the endpoint that hangs:\n%s", out.String())
		}
		_, span := telemetry.Start(t.Context(), tel.Tracer, "work", telemetry.Subject{Pod: "web"})
		span.End()
		spans++
	}
	// If spans blocked until they are exported, there would be 8 in each tenth of a second, and the 64 in the queue.
	if spans < 1000 {
		t.Errorf("within a second there were %d spans", spans)
	}
	output := out.String()
	if n := strings.Count(output, "traces are lost"); n != 1 {
		t.Errorf("it is said %d times within a second, want once:\n%s", n, output)
	}
	for _, want := range []string{"endpoint=http://…@127.0.0.1:", "gRPC", "4317"} {
		if !strings.Contains(output, want) {
			t.Errorf("the log does not say %q:\n%s", want, output)
		}
	}
	if strings.Contains(output, "hunter2") {
		t.Errorf("the password is in the log:\n%s\nwant text without %q", output, "hunter2")
	}
}

func TestAnEndpointThatHangsDoesNotDelayTheEnd(t *testing.T) {
	var out logbuffer.Buffer
	tel := setUp(
		t,
		telemetry.Config{Service: "pleg", Output: &out},
		"OTEL_EXPORTER_OTLP_ENDPOINT",
		hang(t),
		"OTEL_EXPORTER_OTLP_TIMEOUT",
		"600000",
	)
	for range 1000 {
		_, span := tel.Tracer.Start(t.Context(), "work")
		span.End()
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	begun := time.Now()
	if err := tel.Shutdown(ctx); err == nil {
		t.Error("nothing is said of the traces that are lost")
	}
	if took := time.Since(begun); took > time.Minute {
		t.Errorf("the end took %v, want the second that it was given", took)
	}
}

func TestTracesGoOnWhenTheEndpointIsBack(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	var out logbuffer.Buffer
	tel := setUp(
		t,
		telemetry.Config{Service: "pleg", Output: &out},
		"OTEL_EXPORTER_OTLP_ENDPOINT",
		"http://"+address,
		"OTEL_EXPORTER_OTLP_TIMEOUT",
		"200",
	)
	until := func(text string) {
		t.Helper()
		for end := time.Now().Add(60 * time.Second); !strings.Contains(out.String(), text); <-time.After(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%q is not said:\n%s", text, out.String())
			}
			_, span := tel.Tracer.Start(t.Context(), "work")
			span.End()
		}
	}
	until("traces are lost")
	sink := otlpsink.StartAt(t, address)
	until("traces are accepted again")
	if err := tel.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if len(sink.Spans()) == 0 {
		t.Error("no span has arrived")
	}
}
