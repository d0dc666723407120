// Package inspection asks the container runtime for the state of pods, in the words of LifecycleService. pleg uses it
// for its record. syncloop uses it to end a pod while pleg does not answer.
package inspection

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
)

// Pod queries the runtime for the pod with a UID. began is the boot time before the first call, and now the time of
// day. Containers and sandboxes in known, the last known status or nil, are not queried again if the list says all that
// may have changed: an ended one does not change any more, and of a ready sandbox that has its addresses only the state
// changes. The status is complete if the error is nil. Otherwise it is the result of the list calls, or nil
// if they failed.
func Pod(
	ctx context.Context,
	runtime internalapi.RuntimeService,
	uid string,
	began time.Duration,
	now time.Time,
	known *lifecyclev1.PodStatus,
) (*lifecyclev1.PodStatus, error) {
	selector := map[string]string{podlabels.PodUID: uid}
	sandboxes, err := runtime.ListPodSandbox(ctx, &runtimeapi.PodSandboxFilter{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("listing the sandboxes of the pod: %w", err)
	}
	containers, err := runtime.ListContainers(ctx, &runtimeapi.ContainerFilter{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("listing the containers of the pod: %w", err)
	}
	seen := &lifecyclev1.PodStatus{Uid: uid, ObservedBoottimeNs: int64(began), ObservedAt: timestamppb.New(now)}
	for _, item := range sandboxes {
		sandbox, err := inspectSandbox(ctx, runtime, item, FindSandbox(known, item.GetId()))
		if status.Code(err) == codes.NotFound {
			continue
		}
		if err != nil {
			return Listed(seen, sandboxes, containers), fmt.Errorf("inspecting sandbox %s: %w", item.GetId(), err)
		}
		seen.Sandboxes = append(seen.Sandboxes, sandbox)
	}
	for _, item := range containers {
		container, err := inspectContainer(ctx, runtime, item, FindContainer(known, item.GetId()))
		if status.Code(err) == codes.NotFound {
			continue
		}
		if err != nil {
			return Listed(seen, sandboxes, containers), fmt.Errorf("inspecting container %s: %w", item.GetId(), err)
		}
		seen.Containers = append(seen.Containers, container)
	}
	return finish(seen), nil
}

// FindContainer returns the container with an ID; nil if the status, which may be nil, has none.
func FindContainer(s *lifecyclev1.PodStatus, id string) *lifecyclev1.Container {
	for _, c := range s.GetContainers() {
		if c.GetId() == id {
			return c
		}
	}
	return nil
}

// FindSandbox returns the sandbox with an ID; nil if the status, which may be nil, has none.
func FindSandbox(s *lifecyclev1.PodStatus, id string) *lifecyclev1.Sandbox {
	for _, sandbox := range s.GetSandboxes() {
		if sandbox.GetId() == id {
			return sandbox
		}
	}
	return nil
}

// Listed returns a status from the results of list calls, with the UID and times of head. They do not contain exit
// codes, so an ended container has the state unknown: a missing exit code must not look like success.
func Listed(
	head *lifecyclev1.PodStatus,
	sandboxes []*runtimeapi.PodSandbox,
	containers []*runtimeapi.Container,
) *lifecyclev1.PodStatus {
	s := &lifecyclev1.PodStatus{
		Uid:                head.GetUid(),
		ObservedBoottimeNs: head.GetObservedBoottimeNs(),
		ObservedAt:         head.GetObservedAt(),
	}
	for _, item := range sandboxes {
		s.Sandboxes = append(s.Sandboxes, sandboxFromList(item))
	}
	for _, item := range containers {
		c := containerFromList(item)
		if c.State == lifecyclev1.ContainerState_CONTAINER_STATE_EXITED {
			c.State = lifecyclev1.ContainerState_CONTAINER_STATE_UNKNOWN
		}
		s.Containers = append(s.Containers, c)
	}
	return finish(s)
}

// finish sorts sandboxes and containers, and sets the pod's name and addresses.
func finish(s *lifecyclev1.PodStatus) *lifecyclev1.PodStatus {
	slices.SortFunc(s.Sandboxes, func(a, b *lifecyclev1.Sandbox) int {
		return cmp.Or(cmp.Compare(b.GetAttempt(), a.GetAttempt()),
			b.GetCreatedAt().AsTime().Compare(a.GetCreatedAt().AsTime()), cmp.Compare(a.GetId(), b.GetId()))
	})
	newestFirst(s.Containers)
	for _, c := range s.GetContainers() {
		s.Name, s.Namespace = c.GetLabels()[podlabels.PodName], c.GetLabels()[podlabels.PodNamespace]
	}
	for _, sandbox := range slices.Backward(s.GetSandboxes()) {
		s.Name, s.Namespace = sandbox.GetLabels()[podlabels.PodName], sandbox.GetLabels()[podlabels.PodNamespace]
	}
	for _, sandbox := range s.GetSandboxes() {
		if sandbox.GetState() == lifecyclev1.SandboxState_SANDBOX_STATE_READY {
			s.Ips = sandbox.GetIps()
			break
		}
	}
	return s
}

// newestFirst sorts containers by creation time, and those of one name by attempt, because the newest one has an older
// time if the clock was set back.
func newestFirst(containers []*lifecyclev1.Container) {
	slices.SortFunc(containers, func(a, b *lifecyclev1.Container) int {
		return cmp.Or(b.GetCreatedAt().AsTime().Compare(a.GetCreatedAt().AsTime()), cmp.Compare(a.GetId(), b.GetId()))
	})
	places, named := map[string][]int{}, map[string][]*lifecyclev1.Container{}
	for i, c := range containers {
		places[c.GetName()] = append(places[c.GetName()], i)
		named[c.GetName()] = append(named[c.GetName()], c)
	}
	for name, same := range named {
		slices.SortStableFunc(
			same,
			func(a, b *lifecyclev1.Container) int { return cmp.Compare(b.GetAttempt(), a.GetAttempt()) },
		)
		for i, c := range same {
			containers[places[name][i]] = c
		}
	}
}

func inspectSandbox(
	ctx context.Context,
	runtime internalapi.RuntimeService,
	item *runtimeapi.PodSandbox,
	known *lifecyclev1.Sandbox,
) (*lifecyclev1.Sandbox, error) {
	if settled(known) && known.GetState() == SandboxState(item.GetState()) {
		return known, nil
	}
	resp, err := runtime.PodSandboxStatus(ctx, item.GetId(), false)
	if err != nil {
		return nil, err
	}
	st := resp.GetStatus()
	sandbox := &lifecyclev1.Sandbox{
		Id:             st.GetId(),
		State:          SandboxState(st.GetState()),
		Attempt:        st.GetMetadata().GetAttempt(),
		CreatedAt:      timestamp(st.GetCreatedAt()),
		HostNetwork:    st.GetLinux().GetNamespaces().GetOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE,
		Labels:         st.GetLabels(),
		Annotations:    st.GetAnnotations(),
		RuntimeHandler: st.GetRuntimeHandler(),
	}
	if ip := st.GetNetwork().GetIp(); ip != "" && !sandbox.HostNetwork {
		sandbox.Ips = append(sandbox.Ips, ip)
		for _, additional := range st.GetNetwork().GetAdditionalIps() {
			sandbox.Ips = append(sandbox.Ips, additional.GetIp())
		}
	}
	return sandbox, nil
}

// settled reports whether nothing of a known sandbox changes while its state stays. nil is not settled.
func settled(known *lifecyclev1.Sandbox) bool {
	switch known.GetState() {
	case lifecyclev1.SandboxState_SANDBOX_STATE_READY:
		return known.GetHostNetwork() || len(known.GetIps()) > 0
	case lifecyclev1.SandboxState_SANDBOX_STATE_NOT_READY:
		return true
	case lifecyclev1.SandboxState_SANDBOX_STATE_UNSPECIFIED:
	}
	return false
}

func inspectContainer(
	ctx context.Context,
	runtime internalapi.RuntimeService,
	item *runtimeapi.Container,
	known *lifecyclev1.Container,
) (*lifecyclev1.Container, error) {
	if item.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED &&
		known.GetState() == lifecyclev1.ContainerState_CONTAINER_STATE_EXITED {
		return known, nil
	}
	resp, err := runtime.ContainerStatus(ctx, item.GetId(), false)
	if err != nil {
		return nil, err
	}
	st := resp.GetStatus()
	if startInterrupted(st) {
		return &lifecyclev1.Container{
			Id:          st.GetId(),
			SandboxId:   item.GetPodSandboxId(),
			Name:        containerName(st.GetMetadata(), st.GetLabels()),
			Attempt:     st.GetMetadata().GetAttempt(),
			State:       lifecyclev1.ContainerState_CONTAINER_STATE_CREATED,
			CreatedAt:   timestamp(st.GetCreatedAt()),
			Image:       st.GetImage().GetImage(),
			ImageRef:    st.GetImageRef(),
			ImageId:     st.GetImageId(),
			Labels:      st.GetLabels(),
			Annotations: st.GetAnnotations(),
			LogPath:     st.GetLogPath(),
		}, nil
	}
	return &lifecyclev1.Container{
		Id:          st.GetId(),
		SandboxId:   item.GetPodSandboxId(),
		Name:        containerName(st.GetMetadata(), st.GetLabels()),
		Attempt:     st.GetMetadata().GetAttempt(),
		State:       ContainerState(st.GetState()),
		CreatedAt:   timestamp(st.GetCreatedAt()),
		StartedAt:   timestamp(st.GetStartedAt()),
		FinishedAt:  timestamp(st.GetFinishedAt()),
		ExitCode:    st.GetExitCode(),
		Reason:      st.GetReason(),
		Message:     st.GetMessage(),
		Image:       st.GetImage().GetImage(),
		ImageRef:    st.GetImageRef(),
		ImageId:     st.GetImageId(),
		Labels:      st.GetLabels(),
		Annotations: st.GetAnnotations(),
		LogPath:     st.GetLogPath(),
		User:        userOf(st.GetUser().GetLinux()),
		Resources:   resourcesOf(st.GetResources().GetLinux()),
	}, nil
}

// reasonStartError is containerd's reason for a container that failed to start.
const reasonStartError = "StartError"

// startInterrupted reports whether a container's start was interrupted because its caller disappeared: syncloop was
// killed during StartContainer. containerd reverts such a start and reports that the container has exited. It has never
// run, so it counts as created, and a restart policy of Never must not end the pod for it.
func startInterrupted(st *runtimeapi.ContainerStatus) bool {
	return st.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED && st.GetReason() == reasonStartError &&
		st.GetStartedAt() == 0 &&
		strings.Contains(st.GetMessage(), context.Canceled.Error())
}

// userOf returns the user of a container's first process; nil if the runtime does not report it.
func userOf(user *runtimeapi.LinuxContainerUser) *lifecyclev1.LinuxUser {
	if user == nil {
		return nil
	}
	return &lifecyclev1.LinuxUser{Uid: user.GetUid(), Gid: user.GetGid(), SupplementalGroups: user.GetSupplementalGroups()}
}

// resourcesOf returns the resources of a container in the runtime; nil if it does not report them.
func resourcesOf(r *runtimeapi.LinuxContainerResources) *lifecyclev1.LinuxResources {
	if r == nil {
		return nil
	}
	return &lifecyclev1.LinuxResources{
		CpuShares:          r.GetCpuShares(),
		CpuQuota:           r.GetCpuQuota(),
		CpuPeriod:          r.GetCpuPeriod(),
		MemoryLimitInBytes: r.GetMemoryLimitInBytes(),
	}
}

func sandboxFromList(item *runtimeapi.PodSandbox) *lifecyclev1.Sandbox {
	return &lifecyclev1.Sandbox{
		Id:             item.GetId(),
		State:          SandboxState(item.GetState()),
		Attempt:        item.GetMetadata().GetAttempt(),
		CreatedAt:      timestamp(item.GetCreatedAt()),
		Labels:         item.GetLabels(),
		Annotations:    item.GetAnnotations(),
		RuntimeHandler: item.GetRuntimeHandler(),
	}
}

func containerFromList(item *runtimeapi.Container) *lifecyclev1.Container {
	return &lifecyclev1.Container{
		Id:        item.GetId(),
		SandboxId: item.GetPodSandboxId(),
		Name:      containerName(item.GetMetadata(), item.GetLabels()),
		Attempt: item.GetMetadata().
			GetAttempt(),
		State:       ContainerState(item.GetState()),
		CreatedAt:   timestamp(item.GetCreatedAt()),
		Image:       item.GetImage().GetImage(),
		ImageRef:    item.GetImageRef(),
		ImageId:     item.GetImageId(),
		Labels:      item.GetLabels(),
		Annotations: item.GetAnnotations(),
	}
}

// containerName returns the name in the pod's spec, or the runtime's name for a container without that label.
func containerName(meta *runtimeapi.ContainerMetadata, labels map[string]string) string {
	return cmp.Or(labels[podlabels.ContainerName], meta.GetName())
}

// SandboxState converts a state of a sandbox.
func SandboxState(state runtimeapi.PodSandboxState) lifecyclev1.SandboxState {
	if state == runtimeapi.PodSandboxState_SANDBOX_READY {
		return lifecyclev1.SandboxState_SANDBOX_STATE_READY
	}
	return lifecyclev1.SandboxState_SANDBOX_STATE_NOT_READY
}

// ContainerState converts a state of a container.
func ContainerState(state runtimeapi.ContainerState) lifecyclev1.ContainerState {
	switch state {
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		return lifecyclev1.ContainerState_CONTAINER_STATE_CREATED
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		return lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		return lifecyclev1.ContainerState_CONTAINER_STATE_EXITED
	case runtimeapi.ContainerState_CONTAINER_UNKNOWN:
	}
	return lifecyclev1.ContainerState_CONTAINER_STATE_UNKNOWN
}

// timestamp converts the CRI's nanoseconds since 1970 to a time; zero and less mean none.
func timestamp(nanos int64) *timestamppb.Timestamp {
	if nanos <= 0 {
		return nil
	}
	return timestamppb.New(time.Unix(0, nanos))
}
