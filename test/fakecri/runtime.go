package fakecri

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func notFound(kind, id string) error {
	return status.Errorf(codes.NotFound, "%s %q: not found", kind, id)
}

// Version implements the CRI.
func (s *Server) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: "fakecri", RuntimeVersion: "v1.0.0", RuntimeApiVersion: "v1"}, nil
}

// Status implements the CRI. The handler runc supports recursive read-only mounts, the one without a name does not.
func (s *Server) Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &runtimeapi.StatusResponse{
		Status:          &runtimeapi.RuntimeStatus{Conditions: slices.Clone(s.conditions)},
		RuntimeHandlers: []*runtimeapi.RuntimeHandler{{Name: ""}, {Name: "runc", Features: &runtimeapi.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: true}}},
		Features:        &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: s.strictGroups},
	}, nil
}

// SupportStrictGroups makes the runtime report support for the policy Strict of supplemental groups.
func (s *Server) SupportStrictGroups() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.strictGroups = true
}

// userOf returns the user of a container's process. The image has root.
func userOf(config *runtimeapi.ContainerConfig) *runtimeapi.ContainerUser {
	security := config.GetLinux().GetSecurityContext()
	return &runtimeapi.ContainerUser{Linux: &runtimeapi.LinuxContainerUser{
		Uid: security.GetRunAsUser().GetValue(), Gid: security.GetRunAsGroup().GetValue(),
		SupplementalGroups: security.GetSupplementalGroups(),
	}}
}

// RuntimeConfig implements the CRI.
func (s *Server) RuntimeConfig(
	context.Context, *runtimeapi.RuntimeConfigRequest,
) (*runtimeapi.RuntimeConfigResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: s.driver}}, nil
}

// UpdateRuntimeConfig implements the CRI.
func (s *Server) UpdateRuntimeConfig(
	context.Context, *runtimeapi.UpdateRuntimeConfigRequest,
) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
}

// RunPodSandbox implements the CRI. It refuses a name, namespace, UID and attempt that another sandbox has.
func (s *Server) RunPodSandbox(
	_ context.Context, r *runtimeapi.RunPodSandboxRequest,
) (*runtimeapi.RunPodSandboxResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	meta := r.GetConfig().GetMetadata()
	if meta.GetName() == "" || meta.GetNamespace() == "" || meta.GetUid() == "" {
		return nil, status.Error(codes.InvalidArgument, "sandbox config must include metadata with name, namespace and uid")
	}
	for _, sb := range s.sandboxes {
		if sandboxName(sb.config.GetMetadata()) == sandboxName(meta) {
			return nil, status.Errorf(codes.Unknown, "failed to reserve sandbox name %q: name is reserved for %q", sandboxName(meta), sb.id)
		}
	}
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: s.addSandbox(r.GetConfig(), r.GetRuntimeHandler()).id}, nil
}

func sandboxName(m *runtimeapi.PodSandboxMetadata) string {
	return fmt.Sprintf("%s_%s_%s_%d", m.GetName(), m.GetNamespace(), m.GetUid(), m.GetAttempt())
}

// StopPodSandbox implements the CRI.
func (s *Server) StopPodSandbox(
	_ context.Context, r *runtimeapi.StopPodSandboxRequest,
) (*runtimeapi.StopPodSandboxResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sb, ok := s.sandboxes[r.GetPodSandboxId()]; ok {
		s.stopSandbox(sb)
	}
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

// RemovePodSandbox implements the CRI.
func (s *Server) RemovePodSandbox(
	_ context.Context, r *runtimeapi.RemovePodSandboxRequest,
) (*runtimeapi.RemovePodSandboxResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sb, ok := s.sandboxes[r.GetPodSandboxId()]; ok {
		s.dropSandbox(sb)
	}
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

// PodSandboxStatus implements the CRI.
func (s *Server) PodSandboxStatus(
	_ context.Context, r *runtimeapi.PodSandboxStatusRequest,
) (*runtimeapi.PodSandboxStatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sb, ok := s.sandboxes[r.GetPodSandboxId()]
	if !ok {
		return nil, notFound("sandbox", r.GetPodSandboxId())
	}
	return &runtimeapi.PodSandboxStatusResponse{Status: sb.status()}, nil
}

func (sb *sandbox) status() *runtimeapi.PodSandboxStatus {
	options := sb.config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	st := &runtimeapi.PodSandboxStatus{
		Id: sb.id, Metadata: sb.config.GetMetadata(), State: sb.state, CreatedAt: sb.createdAt,
		Network: &runtimeapi.PodSandboxNetworkStatus{},
		Linux:   &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{Options: options}},
		Labels:  sb.config.GetLabels(), Annotations: sb.config.GetAnnotations(), RuntimeHandler: sb.handler,
	}
	if sb.state == runtimeapi.PodSandboxState_SANDBOX_READY {
		st.Network.Ip = sb.ip
	}
	return st
}

// ListPodSandbox implements the CRI.
func (s *Server) ListPodSandbox(
	_ context.Context, r *runtimeapi.ListPodSandboxRequest,
) (*runtimeapi.ListPodSandboxResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	resp := &runtimeapi.ListPodSandboxResponse{}
	filter := r.GetFilter()
	for id, sb := range s.sandboxes {
		if (filter.GetId() != "" && filter.GetId() != id) ||
			(filter.GetState() != nil && filter.GetState().GetState() != sb.state) ||
			!selects(filter.GetLabelSelector(), sb.config.GetLabels()) {
			continue
		}
		resp.Items = append(resp.Items, &runtimeapi.PodSandbox{
			Id: id, Metadata: sb.config.GetMetadata(), State: sb.state, CreatedAt: sb.createdAt,
			Labels: sb.config.GetLabels(), Annotations: sb.config.GetAnnotations(), RuntimeHandler: sb.handler,
		})
	}
	slices.SortFunc(resp.Items, func(a, b *runtimeapi.PodSandbox) int { return compareIDs(a.GetId(), b.GetId()) })
	return resp, nil
}

func selects(selector, labels map[string]string) bool {
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}
	return true
}

