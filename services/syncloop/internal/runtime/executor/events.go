package executor

import (
	"cmp"
	"context"
	"strings"

	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/cri"
)

// Reasons of events, as in the kubelet.
const (
	eventCreated          = "Created"
	eventStarted          = "Started"
	eventKilling          = "Killing"
	eventFailed           = "Failed"
	eventBackOff          = "BackOff"
	eventPostStart        = "FailedPostStartHook"
	eventPreStop          = "FailedPreStopHook"
	eventHookFallback     = "LifecycleHTTPFallback"
	eventSandboxFailed    = "FailedCreatePodSandBox"
	eventClaimsFailed     = "FailedPrepareDynamicResources"
	eventSandboxChanged   = "SandboxChanged"
	eventDNSConfigForming = "DNSConfigForming"
	// eventUnsupported is Quartet's own reason. It is also the pod's status.reason.
	eventUnsupported = "UnsupportedPodSpec"
)

// Events records events about pods; *podevents.Recorder implements it.
type Events interface {
	// Normal and Warning record an event of a container, or of the pod if container is empty. The reason is one word, the
	// message a sentence.
	Normal(ctx context.Context, pod *v1.Pod, container, reason, message string)
	Warning(ctx context.Context, pod *v1.Pod, container, reason, message string)
}

// noopEvents discards events.
type noopEvents struct{}

// Normal implements Events.
func (noopEvents) Normal(context.Context, *v1.Pod, string, string, string) {}

// Warning implements Events.
func (noopEvents) Warning(context.Context, *v1.Pod, string, string, string) {}

// warn records a warning event. It records none if ctx has ended, because an interrupted call has not failed.
func (m *Manager) warn(ctx context.Context, pod *v1.Pod, container, reason, message string) {
	if ctx.Err() == nil {
		m.cfg.Events.Warning(ctx, pod, container, reason, cri.WithoutIDs(message, cmp.Or(container, pod.Name)))
	}
}

// callError returns the readable text of a call's error: the message of a gRPC status without its code.
func callError(err error) string {
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}

// withoutID replaces a container's ID by its name in a message. Messages with IDs would all differ, so that repeated
// events could not be merged.
func withoutID(message, id, name string) string {
	if id == "" {
		return message
	}
	return strings.ReplaceAll(message, id, name)
}
