package csi_test

import (
	"context"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/csi"
)

// TestCallsAreTimed checks the kubelet's labels.
func TestCallsAreTimed(t *testing.T) {
	registry := prometheus.NewRegistry()
	intercept := csi.NewMetrics(registry).Intercept(driverName)
	for _, err := range []error{nil, status.Error(codes.NotFound, "no such volume")} {
		_ = intercept(t.Context(), "/csi.v1.Node/NodeStageVolume", nil, nil, nil, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
			return err
		})
	}
	families, err := registry.Gather()
	if err != nil || len(families) != 1 || families[0].GetName() != "csi_operations_seconds" {
		t.Fatalf("Gather() = %v, %v, want exactly one and families[0].Name %q", families, err, "csi_operations_seconds")
	}
	got := map[string]bool{}
	for _, one := range families[0].GetMetric() {
		text := ""
		for _, label := range one.GetLabel() {
			text += label.GetName() + "=" + label.GetValue() + " "
		}
		got[text] = true
	}
	for _, code := range []string{"OK", "NotFound"} {
		if want := "driver_name=disks.example.com grpc_status_code=" + code + " method_name=/csi.v1.Node/NodeStageVolume migrated=false "; !got[want] {
			t.Errorf("%q is not in %v", want, got)
		}
	}
}

// spans has the names of ended spans.
func spanNames(recorder *tracetest.SpanRecorder) (names []string) {
	for _, span := range recorder.Ended() {
		names = append(names, span.Name())
	}
	return names
}

// TestCallsHaveSpans also checks that a republication has none, because it is frequent.
func TestCallsHaveSpans(t *testing.T) {
	r := newRig(t, canStage)
	r.stop()
	recorder := tracetest.NewSpanRecorder()
	r.tracer = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test")
	r.start()
	r.cluster.drivers[driverName].Spec.RequiresRepublish = ptr.To(true)
	one := r.request(newPod("u1"), newPV("pv-1", "vol-1"))
	r.mount(one)
	want := []string{"csi.NodeGetCapabilities", "csi.NodeStageVolume", "csi.NodePublishVolume"}
	if got := spanNames(recorder); !slices.Equal(got, want) {
		t.Errorf("spans: %v, want %v", got, want)
	}
	r.mount(one)
	if got := spanNames(recorder); !slices.Equal(got, want) {
		t.Errorf("spans after another publication: %v", got)
	}
	r.unmount(one.Dir)
	r.ends()
}
