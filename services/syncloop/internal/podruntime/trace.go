package podruntime

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/internal/telemetry"
)

// tracedRuntime makes the CRI calls that this package needs, each in a span of its own. Ending or removing what is gone
// already is no error.
type tracedRuntime struct {
	service internalapi.RuntimeService
	tracer  trace.Tracer
}

func (m *Manager) instrument(service internalapi.RuntimeService) *tracedRuntime {
	return &tracedRuntime{service: service, tracer: m.cfg.Tracer}
}

// phase begins the span of a phase of work on a pod. End must be called with the phase's error.
func (m *Manager) phase(ctx context.Context, name string, pod *v1.Pod, attrs ...attribute.KeyValue) (_ context.Context, end func(error)) {
	attrs = append(attrs, attribute.String(telemetry.KeyPod, pod.Namespace+"/"+pod.Name), attribute.String(telemetry.KeyPodUID, string(pod.UID)))
	ctx, span := m.cfg.Tracer.Start(ctx, name, trace.WithAttributes(attrs...))
	return ctx, func(err error) { endSpan(span, err) }
}

func endSpan(span trace.Span, err error) {
	if err != nil {
		span.RecordError(err)
		span.SetStatus(otelcodes.Error, err.Error())
	}
	span.End()
}

// call makes one CRI call in a span.
func (t *tracedRuntime) call(ctx context.Context, method string, do func(context.Context) error, attrs ...attribute.KeyValue) error {
	ctx, span := t.tracer.Start(ctx, "cri."+method, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attrs...))
	err := do(cri.Quiet(ctx))
	endSpan(span, err)
	return err
}

func sandboxID(id string) attribute.KeyValue   { return attribute.String(telemetry.KeySandboxID, id) }
func containerID(id string) attribute.KeyValue { return attribute.String(telemetry.KeyContainerID, id) }

func ignoreGone(err error) error {
	if status.Code(err) == codes.NotFound {
		return nil
	}
	return err
}

func (t *tracedRuntime) runPodSandbox(ctx context.Context, config *runtimeapi.PodSandboxConfig) (id string, err error) {
	err = t.call(ctx, "RunPodSandbox", func(ctx context.Context) (err error) {
		id, err = t.service.RunPodSandbox(ctx, config, "")
		return err
	})
	return id, err
}

func (t *tracedRuntime) podSandboxStatus(ctx context.Context, id string) (s *runtimeapi.PodSandboxStatus, err error) {
	err = t.call(ctx, "PodSandboxStatus", func(ctx context.Context) error {
		response, err := t.service.PodSandboxStatus(ctx, id, false)
		s = response.GetStatus()
		return err
	}, sandboxID(id))
	return s, err
}

func (t *tracedRuntime) stopPodSandbox(ctx context.Context, id string) error {
	return t.call(ctx, "StopPodSandbox", func(ctx context.Context) error {
		return ignoreGone(t.service.StopPodSandbox(ctx, id))
	}, sandboxID(id))
}

func (t *tracedRuntime) removePodSandbox(ctx context.Context, id string) error {
	return t.call(ctx, "RemovePodSandbox", func(ctx context.Context) error {
		return ignoreGone(t.service.RemovePodSandbox(ctx, id))
	}, sandboxID(id))
}

func (t *tracedRuntime) createContainer(ctx context.Context, sandbox string, config *runtimeapi.ContainerConfig, sandboxConfig *runtimeapi.PodSandboxConfig) (id string, err error) {
	err = t.call(ctx, "CreateContainer", func(ctx context.Context) (err error) {
		id, err = t.service.CreateContainer(ctx, sandbox, config, sandboxConfig)
		return err
	}, sandboxID(sandbox))
	return id, err
}

func (t *tracedRuntime) startContainer(ctx context.Context, id string) error {
	return t.call(ctx, "StartContainer", func(ctx context.Context) error {
		return t.service.StartContainer(ctx, id)
	}, containerID(id))
}

func (t *tracedRuntime) stopContainer(ctx context.Context, id string, graceSeconds int64) error {
	return t.call(ctx, "StopContainer", func(ctx context.Context) error {
		return ignoreGone(t.service.StopContainer(ctx, id, graceSeconds))
	}, containerID(id), attribute.Int64(telemetry.KeyGracePeriod, graceSeconds))
}

func (t *tracedRuntime) removeContainer(ctx context.Context, id string) error {
	return t.call(ctx, "RemoveContainer", func(ctx context.Context) error {
		return ignoreGone(t.service.RemoveContainer(ctx, id))
	}, containerID(id))
}
