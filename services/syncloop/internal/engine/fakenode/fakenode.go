// Package fakenode is a container runtime and a pleg in memory, for the tests of the loop and the workers. It starts
// and stops pods on request, stamps its observations with boot times as pleg does, and publishes events. It records
// each rule that its caller breaks: two running pods of one name, two concurrent calls for one pod.
package fakenode

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/boottime"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podstatus"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resize"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
)

// Node is the runtime and the pleg.
type Node struct {
	// Events is pleg's stream.
	Events *stream.Edge[*lifecyclev1.Event]

	mu      sync.Mutex
	pods    map[types.UID]*lifecyclev1.PodStatus
	busy    map[types.UID]string
	broken  []string
	calls   []string
	serial  int
	reasons []string
	network string
	script  Script
	// resizes has the resources that resized pods run with; cgroups has the resources in the cgroups of pods.
	resizes executor.Resizes
	cgroups map[types.UID]resources.Resources
	// released has the pods that ReleasePod succeeded for.
	released []types.UID
}

// Script changes how the node answers. A nil function leaves the default.
type Script struct {
	// Sync is called before a pod is started; its error is SyncPod's.
	Sync func(ctx context.Context, pod *v1.Pod) error
	// Kill is called before a pod is stopped; its error is KillPod's.
	Kill func(ctx context.Context, pod *v1.Pod, grace int64) error
	// Resize is called before a running pod is resized; its error is the ResizeError of SyncPod's result.
	Resize func(pod *v1.Pod) error
	// Release is called before the resources of a pod are released; its error is ReleasePod's.
	Release func(pod *v1.Pod) error
	// Observe is called before pleg answers; its error is GetPodStatus's.
	Observe func(ctx context.Context, uid types.UID) error
	// Late is SyncPod's error after it has started the containers, as when one of several containers fails.
	Late error
	// SandboxError is the SandboxError of SyncPod's result when Sync fails.
	SandboxError error
	// RetryAfter and Reasons are what SyncPod returns.
	RetryAfter time.Duration
	Reasons    map[string]podstatus.Reason
}

// New returns a node on which nothing runs.
func New() *Node {
	return &Node{
		Events: stream.NewEdge[*lifecyclev1.Event](stream.Config{}),
		pods:   map[types.UID]*lifecyclev1.PodStatus{}, busy: map[types.UID]string{},
		cgroups: map[types.UID]resources.Resources{},
	}
}

// SetResizes makes the node resize pods, and record in r the resources that they run with.
func (n *Node) SetResizes(r executor.Resizes) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.resizes = r
}

// SetScript changes how the node answers from now on.
func (n *Node) SetScript(s Script) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.script = s
}

// SetUnhealthy makes pleg unhealthy for reasons; without reasons it is healthy.
func (n *Node) SetUnhealthy(reasons ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.reasons = reasons
}

// Broken returns the violations of rules by the caller.
func (n *Node) Broken() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.broken)
}

// Calls returns the calls of the runtime in order: "sync NAME", "resize NAME", "kill NAME GRACE", "clean UID", "prune
// UID".
func (n *Node) Calls() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.calls)
}

// Running returns the names of the pods that run, sorted.
func (n *Node) Running() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var names []string
	for _, p := range n.pods {
		if runs(p) {
			names = append(names, p.GetName())
		}
	}
	slices.Sort(names)
	return names
}

// Container returns the ID of the newest container of a pod; empty if it has none.
func (n *Node) Container(uid types.UID) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if c := n.pods[uid].GetContainers(); len(c) > 0 {
		return c[0].GetId()
	}
	return ""
}

// RestartCount returns the restart count of the newest container of a pod; -1 if it has none.
func (n *Node) RestartCount(uid types.UID) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if c := n.pods[uid].GetContainers(); len(c) > 0 {
		return podlabels.RestartOf(c[0].GetAnnotations(), c[0].GetAttempt()).Count
	}
	return -1
}

