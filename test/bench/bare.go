package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	cri "k8s.io/cri-client/pkg"

	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/test/livenode"
)

// criTimeout is the default of runtimeRequestTimeout.
const criTimeout = 2 * time.Minute

func connect(ctx context.Context, endpoint string) (internalapi.RuntimeService, error) {
	builder := cri.NewRemoteRuntimeServiceBuilder().WithEndpoint(endpoint).WithConnectionTimeout(criTimeout)
	runtime, err := builder.WithTracerProvider(nil).Build(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to the runtime at %s: %w", endpoint, err)
	}
	return runtime, nil
}

// barePod makes the CRI calls that a kubelet makes for benchPod, and nothing else.
func (r *rig) barePod(ctx context.Context, runtime internalapi.RuntimeService, i int) (string, error) {
	sandbox := r.bareSandbox(i)
	name := sandbox.GetMetadata().GetName()
	id, err := runtime.RunPodSandbox(ctx, sandbox, "")
	if err != nil {
		return "", fmt.Errorf("run sandbox %s: %w", name, err)
	}
	return id, r.bareContainer(ctx, runtime, i, id, 0)
}

func (r *rig) bareSandbox(i int) *runtimev1.PodSandboxConfig {
	name := fmt.Sprintf("bare-%d", i)
	return &runtimev1.PodSandboxConfig{
		Metadata:     &runtimev1.PodSandboxMetadata{Name: name, Namespace: benchNamespace, Uid: name},
		Hostname:     name,
		Labels:       map[string]string{podlabels.PodNamespace: benchNamespace},
		LogDirectory: filepath.Join(r.layout.PodLogs(), "bench_"+name),
		DnsConfig:    &runtimev1.DNSConfig{},
		Linux: &runtimev1.LinuxPodSandboxConfig{SecurityContext: &runtimev1.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimev1.NamespaceOption{Pid: runtimev1.NamespaceMode_CONTAINER},
			Seccomp:          &runtimev1.SecurityProfile{ProfileType: runtimev1.SecurityProfile_RuntimeDefault},
		}},
	}
}

// bareContainer creates and starts the only container of a pod in its sandbox.
func (r *rig) bareContainer(
	ctx context.Context, runtime internalapi.RuntimeService, i int, sandboxID string, attempt uint32,
) error {
	sandbox := r.bareSandbox(i)
	name := sandbox.GetMetadata().GetName()
	container, err := runtime.CreateContainer(ctx, sandboxID, &runtimev1.ContainerConfig{
		Metadata: &runtimev1.ContainerMetadata{Name: "main", Attempt: attempt},
		Image:    &runtimev1.ImageSpec{Image: livenode.Image},
		Args:     benchArgs(),
		Labels:   sandbox.GetLabels(),
		LogPath:  fmt.Sprintf("main_%d.log", attempt),
		Linux:    &runtimev1.LinuxContainerConfig{Resources: &runtimev1.LinuxContainerResources{CpuShares: 2}},
	}, sandbox)
	if err != nil {
		return fmt.Errorf("create container in %s: %w", name, err)
	}
	if err := runtime.StartContainer(ctx, container); err != nil {
		return fmt.Errorf("start container in %s: %w", name, err)
	}
	return nil
}

func removeAll(ctx context.Context, runtime internalapi.RuntimeService, sandboxes []string) error {
	group, ctx := errgroup.WithContext(ctx)
	const atOnce = 4
	group.SetLimit(atOnce)
	for _, id := range sandboxes {
		group.Go(func() error {
			if err := runtime.StopPodSandbox(ctx, id); err != nil {
				return fmt.Errorf("stop sandbox %s: %w", id, err)
			}
			if err := runtime.RemovePodSandbox(ctx, id); err != nil {
				return fmt.Errorf("remove sandbox %s: %w", id, err)
			}
			return nil
		})
	}
	return group.Wait()
}
