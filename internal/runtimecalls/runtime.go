package runtimecalls

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/internal/boottime"
)

// Runtime returns a runtime service whose calls a Tap takes. Close is no call of the runtime. Events of a watch are
// passed by Tap.Event, so GetContainerEvents is not taken.
func Runtime(of internalapi.RuntimeService, tap *Tap) internalapi.RuntimeService {
	if tap == nil {
		return of
	}
	return service{RuntimeService: of, tap: tap}
}

// service takes each call of a runtime service.
type service struct {
	internalapi.RuntimeService

	tap *Tap
}

// tapped makes a call that returns a value; answer makes it a message.
func tapped[A any](
	tap *Tap, method string, request func() proto.Message, call func() (A, error), answer func(A) proto.Message,
) (A, error) {
	if !tap.Watched() {
		return call()
	}
	began := start{at: time.Now(), boot: boottime.Now()}
	value, err := call()
	began.took = time.Since(began.at)
	var response proto.Message
	if err == nil {
		response = answer(value)
	}
	tap.put(method, request(), response, err, began)
	return value, err
}

// tappedOnly makes a call that returns nothing but an error.
func tappedOnly(tap *Tap, method string, answer proto.Message, request func() proto.Message, call func() error) error {
	_, err := tapped(tap, method, request,
		func() (struct{}, error) { return struct{}{}, call() },
		func(struct{}) proto.Message { return answer })
	return err
}

// Version implements the CRI.
func (r service) Version(ctx context.Context, apiVersion string) (*runtimeapi.VersionResponse, error) {
	return tapped(r.tap, "Version",
		func() proto.Message { return &runtimeapi.VersionRequest{Version: apiVersion} },
		func() (*runtimeapi.VersionResponse, error) { return r.RuntimeService.Version(ctx, apiVersion) },
		func(v *runtimeapi.VersionResponse) proto.Message { return v })
}

// Status implements the CRI.
func (r service) Status(ctx context.Context, verbose bool) (*runtimeapi.StatusResponse, error) {
	return tapped(r.tap, "Status",
		func() proto.Message { return &runtimeapi.StatusRequest{Verbose: verbose} },
		func() (*runtimeapi.StatusResponse, error) { return r.RuntimeService.Status(ctx, verbose) },
		func(v *runtimeapi.StatusResponse) proto.Message { return v })
}

// RuntimeConfig implements the CRI.
func (r service) RuntimeConfig(ctx context.Context) (*runtimeapi.RuntimeConfigResponse, error) {
	return tapped(r.tap, "RuntimeConfig",
		func() proto.Message { return &runtimeapi.RuntimeConfigRequest{} },
		func() (*runtimeapi.RuntimeConfigResponse, error) { return r.RuntimeService.RuntimeConfig(ctx) },
		func(v *runtimeapi.RuntimeConfigResponse) proto.Message { return v })
}

// UpdateRuntimeConfig implements the CRI.
func (r service) UpdateRuntimeConfig(ctx context.Context, config *runtimeapi.RuntimeConfig) error {
	return tappedOnly(r.tap, "UpdateRuntimeConfig", &runtimeapi.UpdateRuntimeConfigResponse{},
		func() proto.Message { return &runtimeapi.UpdateRuntimeConfigRequest{RuntimeConfig: config} },
		func() error { return r.RuntimeService.UpdateRuntimeConfig(ctx, config) })
}

// RunPodSandbox implements the CRI.
func (r service) RunPodSandbox(
	ctx context.Context, config *runtimeapi.PodSandboxConfig, handler string,
) (string, error) {
	return tapped(r.tap, "RunPodSandbox",
		func() proto.Message { return &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: handler} },
		func() (string, error) { return r.RuntimeService.RunPodSandbox(ctx, config, handler) },
		func(v string) proto.Message { return &runtimeapi.RunPodSandboxResponse{PodSandboxId: v} })
}

// StopPodSandbox implements the CRI.
func (r service) StopPodSandbox(ctx context.Context, id string) error {
	return tappedOnly(r.tap, "StopPodSandbox", &runtimeapi.StopPodSandboxResponse{},
		func() proto.Message { return &runtimeapi.StopPodSandboxRequest{PodSandboxId: id} },
		func() error { return r.RuntimeService.StopPodSandbox(ctx, id) })
}