// Run starts a pod without a call of SyncPod, as if the agent had started it before a restart.
func (n *Node) Run(pod *v1.Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.start(pod, "")
}

// Exit ends all containers of a pod with a code.
func (n *Node) Exit(uid types.UID, code int32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.clone(uid)
	n.stop(p, code)
	n.publish(p, lifecyclev1.EventType_EVENT_TYPE_CONTAINER_DIED, "")
}

// SyncPod implements podworkers.Runtime. It starts a container that has not run yet, or that has ended if the restart
// policy permits it.
func (n *Node) SyncPod(
	ctx context.Context, pod *v1.Pod, observed *lifecyclev1.PodStatus,
) (result executor.Result, err error) {
	defer n.enter(pod.UID, "sync "+pod.Name)()
	n.mu.Lock()
	script := n.script
	n.mu.Unlock()
	if script.Sync != nil {
		if err := script.Sync(ctx, pod); err != nil {
			return executor.Result{SandboxError: script.SandboxError}, err
		}
	}
	resized, resizeError := n.resize(pod, observed, script)
	n.mu.Lock()
	defer n.mu.Unlock()
	result = executor.Result{
		RetryAfter: script.RetryAfter, Reasons: script.Reasons, ResizeError: resizeError, Wrote: resized,
	}
	defer func() {
		has := n.cgroups[pod.UID]
		result.Cgroup = &has
	}()
	c := observed.GetContainers()
	if len(c) > 0 && (c[0].GetState() == lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING ||
		pod.Spec.RestartPolicy == v1.RestartPolicyNever) {
		return result, script.Late
	}
	n.start(pod, telemetry.Traceparent(ctx))
	result.Wrote = true
	return result, script.Late
}

// resize gives a running pod the resources of its spec. It returns false if the pod had them already.
func (n *Node) resize(pod *v1.Pod, observed *lifecyclev1.PodStatus, script Script) (resized bool, err error) {
	n.mu.Lock()
	resizes := n.resizes
	n.mu.Unlock()
	if resizes == nil {
		return false, nil
	}
	actuated, _ := resizes.Actuated(pod)
	if !resize.InProgress(pod, observed, actuated) {
		return false, nil
	}
	n.mu.Lock()
	n.calls = append(n.calls, "resize "+pod.Name)
	n.mu.Unlock()
	if script.Resize != nil {
		if err := script.Resize(pod); err != nil {
			return false, &executor.ResizeError{Err: err}
		}
	}
	n.mu.Lock()
	n.cgroups[pod.UID] = resources.ForPod(pod, resources.Limits{CPUQuota: true})
	n.mu.Unlock()
	return true, resizes.Actuate(pod, func(a *resize.Actuated) {
		a.Unfinished = false
		for i := range pod.Spec.Containers {
			c := &pod.Spec.Containers[i]
			a.Note(observed, podview.Latest(observed, c.Name).GetId(), resize.AmountsOf(pod.Spec.Resources, c.Resources))
		}
	})
}

