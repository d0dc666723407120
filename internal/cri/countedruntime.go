package cri

import (
	"context"
	"time"

	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// countedRuntime counts each call of a runtime service. Close is not counted because it does not call the runtime.
type countedRuntime struct {
	internalapi.RuntimeService
	operations *operations
}

// Version implements the CRI.
func (r countedRuntime) Version(ctx context.Context, apiVersion string) (*runtimeapi.VersionResponse, error) {
	return counted(
		r.operations,
		"version",
		func() (*runtimeapi.VersionResponse, error) { return r.RuntimeService.Version(ctx, apiVersion) },
	)
}

// Status implements the CRI.
func (r countedRuntime) Status(ctx context.Context, verbose bool) (*runtimeapi.StatusResponse, error) {
	return counted(
		r.operations,
		"status",
		func() (*runtimeapi.StatusResponse, error) { return r.RuntimeService.Status(ctx, verbose) },
	)
}

// CreateContainer implements the CRI.
func (r countedRuntime) CreateContainer(
	ctx context.Context,
	podSandboxID string,
	config *runtimeapi.ContainerConfig,
	sandboxConfig *runtimeapi.PodSandboxConfig,
) (string, error) {
	return counted(r.operations, "create_container", func() (string, error) {
		return r.RuntimeService.CreateContainer(ctx, podSandboxID, config, sandboxConfig)
	})
}

// StartContainer implements the CRI.
func (r countedRuntime) StartContainer(ctx context.Context, containerID string) error {
	return countedOnly(
		r.operations,
		"start_container",
		func() error { return r.RuntimeService.StartContainer(ctx, containerID) },
	)
}

// StopContainer implements the CRI.
func (r countedRuntime) StopContainer(ctx context.Context, containerID string, timeout int64) error {
	return countedOnly(
		r.operations,
		"stop_container",
		func() error { return r.RuntimeService.StopContainer(ctx, containerID, timeout) },
	)
}

// RemoveContainer implements the CRI.
func (r countedRuntime) RemoveContainer(ctx context.Context, containerID string) error {
	return countedOnly(
		r.operations,
		"remove_container",
		func() error { return r.RuntimeService.RemoveContainer(ctx, containerID) },
	)
}

// ListContainers implements the CRI.
func (r countedRuntime) ListContainers(
	ctx context.Context,
	filter *runtimeapi.ContainerFilter,
) ([]*runtimeapi.Container, error) {
	return counted(
		r.operations,
		"list_containers",
		func() ([]*runtimeapi.Container, error) { return r.RuntimeService.ListContainers(ctx, filter) },
	)
}

// ContainerStatus implements the CRI.
func (r countedRuntime) ContainerStatus(
	ctx context.Context,
	containerID string,
	verbose bool,
) (*runtimeapi.ContainerStatusResponse, error) {
	return counted(r.operations, "container_status", func() (*runtimeapi.ContainerStatusResponse, error) {
		return r.RuntimeService.ContainerStatus(ctx, containerID, verbose)
	})
}

// UpdateContainerResources implements the CRI.
func (r countedRuntime) UpdateContainerResources(
	ctx context.Context,
	containerID string,
	resources *runtimeapi.ContainerResources,
) error {
	return countedOnly(
		r.operations,
		"update_container",
		func() error { return r.RuntimeService.UpdateContainerResources(ctx, containerID, resources) },
	)
}

// ReopenContainerLog implements the CRI.
func (r countedRuntime) ReopenContainerLog(ctx context.Context, containerID string) error {
	return countedOnly(
		r.operations,
		"reopen_container_log",
		func() error { return r.RuntimeService.ReopenContainerLog(ctx, containerID) },
	)
}

// ExecSync implements the CRI.
func (r countedRuntime) ExecSync(
	ctx context.Context,
	containerID string,
	cmd []string,
	timeout time.Duration,
) (stdout, stderr []byte, err error) {
	began := time.Now()
	stdout, stderr, err = r.RuntimeService.ExecSync(ctx, containerID, cmd, timeout)
	r.operations.done("exec_sync", began, err)
	return stdout, stderr, err
}

// Exec implements the CRI.
func (r countedRuntime) Exec(ctx context.Context, request *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return counted(
		r.operations,
		"exec",
		func() (*runtimeapi.ExecResponse, error) { return r.RuntimeService.Exec(ctx, request) },
	)
}

// Attach implements the CRI.
func (r countedRuntime) Attach(ctx context.Context, req *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return counted(
		r.operations,
		"attach",
		func() (*runtimeapi.AttachResponse, error) { return r.RuntimeService.Attach(ctx, req) },
	)
}

// RunPodSandbox implements the CRI.
func (r countedRuntime) RunPodSandbox(
	ctx context.Context,
	config *runtimeapi.PodSandboxConfig,
	runtimeHandler string,
) (string, error) {
	return counted(
		r.operations,
		"run_podsandbox",
		func() (string, error) { return r.RuntimeService.RunPodSandbox(ctx, config, runtimeHandler) },
	)
}

// StopPodSandbox implements the CRI.
func (r countedRuntime) StopPodSandbox(ctx context.Context, podSandboxID string) error {
	return countedOnly(
		r.operations,
		"stop_podsandbox",
		func() error { return r.RuntimeService.StopPodSandbox(ctx, podSandboxID) },
	)
}

// RemovePodSandbox implements the CRI.
func (r countedRuntime) RemovePodSandbox(ctx context.Context, podSandboxID string) error {
	return countedOnly(
		r.operations,
		"remove_podsandbox",
		func() error { return r.RuntimeService.RemovePodSandbox(ctx, podSandboxID) },
	)
}

// PodSandboxStatus implements the CRI.
func (r countedRuntime) PodSandboxStatus(
	ctx context.Context,
	podSandboxID string,
	verbose bool,
) (*runtimeapi.PodSandboxStatusResponse, error) {
	return counted(r.operations, "podsandbox_status", func() (*runtimeapi.PodSandboxStatusResponse, error) {
		return r.RuntimeService.PodSandboxStatus(ctx, podSandboxID, verbose)
	})
}

// ListPodSandbox implements the CRI.
func (r countedRuntime) ListPodSandbox(
	ctx context.Context,
	filter *runtimeapi.PodSandboxFilter,
) ([]*runtimeapi.PodSandbox, error) {
	return counted(
		r.operations,
		"list_podsandbox",
		func() ([]*runtimeapi.PodSandbox, error) { return r.RuntimeService.ListPodSandbox(ctx, filter) },
	)
}

// ContainerStats implements the CRI.
func (r countedRuntime) ContainerStats(ctx context.Context, containerID string) (*runtimeapi.ContainerStats, error) {
	return counted(
		r.operations,
		"container_stats",
		func() (*runtimeapi.ContainerStats, error) { return r.RuntimeService.ContainerStats(ctx, containerID) },
	)
}

// ListContainerStats implements the CRI.
func (r countedRuntime) ListContainerStats(
	ctx context.Context,
	filter *runtimeapi.ContainerStatsFilter,
) ([]*runtimeapi.ContainerStats, error) {
	return counted(
		r.operations,
		"list_container_stats",
		func() ([]*runtimeapi.ContainerStats, error) { return r.RuntimeService.ListContainerStats(ctx, filter) },
	)
}

// PodSandboxStats implements the CRI.
func (r countedRuntime) PodSandboxStats(ctx context.Context, podSandboxID string) (*runtimeapi.PodSandboxStats, error) {
	return counted(r.operations, "podsandbox_stats", func() (*runtimeapi.PodSandboxStats, error) {
		return r.RuntimeService.PodSandboxStats(ctx, podSandboxID)
	})
}

// ListPodSandboxStats implements the CRI.
func (r countedRuntime) ListPodSandboxStats(
	ctx context.Context,
	filter *runtimeapi.PodSandboxStatsFilter,
) ([]*runtimeapi.PodSandboxStats, error) {
	return counted(r.operations, "list_podsandbox_stats", func() ([]*runtimeapi.PodSandboxStats, error) {
		return r.RuntimeService.ListPodSandboxStats(ctx, filter)
	})
}

// PortForward implements the CRI.
func (r countedRuntime) PortForward(
	ctx context.Context,
	request *runtimeapi.PortForwardRequest,
) (*runtimeapi.PortForwardResponse, error) {
	return counted(
		r.operations,
		"port_forward",
		func() (*runtimeapi.PortForwardResponse, error) { return r.RuntimeService.PortForward(ctx, request) },
	)
}

// UpdatePodSandboxResources implements the CRI.
func (r countedRuntime) UpdatePodSandboxResources(
	ctx context.Context,
	request *runtimeapi.UpdatePodSandboxResourcesRequest,
) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	return counted(
		r.operations,
		"update_podsandbox_resources",
		func() (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
			return r.RuntimeService.UpdatePodSandboxResources(ctx, request)
		},
	)
}

