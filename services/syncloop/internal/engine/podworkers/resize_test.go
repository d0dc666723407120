package podworkers_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/boottime"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/statusmanager"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/gracebook"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/resizes"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resize"
)

// recordingPleg is a pleg that records how new each observation must be.
type recordingPleg struct {
	*fakenode.Node
	newerThan chan time.Duration
}

func (a recordingPleg) GetPodStatus(
	ctx context.Context, uid types.UID, newerThan time.Duration,
) (*lifecyclev1.PodStatus, error) {
	select {
	case a.newerThan <- newerThan:
	default:
	}
	return a.Node.GetPodStatus(ctx, uid, newerThan)
}

// TestAPodThatWasBeingResizedIsObservedAgain: an earlier process may have changed the pod after the last observation.
func TestAPodThatWasBeingResizedIsObservedAgain(t *testing.T) {
	for _, resized := range []bool{true, false} {
		pleg := recordingPleg{fakenode.New(), make(chan time.Duration, 1)}
		pod := fakenode.Pod("u-1", "web", v1.RestartPolicyAlways)
		pleg.Run(pod)
		book := resizes.InMemory()
		if resized {
			book.Change(pod.UID, resize.Of(pod), func(r *resize.Record) { r.Conditions = r.Conditions.Accept(1, time.Now()) })
		}
		process, end := context.WithCancel(context.Background())
		logger := slog.New(slog.DiscardHandler)
		store := podstore.New(podstore.Config{
			API: statusmanager.None{}, Clock: clock.RealClock{}, Tracer: telemetry.Off(), Logger: logger,
		})
		store.Open()
		begun := boottime.Now()
		pool := podworkers.NewPool(process, podworkers.Config{
			Runtime: pleg, Observer: pleg, Statuses: store, Endings: gracebook.InMemory(boottime.Now), Resizes: book,
			Events: &eventRecorder{}, Clock: clock.RealClock{}, BootTime: boottime.Now,
			Tracer: telemetry.Off(), Logger: logger, Resync: time.Minute,
		})
		pool.Want(pod, podworkers.Cause{Kind: podworkers.CauseConfig}, nil)
		if got := <-pleg.newerThan; resized != (got >= begun) {
			t.Errorf("resized %v: the first observation has to be newer than %v; the process began at %v", resized, got, begun)
		}
		end()
		pool.Wait()
		store.Close()
	}
}
