package loop_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/services/syncloop/internal/api/engineapi"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/loop"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
)

// TestACriticalPodPreemptsOthers checks that a critical pod preempts a pod of lower priority and waits for its end,
// and that a pod that would not fit anyway preempts none.
func TestACriticalPodPreemptsOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r *rig
		r = newRigWith(t, fakenode.New(), t.TempDir(), 0, func(cfg *loop.Config) {
			cfg.Preempt = func(ctx context.Context, uid types.UID, eviction podstore.Eviction) error {
				evicter := engineapi.Evictions{
					Book: r.book, Store: r.store, Workers: r.pool, Metrics: engineapi.NewMetrics(nil), Events: r.events,
				}
				return evicter.Preempt(ctx, uid, eviction)
			}
		})
		withPriority := func(pod *v1.Pod, priority int32) *v1.Pod {
			pod.Spec.Priority = ptr.To(priority)
			return pod
		}
		r.add(withPriority(cpus("lesser", "1500m", 0), 0))
		r.add(withPriority(cpus("other", "500m", 10), 0))
		r.source("file", true)
		r.configPeer.set(r.config)
		r.plegPeer.set(r.node.Events)
		r.pass(time.Second)
		r.setNode(machine("2"))
		r.eventually("both run", r.runs("lesser", "other"))
		r.add(withPriority(cpus("huge", "3", 20), 2_000_000_000))
		r.eventually("one that would not fit alone is refused", func() bool { return r.failed("huge", "OutOfcpu") })
		r.add(withPriority(cpus("critical", "1", 30), 2_000_000_000))
		r.stepUntil("the critical one runs instead of one other", time.Second, r.runs("critical", "other"))
		lesser := r.pod("lesser")
		if lesser.Status.Phase != v1.PodFailed || lesser.Status.Reason != "Preempting" || lesser.Status.Message != "Preempted in order to admit critical pod" {
			t.Errorf("the preempted pod: %s %s %q, want %s, %q and %q",
				lesser.Status.Phase, lesser.Status.Reason, lesser.Status.Message, v1.PodFailed, "Preempting",
				"Preempted in order to admit critical pod")
		}
		if _, kept := r.book.Get("lesser"); !kept {
			t.Error("a restart would start it again")
		}
	})
}
