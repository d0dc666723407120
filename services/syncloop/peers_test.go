package syncloop

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/boottime"
	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
	"github.com/quartet-node/quartet/internal/telemetry"
)

// configmux is a fake configmux that serves the test's pods over gRPC.
type configmux struct {
	configv1.UnimplementedConfigServiceServer
	level *stream.Level[*configv1.WatchPodUpdatesResponse]
	// objects is nil if WatchObjects is not implemented.
	objects *stream.Level[*configv1.WatchObjectsResponse]
}

func newConfigmux() *configmux {
	return &configmux{level: stream.NewLevel[*configv1.WatchPodUpdatesResponse](stream.Config{})}
}

func (c *configmux) put(pod *v1.Pod, traceparent string) error {
	data, err := pod.Marshal()
	if err != nil {
		return err
	}
	c.level.Put(string(pod.UID), &configv1.WatchPodUpdatesResponse{Payload: &configv1.WatchPodUpdatesResponse_Pod{
		Pod: &configv1.PodUpdate{Source: "file", Pod: data, Traceparent: traceparent},
	}})
	return nil
}

func (c *configmux) speak() {
	c.level.Put("source/file", &configv1.WatchPodUpdatesResponse{Payload: &configv1.WatchPodUpdatesResponse_Source{
		Source: &configv1.SourceState{Name: "file", Ready: true},
	}})
}

// WatchPodUpdates implements ConfigService.
func (c *configmux) WatchPodUpdates(
	req *configv1.WatchPodUpdatesRequest, ss grpc.ServerStreamingServer[configv1.WatchPodUpdatesResponse],
) error {
	return streamrpc.Serve(ss.Context(), c.level, req.GetResumeToken(),
		func(f *streamv1.Frame, v *configv1.WatchPodUpdatesResponse) error {
			return ss.Send(&configv1.WatchPodUpdatesResponse{Frame: f, Payload: v.GetPayload()})
		})
}

// haveObjects makes it serve ConfigMaps and Secrets, of which all have been read.
func (c *configmux) haveObjects() {
	c.objects = stream.NewLevel[*configv1.WatchObjectsResponse](stream.Config{})
	c.objects.Put("source/file", &configv1.WatchObjectsResponse{Source: &configv1.SourceState{Name: "file", Ready: true}})
}

// WatchObjects implements ConfigService.
func (c *configmux) WatchObjects(
	req *configv1.WatchObjectsRequest, ss grpc.ServerStreamingServer[configv1.WatchObjectsResponse],
) error {
	if c.objects == nil {
		return c.UnimplementedConfigServiceServer.WatchObjects(req, ss)
	}
	return streamrpc.Serve(ss.Context(), c.objects, req.GetResumeToken(),
		func(f *streamv1.Frame, v *configv1.WatchObjectsResponse) error {
			return ss.Send(&configv1.WatchObjectsResponse{Frame: f, Object: v.GetObject(), Source: v.GetSource()})
		})
}

// pleg is a minimal pleg that lists the runtime periodically and publishes the changes.
type pleg struct {
	lifecyclev1.UnimplementedLifecycleServiceServer
	runtime internalapi.RuntimeService
	events  *stream.Edge[*lifecyclev1.Event]

	mu     sync.Mutex // held during a relist, which is the only writer of record
	record map[string]*lifecyclev1.PodStatus
}

func newPLEG(runtime internalapi.RuntimeService) *pleg {
	return &pleg{
		runtime: runtime, events: stream.NewEdge[*lifecyclev1.Event](stream.Config{}),
		record: map[string]*lifecyclev1.PodStatus{},
	}
}

// run relists until ctx ends. It ignores errors of the runtime.
func (p *pleg) run(ctx context.Context) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		_ = p.relist(cri.Quiet(ctx)) // the next relist may succeed
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

func (p *pleg) relist(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	fresh, err := p.inspect(ctx)
	if err != nil {
		return err
	}
	for uid := range maps.Keys(p.record) {
		if fresh[uid] == nil {
			p.events.EmitLast(uid, &lifecyclev1.Event{Type: lifecyclev1.EventType_EVENT_TYPE_CONTAINER_REMOVED, PodUid: uid,
				Status: &lifecyclev1.PodStatus{Uid: uid, ObservedBoottimeNs: boottime.Now().Nanoseconds()}})
		}
	}
	for uid, now := range fresh {
		state := &lifecyclev1.Event{Type: lifecyclev1.EventType_EVENT_TYPE_POD_SYNC, PodUid: uid, Status: now}
		for _, event := range changes(p.record[uid], now) {
			p.events.Emit(uid, event, state)
		}
	}
	p.record = fresh
	return nil
}

// changes returns the events between two observations of a pod.
func changes(before, now *lifecyclev1.PodStatus) []*lifecyclev1.Event {
	was := map[string]lifecyclev1.ContainerState{}
	for _, c := range before.GetContainers() {
		was[c.GetId()] = c.GetState()
	}
	var events []*lifecyclev1.Event
	add := func(what lifecyclev1.EventType, traceparent string) {
		events = append(events, &lifecyclev1.Event{Type: what, PodUid: now.GetUid(), Status: now, Traceparent: traceparent})
	}
	for _, c := range now.GetContainers() {
		if c.GetState() == was[c.GetId()] {
			continue
		}
		switch c.GetState() { //nolint:exhaustive // nothing else is an event of its own
		case lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING:
			add(lifecyclev1.EventType_EVENT_TYPE_CONTAINER_STARTED, c.GetAnnotations()[telemetry.AnnotationTraceparent])
		case lifecyclev1.ContainerState_CONTAINER_STATE_EXITED:
			add(lifecyclev1.EventType_EVENT_TYPE_CONTAINER_DIED, "")
		}
	}
	if len(events) == 0 &&
		(len(before.GetSandboxes()) != len(now.GetSandboxes()) || len(before.GetContainers()) != len(now.GetContainers())) {
		add(lifecyclev1.EventType_EVENT_TYPE_POD_SYNC, "")
	}
	return events
}

