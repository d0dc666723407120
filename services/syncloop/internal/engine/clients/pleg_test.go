package clients_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/clients"
)

// fakePleg is a pleg with a fixed health, and keeps the last request of a relist.
type fakePleg struct {
	lifecyclev1.LifecycleServiceClient
	health *lifecyclev1.GetHealthResponse
	relist *lifecyclev1.RequestRelistRequest
}

// GetHealth implements LifecycleServiceClient.
func (a *fakePleg) GetHealth(
	context.Context, *lifecyclev1.GetHealthRequest, ...grpc.CallOption,
) (*lifecyclev1.GetHealthResponse, error) {
	return a.health, nil
}

// RequestRelist implements LifecycleServiceClient.
func (a *fakePleg) RequestRelist(
	_ context.Context, request *lifecyclev1.RequestRelistRequest, _ ...grpc.CallOption,
) (*lifecyclev1.RequestRelistResponse, error) {
	a.relist = request
	return &lifecyclev1.RequestRelistResponse{}, nil
}

// TestARelistSinceThisProcessIsAloneIsEnough: clocks of two machines are never compared, so pleg on another one lists
// anew.
func TestARelistSinceThisProcessIsAloneIsEnough(t *testing.T) {
	for want, client := range map[time.Duration]func(*fakePleg) *clients.PLEG{
		time.Minute: func(a *fakePleg) *clients.PLEG { return clients.NewPLEG(a, time.Minute) },
		0: func(a *fakePleg) *clients.PLEG {
			return clients.NewRemotePLEG(a, func() time.Duration { return time.Minute })
		},
	} {
		answering := &fakePleg{}
		if err := client(answering).Relist(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := time.Duration(answering.relist.GetNewerThanBoottimeNs()); got != want {
			t.Errorf("a relist since %v is asked for, want %v", got, want)
		}
	}
}

func TestHealthSaysWhatOfPlegAndOfTheNetworkCannotBeReliedOn(t *testing.T) {
	runtime := func(ready bool, message string) *lifecyclev1.Runtime {
		return &lifecyclev1.Runtime{Ready: true, NetworkReady: ready, NetworkReadyMessage: message}
	}
	for name, c := range map[string]struct {
		health  *lifecyclev1.GetHealthResponse
		reasons []string
		network string
	}{
		"well":                       {&lifecyclev1.GetHealthResponse{Healthy: true, Runtime: runtime(true, "")}, nil, ""},
		"no network":                 {&lifecyclev1.GetHealthResponse{Healthy: true, Runtime: runtime(false, "cni: not initialized")}, nil, "cni: not initialized"},
		"no network and no reason":   {&lifecyclev1.GetHealthResponse{Healthy: true, Runtime: runtime(false, "")}, nil, "the container runtime gives no reason"},
		"nothing of the runtime":     {&lifecyclev1.GetHealthResponse{Healthy: true}, nil, ""},
		"unhealthy":                  {&lifecyclev1.GetHealthResponse{Reasons: []string{"no relist"}, Runtime: runtime(false, "x")}, []string{"no relist"}, ""},
		"unhealthy without a reason": {&lifecyclev1.GetHealthResponse{}, []string{"it gives no reason"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			reasons, network, err := clients.NewPLEG(&fakePleg{health: c.health}, 0).Health(t.Context())
			if diff := cmp.Diff(c.reasons, reasons); diff != "" || network != c.network || err != nil {
				t.Errorf("network %q, error %v, reasons (-want +got):\n%s", network, err, diff)
			}
		})
	}
}
