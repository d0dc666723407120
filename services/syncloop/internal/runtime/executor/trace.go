package executor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	utilexec "k8s.io/utils/exec"

	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/internal/telemetry"
)

// tracedRuntime makes the CRI calls of this package, each in its own span. Stopping or removing something that does not
// exist is no error.
type tracedRuntime struct {
	service internalapi.RuntimeService
	calls   cri.Caller
	// wrote is true after a call that may have changed something, even if it failed.
	wrote atomic.Bool
}

func (m *Manager) instrument(service internalapi.RuntimeService) *tracedRuntime {
	return &tracedRuntime{service: service, calls: m.calls}
}

// phase starts the span of a phase of work on a pod. The caller ends it by telemetry.End with the phase's error.
func (m *Manager) phase(
	ctx context.Context,
	name string,
	pod *v1.Pod,
	about telemetry.Subject,
) (context.Context, trace.Span) {
	about.Namespace, about.Pod, about.UID = pod.Namespace, pod.Name, string(pod.UID)
	return telemetry.Start(ctx, m.cfg.Tracer, name, about)
}

// end makes a call that stops or removes something. It succeeds if the object does not exist.
func (t *tracedRuntime) end(
	ctx context.Context,
	method string,
	about telemetry.Subject,
	do func(context.Context) error,
) error {
	t.wrote.Store(true)
	err := t.calls.Call(ctx, method, about, isNotFound, do)
	if isNotFound(err) {
		return nil
	}
	return err
}

func isNotFound(err error) bool { return status.Code(err) == codes.NotFound }

func (t *tracedRuntime) status(ctx context.Context) (s *runtimeapi.StatusResponse, err error) {
	const method = runtimeapi.RuntimeService_Status_FullMethodName
	err = t.calls.Call(ctx, method, telemetry.Subject{}, nil, func(ctx context.Context) (err error) {
		s, err = t.service.Status(ctx, false)
		return err
	})
	return s, err
}

func (t *tracedRuntime) runPodSandbox(
	ctx context.Context,
	config *runtimeapi.PodSandboxConfig,
	handler string,
) (id string, err error) {
	t.wrote.Store(true)
	const method = runtimeapi.RuntimeService_RunPodSandbox_FullMethodName
	err = t.calls.Call(ctx, method, aboutSandbox(config), nil, func(ctx context.Context) (err error) {
		id, err = t.service.RunPodSandbox(ctx, config, handler)
		return err
	})
	return id, err
}

func (t *tracedRuntime) podSandboxStatus(ctx context.Context, id string) (s *runtimeapi.PodSandboxStatus, err error) {
	const method = runtimeapi.RuntimeService_PodSandboxStatus_FullMethodName
	err = t.calls.Call(ctx, method, telemetry.Subject{SandboxID: id}, nil, func(ctx context.Context) error {
		response, err := t.service.PodSandboxStatus(ctx, id, false)
		s = response.GetStatus()
		return err
	})
	return s, err
}

func (t *tracedRuntime) stopPodSandbox(ctx context.Context, id string) error {
	const method = runtimeapi.RuntimeService_StopPodSandbox_FullMethodName
	return t.end(ctx, method, telemetry.Subject{SandboxID: id}, func(ctx context.Context) error {
		return t.service.StopPodSandbox(ctx, id)
	})
}

func (t *tracedRuntime) removePodSandbox(ctx context.Context, id string) error {
	const method = runtimeapi.RuntimeService_RemovePodSandbox_FullMethodName
	return t.end(ctx, method, telemetry.Subject{SandboxID: id}, func(ctx context.Context) error {
		return t.service.RemovePodSandbox(ctx, id)
	})
}

func (t *tracedRuntime) createContainer(
	ctx context.Context,
	sandbox string,
	config *runtimeapi.ContainerConfig,
	sandboxConfig *runtimeapi.PodSandboxConfig,
) (id string, err error) {
	about := aboutSandbox(sandboxConfig)
	about.SandboxID, about.Container = sandbox, config.GetMetadata().GetName()
	about.Image = config.GetImage().GetUserSpecifiedImage()
	t.wrote.Store(true)
	const method = runtimeapi.RuntimeService_CreateContainer_FullMethodName
	err = t.calls.Call(ctx, method, about, nil, func(ctx context.Context) (err error) {
		id, err = t.service.CreateContainer(ctx, sandbox, config, sandboxConfig)
		return err
	})
	return id, err
}

