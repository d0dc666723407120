package rpc_test

import (
	"context"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/test/otlpsink"
)

// heard is a service that records its caller's trace context.
type received struct {
	nodev1.UnimplementedNodeServiceServer
	traceparents chan string
}

func (h received) GetNode(ctx context.Context, _ *nodev1.GetNodeRequest) (*nodev1.GetNodeResponse, error) {
	received, _ := metadata.FromIncomingContext(ctx)
	if values := received.Get("traceparent"); len(values) > 0 {
		h.traceparents <- values[0]
	} else {
		h.traceparents <- ""
	}
	return &nodev1.GetNodeResponse{}, nil
}

// ask makes one call within a trace, with telemetry from the process's environment.
func ask(t testing.TB, tel *telemetry.Telemetry) (traceparent string) {
	t.Helper()
	address := "unix://" + filepath.Join(t.TempDir(), "s.sock")
	service := received{traceparents: make(chan string, 1)}
	ctx, stop := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- rpc.Serve(ctx, rpc.Config{
			Address: address, Health: rpc.NewHealth(), Ready: func() { close(ready) },
			Register: func(s *grpc.Server) { nodev1.RegisterNodeServiceServer(s, service) },
		})
	}()
	<-ready
	conn, err := rpc.Dial(address)
	if err != nil {
		t.Fatal(err)
	}
	traced, span := tel.Tracer.Start(
		telemetry.WithTraceparent(ctx, "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"),
		"pod.sync",
	)
	if _, err := nodev1.NewNodeServiceClient(conn).GetNode(traced, &nodev1.GetNodeRequest{}); err != nil {
		t.Fatal(err)
	}
	span.End()
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	return <-service.traceparents
}

func TestACallWithinATraceIsTwoSpansOfIt(t *testing.T) {
	sink := otlpsink.Start(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.Endpoint())
	tel, err := telemetry.Setup(t.Context(), telemetry.Config{Service: "syncloop"})
	if err != nil {
		t.Fatal(err)
	}
	if ask(t, tel) == "" {
		t.Error("the server is not told of the trace")
	}
	if err := tel.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	spans := map[string]int{}
	for _, s := range sink.Spans() {
		spans[s.Name]++
	}
	if spans["quartet.node.v1.NodeService/GetNode"] != 2 {
		t.Errorf("spans are %v, want the client's and the server's of the call", spans)
	}
}

func TestWithoutAnEndpointCallsAreNotInstrumented(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	tel, err := telemetry.Setup(t.Context(), telemetry.Config{Service: "syncloop"})
	if err != nil {
		t.Fatal(err)
	}
	if got := ask(t, tel); got != "" {
		t.Errorf("the call carries %s although nothing is traced", got)
	}
}
