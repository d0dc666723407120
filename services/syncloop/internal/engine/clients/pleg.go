package clients

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
)

// PLEG is the client of pleg that the loop and the workers use.
type PLEG struct {
	client lifecyclev1.LifecycleServiceClient
	// alone is the boot time since which no earlier process writes to the runtime; 0 if it is unknown.
	alone time.Duration
	// marks is for pleg on another machine; nil on this one, where both have the same clock.
	marks *marks
}

// NewPLEG returns a client of pleg on this machine. alone is the boot time since which no earlier process writes to the
// runtime; 0 if it is unknown.
func NewPLEG(client lifecyclev1.LifecycleServiceClient, alone time.Duration) *PLEG {
	return &PLEG{client: client, alone: alone}
}

// NewRemotePLEG returns a client of pleg on another machine. now is the clock of this one, boottime.Now.
func NewRemotePLEG(client lifecyclev1.LifecycleServiceClient, now func() time.Duration) *PLEG {
	return &PLEG{client: client, marks: &marks{now: now}}
}

// Events returns pleg's stream of events. Subscribing waits for a pleg that is away.
func (p *PLEG) Events() stream.Source[*lifecyclev1.Event] {
	return streamrpc.NewSource(func(ctx context.Context, token []byte) (streamrpc.Receive[*lifecyclev1.Event], error) {
		watch, err := p.client.WatchEvents(ctx, &lifecyclev1.WatchEventsRequest{ResumeToken: token}, grpc.WaitForReady(true))
		if err != nil {
			return nil, fmt.Errorf("watch pleg's events: %w", err)
		}
		return func() (*streamv1.Frame, *lifecyclev1.Event, error) {
			m, err := watch.Recv()
			return m.GetFrame(), p.withoutClock(m.GetEvent()), err
		}, nil
	})
}

// GetPodStatus returns pleg's observation of a pod by an inspection that began after newerThan. It waits, within ctx,
// for a pleg that is away.
func (p *PLEG) GetPodStatus(
	ctx context.Context, uid types.UID, newerThan time.Duration,
) (*lifecyclev1.PodStatus, error) {
	if p.marks != nil {
		return p.getRemote(ctx, uid, newerThan)
	}
	answer, err := p.client.GetPodStatus(ctx, &lifecyclev1.GetPodStatusRequest{
		Uid: string(uid), NewerThanBoottimeNs: newerThan.Nanoseconds(),
	}, grpc.WaitForReady(true))
	if err != nil {
		return nil, err
	}
	return answer.GetStatus(), nil
}

// Health returns the reasons why pleg is unhealthy, none if it is healthy, and the reason why the runtime's network is
// not ready, empty if it is ready. It waits, within ctx, for a pleg that is away.
func (p *PLEG) Health(ctx context.Context) (reasons []string, network string, err error) {
	health, err := p.client.GetHealth(ctx, &lifecyclev1.GetHealthRequest{}, grpc.WaitForReady(true))
	switch {
	case err != nil:
		return nil, "", err
	case health.GetHealthy():
		return nil, networkOf(health.GetRuntime()), nil
	case len(health.GetReasons()) == 0:
		return []string{"it gives no reason"}, "", nil
	default:
		return health.GetReasons(), "", nil
	}
}

// networkOf returns why a runtime's network is not ready; empty if it is ready, or if the runtime is unknown.
func networkOf(runtime *lifecyclev1.Runtime) string {
	if runtime == nil || runtime.GetNetworkReady() {
		return ""
	}
	return cmp.Or(runtime.GetNetworkReadyMessage(), "the container runtime gives no reason")
}

// Relist returns when a full relist has finished that knows what an earlier process has written to the runtime.
func (p *PLEG) Relist(ctx context.Context) error {
	_, err := p.client.RequestRelist(ctx, &lifecyclev1.RequestRelistRequest{
		NewerThanBoottimeNs: p.alone.Nanoseconds(),
	})
	return err
}
