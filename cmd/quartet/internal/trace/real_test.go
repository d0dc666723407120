package trace

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	oteltrace "go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/cmd/quartet/internal/show"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/telemetry"
	jaegertest "github.com/quartet-node/quartet/test/jaeger"
)

// Spans of real services in a real Jaeger, read by the command: found by the node's answer, and by a search.
func TestWithARealJaeger(t *testing.T) {
	server := jaegertest.Start(t)
	lost := oteltrace.NewSpanContext(
		oteltrace.SpanContextConfig{
			TraceID:    oteltrace.TraceID{0xaa},
			SpanID:     oteltrace.SpanID{0xbb},
			TraceFlags: oteltrace.FlagsSampled,
		},
	)
	configmux, syncloop := tracerOf(t, server, "configmux"), tracerOf(t, server, "syncloop")
	about := oteltrace.WithAttributes(
		telemetry.Subject{Namespace: "default", Pod: "hello-node-1", UID: "5d3c1b7e", Container: "web"}.Attributes()...)

	ctx, read := configmux.Start(t.Context(), "source.read", oteltrace.WithLinks(oteltrace.Link{SpanContext: lost}))
	read.End()
	ctx, sync := syncloop.Start(ctx, "pod.sync", about)
	_, pull := syncloop.Start(ctx, "image.pull", about)
	pull.SetStatus(codes.Error, "no space left on device")
	pull.End()
	made, create := syncloop.Start(ctx, "container.create", about)
	create.End()
	_, run := syncloop.Start(ctx, "container.start", about)
	run.End()
	_, update := syncloop.Start(made, spanReady, about, oteltrace.WithAttributes(telemetry.AttrReady.Bool(true)))
	update.End()
	sync.End()

	stateDir := servePLEG(t, &lifecyclev1.PodStatus{
		Uid: "5d3c1b7e", Namespace: "default", Name: "hello-node-1",
		Containers: []*lifecyclev1.Container{
			{
				Name:        "web",
				StartedAt:   timestamppb.Now(),
				Annotations: map[string]string{telemetry.AnnotationTraceparent: telemetry.Traceparent(made)},
			},
		},
	})
	for _, args := range [][]string{
		{"hello-node-1", "--state-dir", stateDir},
		// Without a node, Jaeger is searched.
		{"hello-node-1", "--state-dir", t.TempDir()},
	} {
		var out, notes strings.Builder
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		cmd := newCommand(&command{clock: clock.RealClock{}, http: client, locate: show.Locate, style: styleOf})
		cmd.SetArgs(append(args, "--jaeger", server.QueryURL()))
		cmd.SetOut(&out)
		cmd.SetErr(&notes)
		if err := cmd.Execute(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, &notes)
		}
		t.Log("\n" + notes.String() + out.String())
		for _, want := range []string{
			"trace    " + read.SpanContext().TraceID().String(), "Ready    after", "no space left on device", "linked to: trace aa000000000000000000000000000000", "source.read", spanReady,
		} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%v: want %q", args, want)
			}
		}
		if strings.Contains(out.String(), "orphans") {
			t.Errorf("%v: spans are without their parents", args)
		}
	}
	j, err := newJaeger(server.QueryURL(), &http.Client{Transport: &http.Transport{DisableKeepAlives: true}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := j.trace(t.Context(), strings.Repeat("c", 32)); err != errNoTrace { //nolint:errorlint // the very error
		t.Errorf("a trace that is not there: %v", err)
	}
	if _, err := j.trace(t.Context(), "nonsense"); err == nil || !strings.Contains(err.Error(), "it answers") {
		t.Errorf("an id that is none: %v", err)
	}
}

// tracerOf returns a tracer like a service's, which sends its spans one by one.
func tracerOf(t *testing.T, server *jaegertest.Server, service string) oteltrace.Tracer {
	t.Helper()
	exporter, err := otlptracegrpc.New(t.Context(), otlptracegrpc.WithEndpointURL(server.Endpoint()))
	if err != nil {
		t.Fatal(err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter),
		sdktrace.WithResource(resource.NewSchemaless(semconv.ServiceName(service), attribute.String("test", "true"))))
	t.Cleanup(func() {
		if err := provider.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return provider.Tracer("test")
}

type fakePLEG struct {
	lifecyclev1.UnimplementedLifecycleServiceServer
	status *lifecyclev1.PodStatus
}

// ListPodStatuses implements the service.
func (f fakePLEG) ListPodStatuses(
	context.Context,
	*lifecyclev1.ListPodStatusesRequest,
) (*lifecyclev1.ListPodStatusesResponse, error) {
	return &lifecyclev1.ListPodStatusesResponse{Statuses: []*lifecyclev1.PodStatus{f.status}}, nil
}

// servePLEG serves a pod as pleg does until the test ends, and returns the state directory.
func servePLEG(t *testing.T, status *lifecyclev1.PodStatus) string {
	t.Helper()
	// Not t.TempDir: the socket's path would be too long.
	dir, err := os.MkdirTemp("", "q")
	if err != nil {
		t.Fatal(err)
	}
	l, err := layout.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- rpc.Serve(ctx, rpc.Config{
			Address: l.Address(layout.PLEG), Health: rpc.NewHealth(), Logger: slog.New(slog.DiscardHandler),
			Ready:    func() { close(ready) },
			Register: func(s *grpc.Server) { lifecyclev1.RegisterLifecycleServiceServer(s, fakePLEG{status: status}) },
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	select {
	case <-ready:
	case err := <-done:
		done <- err
		t.Fatal(err)
	case <-time.After(60 * time.Second):
		t.Fatal("the fake pleg does not come up")
	}
	return dir
}