// KillPod implements podworkers.Runtime.
func (n *Node) KillPod(ctx context.Context, pod *v1.Pod, _ *lifecyclev1.PodStatus, grace int64) error {
	defer n.enter(pod.UID, fmt.Sprintf("kill %s %d", pod.Name, grace))()
	n.mu.Lock()
	script := n.script
	n.mu.Unlock()
	if script.Kill != nil {
		if err := script.Kill(ctx, pod, grace); err != nil {
			return err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.clone(pod.UID)
	n.stop(p, 0)
	for _, s := range p.GetSandboxes() {
		s.State = lifecyclev1.SandboxState_SANDBOX_STATE_NOT_READY
	}
	n.publish(p, lifecyclev1.EventType_EVENT_TYPE_CONTAINER_DIED, "")
	return nil
}

// CleanUpPod implements podworkers.Runtime.
func (n *Node) CleanUpPod(_ context.Context, _ *v1.Pod, observed *lifecyclev1.PodStatus) error {
	uid := types.UID(observed.GetUid())
	defer n.enter(uid, "clean "+string(uid))()
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.clone(uid)
	if runs(p) {
		n.broken = append(n.broken, fmt.Sprintf("pod %s was cleaned up while it ran", uid))
	}
	p.Containers, p.Sandboxes = nil, nil
	_, existed := n.pods[uid]
	delete(n.pods, uid)
	if existed {
		stamp(p)
		n.Events.EmitLast(string(uid), &lifecyclev1.Event{
			Type: lifecyclev1.EventType_EVENT_TYPE_CONTAINER_REMOVED, PodUid: string(uid), Status: p,
		})
	}
	return nil
}

// PruneContainers implements podworkers.Runtime.
func (n *Node) PruneContainers(_ context.Context, observed *lifecyclev1.PodStatus, keep int) error {
	uid := types.UID(observed.GetUid())
	defer n.enter(uid, "prune "+string(uid))()
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.clone(uid)
	ended := 0
	p.Containers = slices.DeleteFunc(p.Containers, func(c *lifecyclev1.Container) bool {
		if c.GetState() != lifecyclev1.ContainerState_CONTAINER_STATE_EXITED {
			return false
		}
		ended++
		return ended > keep
	})
	n.publish(p, lifecyclev1.EventType_EVENT_TYPE_CONTAINER_REMOVED, "")
	return nil
}

// GetPodStatus implements podworkers.Observer.
func (n *Node) GetPodStatus(
	ctx context.Context, uid types.UID, newerThan time.Duration,
) (*lifecyclev1.PodStatus, error) {
	n.mu.Lock()
	script := n.script
	n.mu.Unlock()
	if script.Observe != nil {
		if err := script.Observe(ctx, uid); err != nil {
			return nil, err
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.pods[uid]
	if p == nil {
		p = &lifecyclev1.PodStatus{Uid: string(uid)}
		stamp(p)
		return p, nil
	}
	if time.Duration(p.GetObservedBoottimeNs()) <= newerThan {
		p = n.clone(uid)
		stamp(p)
		n.pods[uid] = p
	}
	return p, nil
}

// Health implements loop.Pleg.
func (n *Node) Health(context.Context) (reasons []string, network string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.reasons), n.network, nil
}

// SetNetwork makes the pod network not ready for a reason; with an empty reason it is ready.
func (n *Node) SetNetwork(reason string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.network = reason
}

// Relist implements loop.Pleg.
func (n *Node) Relist(context.Context) error { return nil }

// UIDs returns the pods that are in the runtime, sorted.
func (n *Node) UIDs() []types.UID {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Sorted(maps.Keys(n.pods))
}

// enter records the begin of a call and returns the function that records its end.
func (n *Node) enter(uid types.UID, call string) func() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, call)
	if other, busy := n.busy[uid]; busy {
		n.broken = append(n.broken, fmt.Sprintf("%q began for pod %s while %q was not done", call, uid, other))
	}
	n.busy[uid] = call
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.busy, uid)
	}
}

