package podworkers_test

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/boottime"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/statusmanager"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/gracebook"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 60 * time.Second

// rig is a pool over a fake node, with a real store.
type rig struct {
	node  *fakenode.Node
	store *podstore.Store
	pool  *podworkers.Pool
	// endings is the pool's.
	endings *gracebook.Book
	// endProcess cancels the context of the process.
	endProcess context.CancelFunc
	pump       sync.WaitGroup
	// warnings counts the log records at level warning and above.
	warnings atomic.Int64
	// volumes is the state of the volumes of each pod; nil for none.
	volumes atomic.Pointer[[]*enginev1.Volume]
}

func newRig(node *fakenode.Node) *rig { return newRigWith(node, 20*time.Millisecond) }

func newRigWith(node *fakenode.Node, resync time.Duration) *rig {
	return newTracedRig(node, resync, telemetry.Off())
}

func newTracedRig(node *fakenode.Node, resync time.Duration, tracer trace.Tracer) *rig {
	process, end := context.WithCancel(context.Background())
	r := &rig{node: node, endProcess: end, endings: gracebook.InMemory(boottime.Now)}
	logger := slog.New(counter{&r.warnings})
	r.store = podstore.New(podstore.Config{
		API: statusmanager.None{}, Clock: clock.RealClock{}, Tracer: tracer, Logger: logger,
	})
	r.store.Open()
	r.pool = podworkers.NewPool(process, podworkers.Config{
		Runtime: node, Observer: node, Statuses: r.store, Endings: r.endings,
		Clock: clock.RealClock{}, BootTime: boottime.Now, Tracer: tracer, Logger: logger, Resync: resync,
		Volumes: func(types.UID) []*enginev1.Volume {
			if all := r.volumes.Load(); all != nil {
				return *all
			}
			return nil
		},
	})
	// As the loop does: poke the workers that are due.
	r.pump.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-process.Done():
				return
			case now := <-tick.C:
				for _, uid := range r.pool.Due().Take(now) {
					r.pool.Poke(uid, podworkers.Cause{Kind: podworkers.CauseDue})
				}
			}
		}
	})
	return r
}

func (r *rig) stop() {
	r.endProcess()
	r.pump.Wait()
	r.pool.Wait()
	r.store.Close()
}

func start(t *testing.T) *rig {
	t.Helper()
	r := newRig(fakenode.New())
	t.Cleanup(func() {
		r.stop()
		for _, rule := range r.node.Broken() {
			t.Errorf("broken rule: %v", rule)
		}
	})
	return r
}

func (r *rig) want(pod *v1.Pod) {
	r.store.SetPod(pod, "file", "")
	r.pool.Want(pod, podworkers.Cause{Kind: podworkers.CauseConfig}, nil)
}

func (r *rig) remove(uid types.UID, end podworkers.End) bool {
	end.Removed = true
	r.store.Unwant(uid)
	return r.pool.End(uid, podworkers.Cause{Kind: podworkers.CauseConfig}, end)
}

func (r *rig) running(names ...string) func() bool {
	return func() bool { return slices.Equal(r.node.Running(), names) }
}

func (r *rig) state(uid string) enginev1.WorkerState {
	for _, w := range r.pool.List() {
		if w.GetPodUid() == uid {
			return w.GetState()
		}
	}
	return enginev1.WorkerState_WORKER_STATE_UNSPECIFIED
}