// UpdateRuntimeConfig implements the CRI.
func (r countedRuntime) UpdateRuntimeConfig(ctx context.Context, runtimeConfig *runtimeapi.RuntimeConfig) error {
	return countedOnly(
		r.operations,
		"update_runtime_config",
		func() error { return r.RuntimeService.UpdateRuntimeConfig(ctx, runtimeConfig) },
	)
}

// CheckpointContainer implements the CRI.
func (r countedRuntime) CheckpointContainer(ctx context.Context, options *runtimeapi.CheckpointContainerRequest) error {
	return countedOnly(
		r.operations,
		"checkpoint_container",
		func() error { return r.RuntimeService.CheckpointContainer(ctx, options) },
	)
}

// CheckpointPod implements the CRI.
func (r countedRuntime) CheckpointPod(ctx context.Context, options *runtimeapi.CheckpointPodRequest) error {
	return countedOnly(
		r.operations,
		"checkpoint_pod",
		func() error { return r.RuntimeService.CheckpointPod(ctx, options) },
	)
}

// RestorePod implements the CRI.
func (r countedRuntime) RestorePod(
	ctx context.Context,
	options *runtimeapi.RestorePodRequest,
) (*runtimeapi.RestorePodResponse, error) {
	return counted(
		r.operations,
		"restore_pod",
		func() (*runtimeapi.RestorePodResponse, error) { return r.RuntimeService.RestorePod(ctx, options) },
	)
}