// RemovePodSandbox implements the CRI.
func (r service) RemovePodSandbox(ctx context.Context, id string) error {
	return tappedOnly(r.tap, "RemovePodSandbox", &runtimeapi.RemovePodSandboxResponse{},
		func() proto.Message { return &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id} },
		func() error { return r.RuntimeService.RemovePodSandbox(ctx, id) })
}

// PodSandboxStatus implements the CRI.
func (r service) PodSandboxStatus(
	ctx context.Context, id string, verbose bool,
) (*runtimeapi.PodSandboxStatusResponse, error) {
	return tapped(r.tap, "PodSandboxStatus",
		func() proto.Message { return &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id, Verbose: verbose} },
		func() (*runtimeapi.PodSandboxStatusResponse, error) {
			return r.RuntimeService.PodSandboxStatus(ctx, id, verbose)
		},
		func(v *runtimeapi.PodSandboxStatusResponse) proto.Message { return v })
}

// ListPodSandbox implements the CRI.
func (r service) ListPodSandbox(
	ctx context.Context, filter *runtimeapi.PodSandboxFilter,
) ([]*runtimeapi.PodSandbox, error) {
	return tapped(r.tap, "ListPodSandbox",
		func() proto.Message { return &runtimeapi.ListPodSandboxRequest{Filter: filter} },
		func() ([]*runtimeapi.PodSandbox, error) { return r.RuntimeService.ListPodSandbox(ctx, filter) },
		func(v []*runtimeapi.PodSandbox) proto.Message { return &runtimeapi.ListPodSandboxResponse{Items: v} })
}

// UpdatePodSandboxResources implements the CRI.
func (r service) UpdatePodSandboxResources(
	ctx context.Context, request *runtimeapi.UpdatePodSandboxResourcesRequest,
) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	return tapped(r.tap, "UpdatePodSandboxResources",
		func() proto.Message { return request },
		func() (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
			return r.RuntimeService.UpdatePodSandboxResources(ctx, request)
		},
		func(v *runtimeapi.UpdatePodSandboxResourcesResponse) proto.Message { return v })
}

// CheckpointPod implements the CRI.
func (r service) CheckpointPod(ctx context.Context, request *runtimeapi.CheckpointPodRequest) error {
	return tappedOnly(r.tap, "CheckpointPod", &runtimeapi.CheckpointPodResponse{},
		func() proto.Message { return request },
		func() error { return r.RuntimeService.CheckpointPod(ctx, request) })
}

// RestorePod implements the CRI.
func (r service) RestorePod(
	ctx context.Context, request *runtimeapi.RestorePodRequest,
) (*runtimeapi.RestorePodResponse, error) {
	return tapped(r.tap, "RestorePod",
		func() proto.Message { return request },
		func() (*runtimeapi.RestorePodResponse, error) { return r.RuntimeService.RestorePod(ctx, request) },
		func(v *runtimeapi.RestorePodResponse) proto.Message { return v })
}

// PortForward implements the CRI.
func (r service) PortForward(
	ctx context.Context, request *runtimeapi.PortForwardRequest,
) (*runtimeapi.PortForwardResponse, error) {
	return tapped(r.tap, "PortForward",
		func() proto.Message { return request },
		func() (*runtimeapi.PortForwardResponse, error) { return r.RuntimeService.PortForward(ctx, request) },
		func(v *runtimeapi.PortForwardResponse) proto.Message { return v })
}

// CreateContainer implements the CRI.
func (r service) CreateContainer(
	ctx context.Context, id string, config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig,
) (string, error) {
	return tapped(r.tap, "CreateContainer",
		func() proto.Message {
			return &runtimeapi.CreateContainerRequest{PodSandboxId: id, Config: config, SandboxConfig: sandbox}
		},
		func() (string, error) { return r.RuntimeService.CreateContainer(ctx, id, config, sandbox) },
		func(v string) proto.Message { return &runtimeapi.CreateContainerResponse{ContainerId: v} })
}

// StartContainer implements the CRI.
func (r service) StartContainer(ctx context.Context, id string) error {
	return tappedOnly(r.tap, "StartContainer", &runtimeapi.StartContainerResponse{},
		func() proto.Message { return &runtimeapi.StartContainerRequest{ContainerId: id} },
		func() error { return r.RuntimeService.StartContainer(ctx, id) })
}

// StopContainer implements the CRI.
func (r service) StopContainer(ctx context.Context, id string, timeout int64) error {
	return tappedOnly(r.tap, "StopContainer", &runtimeapi.StopContainerResponse{},
		func() proto.Message { return &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: timeout} },
		func() error { return r.RuntimeService.StopContainer(ctx, id, timeout) })
}

