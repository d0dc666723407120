package clients_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"google.golang.org/grpc"
	"pgregory.net/rapid"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/clients"
)

// farPLEG is a pleg whose clock is ahead of true time by skew. Each call takes some time each way.
type farPLEG struct {
	lifecyclev1.LifecycleServiceClient
	// now is the true time, and delay that of the way.
	now, delay, skew time.Duration
	// observed is the true time of the record's observation.
	observed    time.Duration
	inspections int
	old         bool
}

func (p *farPLEG) GetPodStatus(
	_ context.Context, req *lifecyclev1.GetPodStatusRequest, _ ...grpc.CallOption,
) (*lifecyclev1.GetPodStatusResponse, error) {
	p.now += p.delay
	arrived := p.now
	p.now++
	newerThan := time.Duration(0)
	switch {
	case p.old: // v0.1.0 does not know the fields
	case req.GetNewerThanRequest():
		newerThan = arrived
	case len(req.GetNewerThan()) > 0:
		token, err := strconv.ParseInt(string(req.GetNewerThan()), 10, 64)
		if err != nil {
			return nil, err
		}
		newerThan = time.Duration(token) - p.skew
	}
	if newerThan > 0 && p.observed <= newerThan {
		p.observed = p.now
		p.inspections++
	}
	p.now += p.delay
	answer := &lifecyclev1.GetPodStatusResponse{Status: &lifecyclev1.PodStatus{
		Uid: req.GetUid(), ObservedBoottimeNs: int64(p.observed + p.skew),
	}}
	if !p.old {
		answer.Token = strconv.AppendInt(nil, int64(arrived+p.skew), 10)
	}
	return answer, nil
}

// TestAnObservationOfAnotherMachineIsNewerThanTheWrite, whatever its clock shows and however long the way is.
func TestAnObservationOfAnotherMachineIsNewerThanTheWrite(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		far := &farPLEG{
			now: 1000, delay: time.Duration(rapid.IntRange(0, 50).Draw(t, "delay")),
			skew: time.Duration(rapid.IntRange(-900, 1_000_000).Draw(t, "skew")),
		}
		client := clients.NewRemotePLEG(far, func() time.Duration { return far.now })
		written := time.Duration(0)
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			switch rapid.IntRange(0, 2).Draw(t, "step") {
			case 0:
				far.now += time.Duration(rapid.IntRange(1, 100).Draw(t, "pause"))
				written = far.now
				far.now++
			case 1: // pleg inspects by itself
				far.now++
				far.observed = far.now
			case 2:
				before := far.inspections
				asked := written
				got, err := client.GetPodStatus(t.Context(), "uid", written)
				if err != nil {
					t.Fatal(err)
				}
				if asked > 0 && far.observed <= asked {
					t.Fatalf("the observation of %d is not newer than the write at %d", far.observed, asked)
				}
				if asked > 0 && time.Duration(got.GetObservedBoottimeNs()) <= asked {
					t.Fatalf("a worker would take the observation for one of before its write at %d: %v", asked, got)
				}
				if time.Duration(got.GetObservedBoottimeNs()) > far.observed {
					t.Fatalf("the observation of %d is taken for one of %d", far.observed, got.GetObservedBoottimeNs())
				}
				if asked == 0 && far.inspections != before {
					t.Fatal("the record is accepted, and the runtime was asked")
				}
				again := far.inspections
				if _, err := client.GetPodStatus(t.Context(), "uid", written); err != nil || far.inspections != again {
					t.Fatalf("nothing was written since, and the runtime is asked again: %v", err)
				}
			}
		}
	})
}

func TestAPLEGWithoutTokensIsNotTakenForFresh(t *testing.T) {
	far := &farPLEG{now: 1000, observed: 10, old: true}
	client := clients.NewRemotePLEG(far, func() time.Duration { return far.now })
	if got, err := client.GetPodStatus(t.Context(), "uid", 500); err == nil {
		t.Errorf("GetPodStatus() = %v, want an error", got)
	}
}