// GetContainerEvents implements the CRI.
func (r countedRuntime) GetContainerEvents(
	ctx context.Context,
	containerEventsCh chan *runtimeapi.ContainerEventResponse,
	connectionEstablishedCallback func(runtimeapi.RuntimeService_GetContainerEventsClient),
) error {
	return countedOnly(r.operations, "get_container_events", func() error {
		return r.RuntimeService.GetContainerEvents(ctx, containerEventsCh, connectionEstablishedCallback)
	})
}

// ListMetricDescriptors implements the CRI.
func (r countedRuntime) ListMetricDescriptors(ctx context.Context) ([]*runtimeapi.MetricDescriptor, error) {
	return counted(
		r.operations,
		"list_metric_descriptors",
		func() ([]*runtimeapi.MetricDescriptor, error) { return r.RuntimeService.ListMetricDescriptors(ctx) },
	)
}

// ListPodSandboxMetrics implements the CRI.
func (r countedRuntime) ListPodSandboxMetrics(ctx context.Context) ([]*runtimeapi.PodSandboxMetrics, error) {
	return counted(
		r.operations,
		"list_podsandbox_metrics",
		func() ([]*runtimeapi.PodSandboxMetrics, error) { return r.RuntimeService.ListPodSandboxMetrics(ctx) },
	)
}

// RuntimeConfig implements the CRI.
func (r countedRuntime) RuntimeConfig(ctx context.Context) (*runtimeapi.RuntimeConfigResponse, error) {
	return counted(
		r.operations,
		"runtime_config",
		func() (*runtimeapi.RuntimeConfigResponse, error) { return r.RuntimeService.RuntimeConfig(ctx) },
	)
}
