// Package otlpsink receives traces by OTLP over gRPC inside a test, so that the test can say which span must be the
// child of which.
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
	// Attributes as text; numbers and booleans in their usual form.
	Attributes map[string]string
	// Links are the ids of the linked spans.
	Links []string
	// Failed is true when the span's status is an error.
	Failed bool
}

// Sink is a running receiver.
type Sink struct {
	collectorv1.UnimplementedTraceServiceServer
	address string
	mu      sync.Mutex
	spans   []Span
}

// Start begins to receive, until the test ends.
func Start(t testing.TB) *Sink {
	t.Helper()
	s, stop, err := New()
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

// New begins to receive until stop is called. It fails when there is no free port on the loopback address.
func New() (s *Sink, stop func() error, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
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

// Endpoint is the value for OTEL_EXPORTER_OTLP_ENDPOINT.
func (s *Sink) Endpoint() string { return "http://" + s.address }

// Spans returns what has been received so far.
func (s *Sink) Spans() []Span {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Span(nil), s.spans...)
}

// Export implements the OTLP trace service.
func (s *Sink) Export(_ context.Context, req *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, resource := range req.GetResourceSpans() {
		service := ""
		for _, a := range resource.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				service = a.GetValue().GetStringValue()
			}
		}
		for _, scope := range resource.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				s.spans = append(s.spans, convert(service, span))
			}
		}
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

func convert(service string, in *tracev1.Span) Span {
	out := Span{
		TraceID: hex.EncodeToString(in.GetTraceId()), SpanID: hex.EncodeToString(in.GetSpanId()), ParentID: hex.EncodeToString(in.GetParentSpanId()),
		Service: service, Name: in.GetName(), Attributes: map[string]string{},
		Start:  time.Unix(0, int64(in.GetStartTimeUnixNano())),
		End:    time.Unix(0, int64(in.GetEndTimeUnixNano())),
		Failed: in.GetStatus().GetCode() == tracev1.Status_STATUS_CODE_ERROR,
	}
	for _, a := range in.GetAttributes() {
		out.Attributes[a.GetKey()] = text(a.GetValue())
	}
	for _, l := range in.GetLinks() {
		out.Links = append(out.Links, hex.EncodeToString(l.GetSpanId()))
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