// inspect reads all sandboxes and containers from the runtime.
func (p *pleg) inspect(ctx context.Context) (map[string]*lifecyclev1.PodStatus, error) {
	at := boottime.Now().Nanoseconds()
	pods := map[string]*lifecyclev1.PodStatus{}
	sandboxes, err := p.runtime.ListPodSandbox(ctx, nil)
	if err != nil {
		return nil, err
	}
	for _, s := range sandboxes {
		detail, err := p.runtime.PodSandboxStatus(ctx, s.GetId(), false)
		if err != nil {
			return nil, err
		}
		m := s.GetMetadata()
		if pods[m.GetUid()] == nil {
			pods[m.GetUid()] = &lifecyclev1.PodStatus{
				Uid: m.GetUid(), Name: m.GetName(), Namespace: m.GetNamespace(), ObservedBoottimeNs: at,
			}
		}
		pod := pods[m.GetUid()]
		state := lifecyclev1.SandboxState_SANDBOX_STATE_NOT_READY
		if s.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY {
			state = lifecyclev1.SandboxState_SANDBOX_STATE_READY
			pod.Ips = []string{detail.GetStatus().GetNetwork().GetIp()}
		}
		pod.Sandboxes = append(pod.Sandboxes, &lifecyclev1.Sandbox{
			Id: s.GetId(), State: state, Attempt: m.GetAttempt(), CreatedAt: stamp(s.GetCreatedAt()), Ips: pod.Ips,
			Labels: s.GetLabels(), Annotations: s.GetAnnotations(),
		})
	}
	containers, err := p.runtime.ListContainers(ctx, nil)
	if err != nil {
		return nil, err
	}
	for _, item := range containers {
		detail, err := p.runtime.ContainerStatus(ctx, item.GetId(), false)
		if err != nil {
			return nil, err
		}
		if pod := pods[item.GetLabels()[podlabels.PodUID]]; pod != nil {
			pod.Containers = append(pod.Containers, containerOf(item, detail.GetStatus()))
		}
	}
	for _, pod := range pods {
		slices.SortFunc(pod.Sandboxes, func(a, b *lifecyclev1.Sandbox) int {
			return b.GetCreatedAt().AsTime().Compare(a.GetCreatedAt().AsTime())
		})
		slices.SortFunc(pod.Containers, func(a, b *lifecyclev1.Container) int {
			return b.GetCreatedAt().AsTime().Compare(a.GetCreatedAt().AsTime())
		})
	}
	return pods, nil
}

func containerOf(item *runtimeapi.Container, s *runtimeapi.ContainerStatus) *lifecyclev1.Container {
	return &lifecyclev1.Container{
		Id: item.GetId(), SandboxId: item.GetPodSandboxId(),
		Name: item.GetMetadata().GetName(), Attempt: item.GetMetadata().GetAttempt(),
		State:     lifecyclev1.ContainerState(s.GetState() + 1),
		CreatedAt: stamp(s.GetCreatedAt()), StartedAt: stamp(s.GetStartedAt()), FinishedAt: stamp(s.GetFinishedAt()),
		ExitCode: s.GetExitCode(), Reason: s.GetReason(), Message: s.GetMessage(),
		Image: s.GetImage().GetUserSpecifiedImage(), ImageRef: s.GetImageRef(), ImageId: s.GetImageId(),
		Labels: s.GetLabels(), Annotations: s.GetAnnotations(), LogPath: s.GetLogPath(),
	}
}

func stamp(ns int64) *timestamppb.Timestamp {
	if ns == 0 {
		return nil
	}
	return timestamppb.New(time.Unix(0, ns))
}

// GetPodStatus implements LifecycleService.
func (p *pleg) GetPodStatus(
	ctx context.Context, req *lifecyclev1.GetPodStatusRequest,
) (*lifecyclev1.GetPodStatusResponse, error) {
	if err := p.relist(ctx); err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.record[req.GetUid()]; known != nil {
		return &lifecyclev1.GetPodStatusResponse{Status: known}, nil
	}
	return &lifecyclev1.GetPodStatusResponse{
		Status: &lifecyclev1.PodStatus{Uid: req.GetUid(), ObservedBoottimeNs: boottime.Now().Nanoseconds()},
	}, nil
}

// RequestRelist implements LifecycleService.
func (p *pleg) RequestRelist(
	ctx context.Context, _ *lifecyclev1.RequestRelistRequest,
) (*lifecyclev1.RequestRelistResponse, error) {
	if err := p.relist(ctx); err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return &lifecyclev1.RequestRelistResponse{RelistedAt: timestamppb.Now()}, nil
}

// GetHealth implements LifecycleService.
func (p *pleg) GetHealth(context.Context, *lifecyclev1.GetHealthRequest) (*lifecyclev1.GetHealthResponse, error) {
	return &lifecyclev1.GetHealthResponse{Healthy: true}, nil
}

// WatchEvents implements LifecycleService.
func (p *pleg) WatchEvents(
	req *lifecyclev1.WatchEventsRequest, ss grpc.ServerStreamingServer[lifecyclev1.WatchEventsResponse],
) error {
	return streamrpc.Serve(ss.Context(), p.events, req.GetResumeToken(),
		func(f *streamv1.Frame, v *lifecyclev1.Event) error {
			return ss.Send(&lifecyclev1.WatchEventsResponse{Frame: f, Event: v})
		})
}
