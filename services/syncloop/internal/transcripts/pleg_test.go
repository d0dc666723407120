package transcripts

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/stream"
)

// takesHealth is the duration of a health check of pleg.
const takesHealth = 3 * time.Millisecond

// takesEvent is the time from a change to the event of pleg.
const takesEvent = 5 * time.Millisecond

// pleg is a fake pleg with the functions that the stories need. It inspects the runtime after each change.
type pleg struct {
	m      *machine
	events *stream.Edge[*lifecyclev1.Event]

	mu sync.Mutex
	// record has the last published status of each pod.
	record map[types.UID]*lifecyclev1.PodStatus
	// unwell is the reason why pleg is not healthy; empty if it is.
	unwell string
	// network is the reason why the network of pods is not ready; empty if it is.
	network string
}

// watch inspects the runtime after each change until ctx ends.
func (p *pleg) watch(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.m.changed:
		}
		time.Sleep(takesEvent)
		p.look()
	}
}

// look compares the runtime with the record and publishes the differences.
func (p *pleg) look() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unwell != "" {
		return
	}
	uids := map[types.UID]bool{}
	for uid := range p.record {
		uids[uid] = true
	}
	sandboxes, err := p.m.fake.ListPodSandbox(context.Background(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		panic(err) // the fake never fails
	}
	for _, s := range sandboxes.GetItems() {
		uids[types.UID(s.GetMetadata().GetUid())] = true
	}
	for _, uid := range slices.Sorted(maps.Keys(uids)) {
		before, now := p.record[uid], p.inspect(uid)
		gone := len(now.GetSandboxes()) == 0 && len(now.GetContainers()) == 0
		if gone {
			delete(p.record, uid)
		} else {
			p.record[uid] = now
		}
		for _, change := range changesOf(before, now) {
			p.m.story.line(lanePLEG, "pleg", string(uid)+": "+change.text)
			event := &lifecyclev1.Event{Type: change.kind, PodUid: string(uid), Status: now}
			p.events.Emit(string(uid), event, &lifecyclev1.Event{
				Type: lifecyclev1.EventType_EVENT_TYPE_POD_SYNC, PodUid: string(uid), Status: now,
			})
		}
		if gone {
			p.m.story.line(lanePLEG, "pleg", string(uid)+": nothing is left of it")
			p.events.EmitLast(string(uid), &lifecyclev1.Event{
				Type: lifecyclev1.EventType_EVENT_TYPE_POD_SYNC, PodUid: string(uid), Status: now,
			})
		}
	}
}

type change struct {
	kind lifecyclev1.EventType
	text string
}

// changesOf returns the changes between two observations, the oldest container first.
func changesOf(before, now *lifecyclev1.PodStatus) []change {
	var changes []change
	sandbox := func(s *lifecyclev1.PodStatus) lifecyclev1.SandboxState {
		if len(s.GetSandboxes()) == 0 {
			return lifecyclev1.SandboxState_SANDBOX_STATE_UNSPECIFIED
		}
		return s.GetSandboxes()[0].GetState()
	}
	if s := sandbox(now); s != sandbox(before) && s != lifecyclev1.SandboxState_SANDBOX_STATE_UNSPECIFIED {
		text := "the sandbox is stopped"
		if s == lifecyclev1.SandboxState_SANDBOX_STATE_READY {
			text = "the sandbox is ready"
		}
		changes = append(changes, change{lifecyclev1.EventType_EVENT_TYPE_POD_SYNC, text})
	}
	for _, c := range slices.Backward(now.GetContainers()) {
		old := stateOf(before, c.GetId())
		switch state := c.GetState(); {
		case state == old:
		case state == lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING:
			changes = append(changes, change{
				lifecyclev1.EventType_EVENT_TYPE_CONTAINER_STARTED, "ContainerStarted " + attemptOf(c),
			})
		case state == lifecyclev1.ContainerState_CONTAINER_STATE_EXITED:
			changes = append(changes, change{
				lifecyclev1.EventType_EVENT_TYPE_CONTAINER_DIED, fmt.Sprintf("ContainerDied %s, exit code %d", attemptOf(c), c.GetExitCode()),
			})
		}
	}
	for _, c := range slices.Backward(before.GetContainers()) {
		if stateOf(now, c.GetId()) == lifecyclev1.ContainerState_CONTAINER_STATE_UNSPECIFIED {
			changes = append(changes, change{
				lifecyclev1.EventType_EVENT_TYPE_CONTAINER_REMOVED, "ContainerRemoved " + attemptOf(c),
			})
		}
	}
	return changes
}

func attemptOf(c *lifecyclev1.Container) string {
	return containerName(&runtimeapi.ContainerMetadata{Name: c.GetName(), Attempt: c.GetAttempt()})
}

func stateOf(s *lifecyclev1.PodStatus, id string) lifecyclev1.ContainerState {
	for _, c := range s.GetContainers() {
		if c.GetId() == id {
			return c.GetState()
		}
	}
	return lifecyclev1.ContainerState_CONTAINER_STATE_UNSPECIFIED
}