func (t *tracedRuntime) startContainer(ctx context.Context, id string) error {
	t.wrote.Store(true)
	const method = runtimeapi.RuntimeService_StartContainer_FullMethodName
	return t.calls.Call(ctx, method, telemetry.Subject{ContainerID: id}, nil, func(ctx context.Context) error {
		return t.service.StartContainer(ctx, id)
	})
}

func (t *tracedRuntime) stopContainer(ctx context.Context, id string, graceSeconds int64) error {
	const method = runtimeapi.RuntimeService_StopContainer_FullMethodName
	return t.end(ctx, method, telemetry.Subject{ContainerID: id}, func(ctx context.Context) error {
		if span := trace.SpanFromContext(ctx); span.IsRecording() {
			span.SetAttributes(telemetry.AttrGracePeriod.Int64(graceSeconds))
		}
		return t.service.StopContainer(ctx, id, graceSeconds)
	})
}

func (t *tracedRuntime) removeContainer(ctx context.Context, id string) error {
	const method = runtimeapi.RuntimeService_RemoveContainer_FullMethodName
	return t.end(ctx, method, telemetry.Subject{ContainerID: id}, func(ctx context.Context) error {
		return t.service.RemoveContainer(ctx, id)
	})
}

func (t *tracedRuntime) updateContainer(
	ctx context.Context,
	id string,
	resources *runtimeapi.LinuxContainerResources,
) error {
	t.wrote.Store(true)
	const method = runtimeapi.RuntimeService_UpdateContainerResources_FullMethodName
	return t.calls.Call(ctx, method, telemetry.Subject{ContainerID: id}, nil, func(ctx context.Context) error {
		return t.service.UpdateContainerResources(ctx, id, &runtimeapi.ContainerResources{Linux: resources})
	})
}

// updatePodSandbox notifies the runtime of the coming limits of a pod's cgroup. It succeeds if the runtime does not
// implement the call.
func (t *tracedRuntime) updatePodSandbox(
	ctx context.Context,
	request *runtimeapi.UpdatePodSandboxResourcesRequest,
) error {
	about := telemetry.Subject{SandboxID: request.GetPodSandboxId()}
	const method = runtimeapi.RuntimeService_UpdatePodSandboxResources_FullMethodName
	err := t.calls.Call(ctx, method, about, isUnimplemented, func(ctx context.Context) error {
		_, err := t.service.UpdatePodSandboxResources(ctx, request)
		return err
	})
	if isUnimplemented(err) {
		return nil
	}
	return err
}

// isUnimplemented reports whether the runtime does not implement a call. containerd 2.2 returns Unknown instead of
// Unimplemented.
func isUnimplemented(err error) bool {
	code := status.Code(err)
	return code == codes.Unimplemented || code == codes.Unknown && strings.Contains(err.Error(), "not implemented")
}

// memoryUsage returns the memory usage of a container in bytes; nil if the runtime does not report it.
func (t *tracedRuntime) memoryUsage(ctx context.Context, id string) (usage *runtimeapi.UInt64Value, err error) {
	const method = runtimeapi.RuntimeService_ContainerStats_FullMethodName
	err = t.calls.Call(ctx, method, telemetry.Subject{ContainerID: id}, nil, func(ctx context.Context) error {
		stats, err := t.service.ContainerStats(ctx, id)
		usage = stats.GetMemory().GetUsageBytes()
		return err
	})
	return usage, err
}

// execHook runs a command in a container until it ends. The error contains neither the command nor its output, because
// both may hold secrets.
func (t *tracedRuntime) execHook(ctx context.Context, id string, command []string) error {
	const method = runtimeapi.RuntimeService_ExecSync_FullMethodName
	return t.calls.Call(ctx, method, telemetry.Subject{ContainerID: id}, nil, func(ctx context.Context) error {
		_, _, err := t.service.ExecSync(ctx, id, command, 0) // no timeout except that of ctx
		if exit := (utilexec.CodeExitError{}); errors.As(err, &exit) {
			return fmt.Errorf("the command ended with exit code %d", exit.ExitStatus())
		}
		return err
	})
}

// aboutSandbox returns the pod of a sandbox's configuration.
func aboutSandbox(config *runtimeapi.PodSandboxConfig) telemetry.Subject {
	meta := config.GetMetadata()
	return telemetry.Subject{Namespace: meta.GetNamespace(), Pod: meta.GetName(), UID: meta.GetUid()}
}