// start runs a container of a pod, in its sandbox or a new one. Called with mu held.
func (n *Node) start(pod *v1.Pod, traceparent string) {
	for uid, other := range n.pods {
		if uid != pod.UID && other.GetName() == pod.Name && other.GetNamespace() == pod.Namespace && runs(other) {
			n.broken = append(n.broken, fmt.Sprintf("%s started as %s while %s ran", pod.Name, pod.UID, uid))
		}
	}
	n.serial++
	p := n.clone(pod.UID)
	p.Name, p.Namespace, p.Ips = pod.Name, pod.Namespace, []string{"10.0.0.9"}
	if s := p.GetSandboxes(); len(s) == 0 || s[0].GetState() != lifecyclev1.SandboxState_SANDBOX_STATE_READY {
		p.Sandboxes = slices.Insert(p.Sandboxes, 0, &lifecyclev1.Sandbox{
			Id: fmt.Sprintf("sandbox-%d", n.serial), State: lifecyclev1.SandboxState_SANDBOX_STATE_READY,
			CreatedAt: timestamppb.Now(), Ips: p.GetIps(),
		})
	}
	now, c := timestamppb.Now(), &pod.Spec.Containers[0]
	count := 0
	if latest := podview.Latest(p, c.Name); latest != nil {
		count = podlabels.RestartOf(latest.GetAnnotations(), latest.GetAttempt()).Count + 1
	}
	_, annotations, err := podlabels.Container(pod, c, podlabels.Restart{Count: count}, traceparent)
	if err != nil {
		n.broken = append(n.broken, err.Error())
	}
	n.cgroups[pod.UID] = resources.ForPod(pod, resources.Limits{CPUQuota: true})
	p.Containers = slices.Insert(p.Containers, 0, &lifecyclev1.Container{
		Id: fmt.Sprintf("container-%d", n.serial), SandboxId: p.GetSandboxes()[0].GetId(), Name: c.Name,
		Attempt: uint32(count), State: lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING,
		CreatedAt: now, StartedAt: now, Image: c.Image, Annotations: annotations,
	})
	n.publish(p, lifecyclev1.EventType_EVENT_TYPE_CONTAINER_STARTED, traceparent)
}

func (n *Node) stop(p *lifecyclev1.PodStatus, code int32) {
	for _, c := range p.GetContainers() {
		if c.GetState() == lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING {
			c.State, c.ExitCode, c.FinishedAt = lifecyclev1.ContainerState_CONTAINER_STATE_EXITED, code, timestamppb.Now()
		}
	}
}

// publish stores a status and emits its event. Called with mu held.
func (n *Node) publish(p *lifecyclev1.PodStatus, kind lifecyclev1.EventType, traceparent string) {
	stamp(p)
	n.pods[types.UID(p.GetUid())] = p
	event := &lifecyclev1.Event{Type: kind, PodUid: p.GetUid(), Status: p, Traceparent: traceparent}
	state := &lifecyclev1.Event{Type: lifecyclev1.EventType_EVENT_TYPE_POD_SYNC, PodUid: p.GetUid(), Status: p}
	n.Events.Emit(p.GetUid(), event, state)
}

func (n *Node) clone(uid types.UID) *lifecyclev1.PodStatus {
	if p := n.pods[uid]; p != nil {
		return proto.Clone(p).(*lifecyclev1.PodStatus) //nolint:forcetypeassert // a clone has the type of its original
	}
	return &lifecyclev1.PodStatus{Uid: string(uid)}
}

func stamp(p *lifecyclev1.PodStatus) {
	p.ObservedBoottimeNs, p.ObservedAt = boottime.Now().Nanoseconds(), timestamppb.Now()
}

func runs(p *lifecyclev1.PodStatus) bool {
	for _, c := range p.GetContainers() {
		if c.GetState() == lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING {
			return true
		}
	}
	return false
}

// Pod returns a pod of one container.
func Pod(uid, name string, policy v1.RestartPolicy) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Name: name, Namespace: "default"},
		Spec: v1.PodSpec{
			RestartPolicy: policy, NodeName: "node",
			Containers: []v1.Container{{Name: "main", Image: "example.test/main:1"}},
		},
	}
}

// Restart replaces pleg by a new one, whose snapshot is the current content of the runtime, and returns its stream.
func (n *Node) Restart() *stream.Edge[*lifecyclev1.Event] {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.Events = stream.NewEdge[*lifecyclev1.Event](stream.Config{})
	for uid, p := range n.pods {
		state := &lifecyclev1.Event{Type: lifecyclev1.EventType_EVENT_TYPE_POD_SYNC, PodUid: string(uid), Status: p}
		n.Events.Emit(string(uid), state, state)
	}
	return n.Events
}

// Vanish removes a pod from the runtime without an event.
func (n *Node) Vanish(uid types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.pods, uid)
}

// FailInspection makes pleg report from now on that a pod could not be inspected.
func (n *Node) FailInspection(uid types.UID, reason string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.clone(uid)
	p.InspectError = reason
	n.pods[uid] = p
}