// inspect returns everything that the runtime has of a pod, newest first.
func (p *pleg) inspect(uid types.UID) *lifecyclev1.PodStatus {
	ctx, now := context.Background(), time.Now()
	out := &lifecyclev1.PodStatus{
		Uid: string(uid), ObservedAt: timestamppb.New(now), ObservedBoottimeNs: p.m.story.sinceBoot().Nanoseconds(),
	}
	selector := map[string]string{podlabels.PodUID: string(uid)}
	sandboxes, err := p.m.fake.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{
		Filter: &runtimeapi.PodSandboxFilter{LabelSelector: selector},
	})
	if err != nil {
		panic(err)
	}
	for _, item := range sandboxes.GetItems() {
		out.Name, out.Namespace = item.GetMetadata().GetName(), item.GetMetadata().GetNamespace()
		s := &lifecyclev1.Sandbox{
			Id: item.GetId(), Attempt: item.GetMetadata().GetAttempt(),
			CreatedAt: timestamppb.New(time.Unix(0, item.GetCreatedAt())),
			State:     lifecyclev1.SandboxState_SANDBOX_STATE_NOT_READY, Labels: item.GetLabels(),
			Annotations: item.GetAnnotations(),
			HostNetwork: p.ofTheHost(item.GetId()),
		}
		if item.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY {
			s.State = lifecyclev1.SandboxState_SANDBOX_STATE_READY
			s.Ips = []string{"10.88.0.9"}
			out.Ips = s.Ips
		}
		out.Sandboxes = append(out.Sandboxes, s)
	}
	slices.SortFunc(out.Sandboxes, func(a, b *lifecyclev1.Sandbox) int {
		return b.CreatedAt.AsTime().Compare(a.CreatedAt.AsTime())
	})
	containers, err := p.m.fake.ListContainers(ctx, &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{LabelSelector: selector},
	})
	if err != nil {
		panic(err)
	}
	for _, item := range containers.GetContainers() {
		answer, err := p.m.fake.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: item.GetId()})
		if err != nil {
			panic(err)
		}
		out.Containers = append(out.Containers, containerOf(item.GetPodSandboxId(), answer.GetStatus()))
	}
	slices.SortFunc(out.Containers, func(a, b *lifecyclev1.Container) int {
		return b.CreatedAt.AsTime().Compare(a.CreatedAt.AsTime())
	})
	return out
}

// ofTheHost reports whether a sandbox uses the network of the host.
func (p *pleg) ofTheHost(id string) bool {
	answer, err := p.m.fake.PodSandboxStatus(context.Background(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
	if err != nil {
		panic(err)
	}
	return answer.GetStatus().GetLinux().GetNamespaces().GetOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE
}

func containerOf(sandboxID string, s *runtimeapi.ContainerStatus) *lifecyclev1.Container {
	at := func(nanos int64) *timestamppb.Timestamp {
		if nanos == 0 {
			return nil
		}
		return timestamppb.New(time.Unix(0, nanos))
	}
	return &lifecyclev1.Container{
		Id: s.GetId(), SandboxId: sandboxID, Name: s.GetMetadata().GetName(), Attempt: s.GetMetadata().GetAttempt(),
		State: map[runtimeapi.ContainerState]lifecyclev1.ContainerState{
			runtimeapi.ContainerState_CONTAINER_CREATED: lifecyclev1.ContainerState_CONTAINER_STATE_CREATED,
			runtimeapi.ContainerState_CONTAINER_RUNNING: lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING,
			runtimeapi.ContainerState_CONTAINER_EXITED:  lifecyclev1.ContainerState_CONTAINER_STATE_EXITED,
			runtimeapi.ContainerState_CONTAINER_UNKNOWN: lifecyclev1.ContainerState_CONTAINER_STATE_UNKNOWN,
		}[s.GetState()],
		CreatedAt: at(s.GetCreatedAt()), StartedAt: at(s.GetStartedAt()), FinishedAt: at(s.GetFinishedAt()),
		ExitCode: s.GetExitCode(), Reason: s.GetReason(), Labels: s.GetLabels(), Annotations: s.GetAnnotations(),
		LogPath: s.GetLogPath(),
		Image:   s.GetImage().GetImage(), ImageRef: s.GetImageRef(),
	}
}

// GetPodStatus implements podworkers.Observer.
func (p *pleg) GetPodStatus(
	ctx context.Context, uid types.UID, newerThan time.Duration,
) (*lifecyclev1.PodStatus, error) {
	known, unwell := p.known(uid)
	if known != nil && time.Duration(known.GetObservedBoottimeNs()) > newerThan {
		return known, nil
	}
	if unwell != "" {
		return nil, status.Error(codes.Unavailable, unwell)
	}
	if err := p.m.answer(ctx, time.Millisecond); err != nil {
		return nil, err
	}
	return p.inspect(uid), nil
}

// Health implements loop.Pleg.
func (p *pleg) Health(context.Context) (reasons []string, network string, err error) {
	time.Sleep(takesHealth)
	if _, unwell := p.known(""); unwell != "" {
		return []string{unwell}, "", nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return nil, p.network, nil
}

// setNetwork sets the reason why the network of pods is not ready; empty if it is.
func (p *pleg) setNetwork(reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.network = reason
}

func (p *pleg) known(uid types.UID) (record *lifecyclev1.PodStatus, unwell string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.record[uid], p.unwell
}

// setUnwell sets the reason why pleg is not healthy; empty if it is.
func (p *pleg) setUnwell(reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unwell = reason
}

// Relist implements loop.Pleg.
func (p *pleg) Relist(context.Context) error { return nil }