// CreateContainer implements the CRI. The image has to be in the runtime, and the name free in the sandbox.
func (s *Server) CreateContainer(
	_ context.Context, r *runtimeapi.CreateContainerRequest,
) (*runtimeapi.CreateContainerResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sb, ok := s.sandboxes[r.GetPodSandboxId()]
	switch {
	case !ok:
		return nil, notFound("sandbox", r.GetPodSandboxId())
	case sb.state != runtimeapi.PodSandboxState_SANDBOX_READY:
		return nil, status.Errorf(codes.Unknown, "sandbox %q is not running", sb.id)
	case r.GetConfig().GetMetadata().GetName() == "":
		return nil, status.Error(codes.InvalidArgument, "container config must include metadata with a name")
	}
	for _, c := range s.containersOf(sb.id) {
		if m := c.config.GetMetadata(); m.GetName() == r.GetConfig().GetMetadata().GetName() &&
			m.GetAttempt() == r.GetConfig().GetMetadata().GetAttempt() {
			return nil, status.Errorf(codes.Unknown, "failed to reserve container name %q attempt %d: name is reserved for %q", m.GetName(), m.GetAttempt(), c.id)
		}
	}
	image, err := s.findImage(r.GetConfig().GetImage().GetImage())
	if err != nil {
		return nil, err
	}
	return &runtimeapi.CreateContainerResponse{ContainerId: s.addContainer(sb, r.GetConfig(), image.GetId()).id}, nil
}

// StartContainer implements the CRI.
func (s *Server) StartContainer(
	_ context.Context, r *runtimeapi.StartContainerRequest,
) (*runtimeapi.StartContainerResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.containers[r.GetContainerId()]
	switch {
	case !ok:
		return nil, notFound("container", r.GetContainerId())
	case c.state != runtimeapi.ContainerState_CONTAINER_CREATED:
		return nil, status.Errorf(codes.Unknown, "container %q is in state %v, not created", c.id, c.state)
	case s.sandboxes[c.sandboxID].state != runtimeapi.PodSandboxState_SANDBOX_READY:
		return nil, status.Errorf(codes.Unknown, "sandbox %q is not running", c.sandboxID)
	}
	s.start(c)
	return &runtimeapi.StartContainerResponse{}, nil
}

// StopContainer implements the CRI: SIGTERM ends a container at once, unless IgnoreTerm names it.
func (s *Server) StopContainer(
	ctx context.Context, r *runtimeapi.StopContainerRequest,
) (*runtimeapi.StopContainerResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.containers[r.GetContainerId()]
	if !ok {
		return &runtimeapi.StopContainerResponse{}, nil
	}
	code := int32(sigkill)
	if r.GetTimeout() > 0 {
		code = sigterm
		if own, ok := s.onTerm[c.config.GetMetadata().GetName()]; ok {
			code = own
		}
		if s.ignoreTerm[c.config.GetMetadata().GetName()] {
			code = sigkill
			s.mu.Unlock()
			err := s.waitEnded(ctx, c.ended, time.Duration(r.GetTimeout())*time.Second)
			s.mu.Lock()
			if err != nil {
				return nil, err
			}
		}
	}
	if c.state == runtimeapi.ContainerState_CONTAINER_RUNNING || c.state == runtimeapi.ContainerState_CONTAINER_UNKNOWN {
		s.exit(c, code, "")
	}
	return &runtimeapi.StopContainerResponse{}, nil
}

