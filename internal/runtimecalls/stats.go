package runtimecalls

import (
	"context"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ContainerStats implements the CRI.
func (r service) ContainerStats(ctx context.Context, id string) (*runtimeapi.ContainerStats, error) {
	return tapped(r.tap, "ContainerStats",
		func() proto.Message { return &runtimeapi.ContainerStatsRequest{ContainerId: id} },
		func() (*runtimeapi.ContainerStats, error) { return r.RuntimeService.ContainerStats(ctx, id) },
		func(v *runtimeapi.ContainerStats) proto.Message { return &runtimeapi.ContainerStatsResponse{Stats: v} })
}

// ListContainerStats implements the CRI.
func (r service) ListContainerStats(
	ctx context.Context, filter *runtimeapi.ContainerStatsFilter,
) ([]*runtimeapi.ContainerStats, error) {
	return tapped(r.tap, "ListContainerStats",
		func() proto.Message { return &runtimeapi.ListContainerStatsRequest{Filter: filter} },
		func() ([]*runtimeapi.ContainerStats, error) { return r.RuntimeService.ListContainerStats(ctx, filter) },
		func(v []*runtimeapi.ContainerStats) proto.Message {
			return &runtimeapi.ListContainerStatsResponse{Stats: v}
		})
}

// PodSandboxStats implements the CRI.
func (r service) PodSandboxStats(ctx context.Context, id string) (*runtimeapi.PodSandboxStats, error) {
	return tapped(r.tap, "PodSandboxStats",
		func() proto.Message { return &runtimeapi.PodSandboxStatsRequest{PodSandboxId: id} },
		func() (*runtimeapi.PodSandboxStats, error) { return r.RuntimeService.PodSandboxStats(ctx, id) },
		func(v *runtimeapi.PodSandboxStats) proto.Message {
			return &runtimeapi.PodSandboxStatsResponse{Stats: v}
		})
}

// ListPodSandboxStats implements the CRI.
func (r service) ListPodSandboxStats(
	ctx context.Context, filter *runtimeapi.PodSandboxStatsFilter,
) ([]*runtimeapi.PodSandboxStats, error) {
	return tapped(r.tap, "ListPodSandboxStats",
		func() proto.Message { return &runtimeapi.ListPodSandboxStatsRequest{Filter: filter} },
		func() ([]*runtimeapi.PodSandboxStats, error) {
			return r.RuntimeService.ListPodSandboxStats(ctx, filter)
		},
		func(v []*runtimeapi.PodSandboxStats) proto.Message {
			return &runtimeapi.ListPodSandboxStatsResponse{Stats: v}
		})
}

// ListMetricDescriptors implements the CRI.
func (r service) ListMetricDescriptors(ctx context.Context) ([]*runtimeapi.MetricDescriptor, error) {
	return tapped(r.tap, "ListMetricDescriptors",
		func() proto.Message { return &runtimeapi.ListMetricDescriptorsRequest{} },
		func() ([]*runtimeapi.MetricDescriptor, error) { return r.RuntimeService.ListMetricDescriptors(ctx) },
		func(v []*runtimeapi.MetricDescriptor) proto.Message {
			return &runtimeapi.ListMetricDescriptorsResponse{Descriptors: v}
		})
}

// ListPodSandboxMetrics implements the CRI.
func (r service) ListPodSandboxMetrics(ctx context.Context) ([]*runtimeapi.PodSandboxMetrics, error) {
	return tapped(r.tap, "ListPodSandboxMetrics",
		func() proto.Message { return &runtimeapi.ListPodSandboxMetricsRequest{} },
		func() ([]*runtimeapi.PodSandboxMetrics, error) { return r.RuntimeService.ListPodSandboxMetrics(ctx) },
		func(v []*runtimeapi.PodSandboxMetrics) proto.Message {
			return &runtimeapi.ListPodSandboxMetricsResponse{PodMetrics: v}
		})
}
