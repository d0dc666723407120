package executor

import (
	"cmp"
	"context"
	"strings"

	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/cri"
)

// Reasons of events, as the kubelet has them.
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
	eventSandboxChanged   = "SandboxChanged"
	eventDNSConfigForming = "DNSConfigForming"
	// eventUnsupported is of Quartet's own, and the pod's status.reason.
	eventUnsupported = "UnsupportedPodSpec"
)

// Events is told what is done for pods and what cannot be; *podevents.Recorder keeps it.
type Events interface {
	// Normal and Warning tell something of a container of a pod, of the pod as a whole when container is empty: a reason
	// in one word, and a sentence.
	Normal(ctx context.Context, pod *v1.Pod, container, reason, message string)
	Warning(ctx context.Context, pod *v1.Pod, container, reason, message string)
}

// untold is Events for nobody to read.
type untold struct{}

// Normal implements Events.
func (untold) Normal(context.Context, *v1.Pod, string, string, string) {}

// Warning implements Events.
func (untold) Warning(context.Context, *v1.Pod, string, string, string) {}

// warn tells what went wrong, unless the work was cut short: what fails of that is no failure.
func (m *Manager) warn(ctx context.Context, pod *v1.Pod, container, reason, message string) {
	if ctx.Err() == nil {
		m.cfg.Events.Warning(ctx, pod, container, reason, cri.WithoutIDs(message, cmp.Or(container, pod.Name)))
	}
}

// said is what an error says to people: of an answer of the runtime, its words alone.
func said(err error) string {
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}

// withoutID puts a container's name in the place of its ID: with an ID in it no message would be the same twice, and what
// repeats would not be one event.
func withoutID(message, id, name string) string {
	if id == "" {
		return message
	}
	return strings.ReplaceAll(message, id, name)
}
