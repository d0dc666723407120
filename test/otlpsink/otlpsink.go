// Package otlpsink receives traces by OTLP over gRPC inside a test, so that the test can check the parents of spans.
package otlpsink

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
)

// Span is a received span.
type Span struct {
	TraceID, SpanID, ParentID string
	Service, Name             string
	Start, End                time.Time
	// Attributes are the span's attributes as text; numbers and booleans in their usual form.
	Attributes map[string]string
	// Resource has the attributes of the sending process, as text.
	Resource map[string]string
	// Links are the linked spans.
	Links []Link
	// Failed is true when the span's status is an error, and Message is the status message.
	Failed  bool
	Message string
}

// Link names a span, most often of another trace.
type Link struct{ TraceID, SpanID string }

// Sink is a running receiver.
type Sink struct {
	collectorv1.UnimplementedTraceServiceServer
	address string
	mu      sync.Mutex
	spans   []Span
}

// Start receives on a free port until the test ends.
func Start(t testing.TB) *Sink {
	t.Helper()
	return StartAt(t, anyPort)
}

// StartAt receives at an address, host:port, until the test ends.
func StartAt(t testing.TB, address string) *Sink {
	t.Helper()
	s, stop, err := listen(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// anyPort is a free port of the loopback address.
const anyPort = "127.0.0.1:0"

// New receives until stop is called. It fails when the loopback address has no free port.
func New() (s *Sink, stop func() error, err error) { return listen(anyPort) }

func listen(address string) (s *Sink, stop func() error, err error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, nil, fmt.Errorf("listen for traces: %w", err)
	}
	s = &Sink{address: listener.Addr().String()}
	server := grpc.NewServer()
	collectorv1.RegisterTraceServiceServer(server, s)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	return s, func() error {
		server.Stop()
		if err := <-done; err != nil {
			return fmt.Errorf("receive traces: %w", err)
		}
		return nil
	}, nil
}

// Endpoint returns the value for OTEL_EXPORTER_OTLP_ENDPOINT.
func (s *Sink) Endpoint() string { return "http://" + s.address }

// Spans returns the spans that have been received so far.
func (s *Sink) Spans() []Span {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Span(nil), s.spans...)
}

// Export implements the OTLP trace service.
func (s *Sink) Export(
	_ context.Context, req *collectorv1.ExportTraceServiceRequest,
) (*collectorv1.ExportTraceServiceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, resource := range req.GetResourceSpans() {
		process := texts(resource.GetResource().GetAttributes())
		for _, scope := range resource.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				s.spans = append(s.spans, convert(process, span))
			}
		}
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

func convert(process map[string]string, in *tracev1.Span) Span {
	out := Span{
		TraceID: hex.EncodeToString(in.GetTraceId()), SpanID: hex.EncodeToString(in.GetSpanId()),
		ParentID: hex.EncodeToString(in.GetParentSpanId()), Service: process["service.name"],
		Resource: process, Name: in.GetName(), Attributes: texts(in.GetAttributes()),
		Start:  time.Unix(0, int64(in.GetStartTimeUnixNano())),
		End:    time.Unix(0, int64(in.GetEndTimeUnixNano())),
		Failed: in.GetStatus().GetCode() == tracev1.Status_STATUS_CODE_ERROR, Message: in.GetStatus().GetMessage(),
	}
	for _, l := range in.GetLinks() {
		out.Links = append(out.Links, Link{TraceID: hex.EncodeToString(l.GetTraceId()),
			SpanID: hex.EncodeToString(l.GetSpanId())})
	}
	return out
}

func texts(attrs []*commonv1.KeyValue) map[string]string {
	out := make(map[string]string, len(attrs))
	for _, a := range attrs {
		out[a.GetKey()] = text(a.GetValue())
	}
	return out
}

func text(v *commonv1.AnyValue) string {
	switch value := v.GetValue().(type) {
	case *commonv1.AnyValue_StringValue:
		return value.StringValue
	case *commonv1.AnyValue_IntValue:
		return strconv.FormatInt(value.IntValue, 10)
	case *commonv1.AnyValue_BoolValue:
		return strconv.FormatBool(value.BoolValue)
	default:
		return v.String()
	}
}