// RemoveContainer implements the CRI.
func (r service) RemoveContainer(ctx context.Context, id string) error {
	return tappedOnly(r.tap, "RemoveContainer", &runtimeapi.RemoveContainerResponse{},
		func() proto.Message { return &runtimeapi.RemoveContainerRequest{ContainerId: id} },
		func() error { return r.RuntimeService.RemoveContainer(ctx, id) })
}

// ListContainers implements the CRI.
func (r service) ListContainers(
	ctx context.Context, filter *runtimeapi.ContainerFilter,
) ([]*runtimeapi.Container, error) {
	return tapped(r.tap, "ListContainers",
		func() proto.Message { return &runtimeapi.ListContainersRequest{Filter: filter} },
		func() ([]*runtimeapi.Container, error) { return r.RuntimeService.ListContainers(ctx, filter) },
		func(v []*runtimeapi.Container) proto.Message {
			return &runtimeapi.ListContainersResponse{Containers: v}
		})
}

// ContainerStatus implements the CRI.
func (r service) ContainerStatus(
	ctx context.Context, id string, verbose bool,
) (*runtimeapi.ContainerStatusResponse, error) {
	return tapped(r.tap, "ContainerStatus",
		func() proto.Message { return &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: verbose} },
		func() (*runtimeapi.ContainerStatusResponse, error) {
			return r.RuntimeService.ContainerStatus(ctx, id, verbose)
		},
		func(v *runtimeapi.ContainerStatusResponse) proto.Message { return v })
}

// UpdateContainerResources implements the CRI.
func (r service) UpdateContainerResources(
	ctx context.Context, id string, resources *runtimeapi.ContainerResources,
) error {
	return tappedOnly(r.tap, "UpdateContainerResources", &runtimeapi.UpdateContainerResourcesResponse{},
		func() proto.Message {
			return &runtimeapi.UpdateContainerResourcesRequest{
				ContainerId: id, Linux: resources.GetLinux(), Windows: resources.GetWindows(),
			}
		},
		func() error { return r.RuntimeService.UpdateContainerResources(ctx, id, resources) })
}

// Exec implements the CRI.
func (r service) Exec(ctx context.Context, request *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return tapped(r.tap, "Exec",
		func() proto.Message { return request },
		func() (*runtimeapi.ExecResponse, error) { return r.RuntimeService.Exec(ctx, request) },
		func(v *runtimeapi.ExecResponse) proto.Message { return v })
}

// Attach implements the CRI.
func (r service) Attach(ctx context.Context, request *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return tapped(r.tap, "Attach",
		func() proto.Message { return request },
		func() (*runtimeapi.AttachResponse, error) { return r.RuntimeService.Attach(ctx, request) },
		func(v *runtimeapi.AttachResponse) proto.Message { return v })
}

// ReopenContainerLog implements the CRI.
func (r service) ReopenContainerLog(ctx context.Context, id string) error {
	return tappedOnly(r.tap, "ReopenContainerLog", &runtimeapi.ReopenContainerLogResponse{},
		func() proto.Message { return &runtimeapi.ReopenContainerLogRequest{ContainerId: id} },
		func() error { return r.RuntimeService.ReopenContainerLog(ctx, id) })
}

// CheckpointContainer implements the CRI.
func (r service) CheckpointContainer(ctx context.Context, request *runtimeapi.CheckpointContainerRequest) error {
	return tappedOnly(r.tap, "CheckpointContainer", &runtimeapi.CheckpointContainerResponse{},
		func() proto.Message { return request },
		func() error { return r.RuntimeService.CheckpointContainer(ctx, request) })
}

// ExecSync implements the CRI.
func (r service) ExecSync(
	ctx context.Context, id string, cmd []string, timeout time.Duration,
) (stdout, stderr []byte, err error) {
	answer, err := tapped(r.tap, "ExecSync",
		func() proto.Message {
			return &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: cmd, Timeout: int64(timeout.Seconds())}
		},
		func() (*runtimeapi.ExecSyncResponse, error) {
			out, failures, err := r.RuntimeService.ExecSync(ctx, id, cmd, timeout)
			return &runtimeapi.ExecSyncResponse{Stdout: out, Stderr: failures}, err
		},
		func(v *runtimeapi.ExecSyncResponse) proto.Message { return v })
	return answer.GetStdout(), answer.GetStderr(), err
}
