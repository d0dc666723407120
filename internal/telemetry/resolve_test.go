package telemetry_test

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/test/otlpsink"
)

// A node may have no working name server, while the receiver's name is in its hosts file or known to the container
// engine: only that exact name may be looked up.
func TestAReceiverIsFoundWithoutANameServer(t *testing.T) {
	before := net.DefaultResolver
	t.Cleanup(func() { net.DefaultResolver = before })
	var lookups atomic.Int32
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		lookups.Add(1)
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	sink := otlpsink.Start(t)
	endpoint := strings.Replace(sink.Endpoint(), "127.0.0.1", "localhost", 1)
	tel := setUp(t, telemetry.Config{Service: "configmux"}, "OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
	_, span := tel.Tracer.Start(t.Context(), "work")
	span.End()
	if err := tel.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if len(sink.Spans()) != 1 || lookups.Load() != 0 {
		t.Errorf("%d of 1 spans have arrived, and name servers were asked %d times", len(sink.Spans()), lookups.Load())
	}
}