// waitEnded waits for the end of a container during its grace period; it fails only when the caller gives up.
func (s *Server) waitEnded(ctx context.Context, ended <-chan struct{}, grace time.Duration) error {
	timer := s.clock.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C():
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// RemoveContainer implements the CRI.
func (s *Server) RemoveContainer(
	_ context.Context, r *runtimeapi.RemoveContainerRequest,
) (*runtimeapi.RemoveContainerResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.containers[r.GetContainerId()]; ok {
		s.dropContainer(c)
	}
	return &runtimeapi.RemoveContainerResponse{}, nil
}

// ListContainers implements the CRI.
func (s *Server) ListContainers(
	_ context.Context, r *runtimeapi.ListContainersRequest,
) (*runtimeapi.ListContainersResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	resp := &runtimeapi.ListContainersResponse{}
	filter := r.GetFilter()
	for id, c := range s.containers {
		if (filter.GetId() != "" && filter.GetId() != id) ||
			(filter.GetPodSandboxId() != "" && filter.GetPodSandboxId() != c.sandboxID) ||
			(filter.GetState() != nil && filter.GetState().GetState() != c.state) ||
			!selects(filter.GetLabelSelector(), c.config.GetLabels()) {
			continue
		}
		resp.Containers = append(resp.Containers, &runtimeapi.Container{
			Id: id, PodSandboxId: c.sandboxID, Metadata: c.config.GetMetadata(), Image: c.config.GetImage(),
			ImageRef: c.imageRef, ImageId: c.imageRef,
			State: c.state, CreatedAt: c.createdAt, Labels: c.config.GetLabels(), Annotations: c.config.GetAnnotations(),
		})
	}
	slices.SortFunc(resp.Containers, func(a, b *runtimeapi.Container) int { return compareIDs(a.GetId(), b.GetId()) })
	return resp, nil
}

// ContainerStatus implements the CRI.
func (s *Server) ContainerStatus(
	_ context.Context, r *runtimeapi.ContainerStatusRequest,
) (*runtimeapi.ContainerStatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.containers[r.GetContainerId()]
	if !ok {
		return nil, notFound("container", r.GetContainerId())
	}
	return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{
		Id: c.id, Metadata: c.config.GetMetadata(), State: c.state, CreatedAt: c.createdAt, StartedAt: c.startedAt,
		FinishedAt: c.finishedAt, ExitCode: c.exitCode, Reason: c.reason,
		Image: c.config.GetImage(), ImageRef: c.imageRef, ImageId: c.imageRef,
		Labels: c.config.GetLabels(), Annotations: c.config.GetAnnotations(), Mounts: c.config.GetMounts(),
		LogPath: c.logPath, User: userOf(c.config), Resources: &runtimeapi.ContainerResources{Linux: c.resources},
	}}, nil
}

// UpdateContainerResources implements the CRI.
func (s *Server) UpdateContainerResources(
	_ context.Context, r *runtimeapi.UpdateContainerResourcesRequest,
) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.containers[r.GetContainerId()]
	if !ok {
		return nil, notFound("container", r.GetContainerId())
	}
	c.resources = r.GetLinux()
	return &runtimeapi.UpdateContainerResourcesResponse{}, nil
}

// SetMemoryUsage sets the number of bytes of memory that a container uses. The default is 0.
func (s *Server) SetMemoryUsage(containerID string, bytes uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mustContainer(containerID).memory = bytes
}

// ContainerStats implements the CRI.
func (s *Server) ContainerStats(
	_ context.Context, r *runtimeapi.ContainerStatsRequest,
) (*runtimeapi.ContainerStatsResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.containers[r.GetContainerId()]
	if !ok {
		return nil, notFound("container", r.GetContainerId())
	}
	return &runtimeapi.ContainerStatsResponse{Stats: &runtimeapi.ContainerStats{
		Attributes: &runtimeapi.ContainerAttributes{Id: c.id, Metadata: c.config.GetMetadata(), Labels: c.config.GetLabels()},
		Memory:     &runtimeapi.MemoryUsage{Timestamp: s.now(), UsageBytes: &runtimeapi.UInt64Value{Value: c.memory}},
	}}, nil
}

// ReopenContainerLog implements the CRI.
func (s *Server) ReopenContainerLog(
	context.Context, *runtimeapi.ReopenContainerLogRequest,
) (*runtimeapi.ReopenContainerLogResponse, error) {
	return &runtimeapi.ReopenContainerLogResponse{}, nil
}

// ExecSync implements the CRI with the function of OnExec.
func (s *Server) ExecSync(_ context.Context, r *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	s.mu.Lock()
	c, ok := s.containers[r.GetContainerId()]
	running := ok && c.state == runtimeapi.ContainerState_CONTAINER_RUNNING
	exec := s.onExec
	s.mu.Unlock()
	switch {
	case !ok:
		return nil, notFound("container", r.GetContainerId())
	case !running:
		return nil, status.Errorf(codes.Unknown, "container %q is not running", c.id)
	case exec == nil:
		return &runtimeapi.ExecSyncResponse{}, nil
	}
	stdout, stderr, code := exec(r.GetContainerId(), r.GetCmd())
	return &runtimeapi.ExecSyncResponse{Stdout: stdout, Stderr: stderr, ExitCode: code}, nil
}
