package loop_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/loop"
)

// brief returns a pod with an active deadline of one minute.
func brief() *v1.Pod {
	pod, limit := fakenode.Pod("u1", "web", always), int64(60)
	pod.Spec.ActiveDeadlineSeconds = &limit
	return pod
}

// overdue reports whether the pod has failed because of its deadline.
func (r *rig) overdue() bool {
	pods, err := r.store.Pods()
	return err == nil && len(pods) == 1 && pods[0].Status.Phase == v1.PodFailed &&
		pods[0].Status.Reason == "DeadlineExceeded"
}

func TestAPodIsActiveNoLongerThanItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, stateDir := fakenode.New(), t.TempDir()
		r := newRig(t, node, stateDir)
		r.add(brief())
		r.source("file", true)
		r.configPeer.set(r.config)
		r.plegPeer.set(node.Events)
		r.eventually("web is ready", func() bool { return r.ready("u1") })
		r.pass(30 * time.Second)
		if r.overdue() || !r.ready("u1") {
			t.Error("it was ended before its deadline")
		}
		r.pass(40 * time.Second)
		r.eventually("it is ended", func() bool { return r.overdue() && len(node.Running()) == 0 })
		if events := r.events.list(); !slices.Equal(events, []string{"Normal DeadlineExceeded web"}) {
			t.Errorf("events %v, want one", events)
		}
		r.stop()

		// The next process knows that the pod has failed.
		again := newRig(t, node, stateDir)
		again.add(brief())
		again.source("file", true)
		again.configPeer.set(again.config)
		again.plegPeer.set(node.Restart())
		again.pass(time.Minute)
		if !again.overdue() || len(node.Running()) > 0 {
			t.Errorf("after a restart %v runs", node.Running())
		}
	})
}

// TestADeadlineIsOfTheWallClock sets the clock by a year while a pod runs. As with a kubelet, the deadline counts from
// status.startTime on the wall clock: a jump forward ends the pod, and after a jump back it runs on. Pods without a
// deadline run on in either case.
func TestADeadlineIsOfTheWallClock(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for _, jump := range []time.Duration{year, -year} {
		t.Run(jump.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				node, without := fakenode.New(), fakenode.Pod("u2", "without", always)
				node.Run(brief())
				node.Run(without)
				r := newRigWith(t, node, t.TempDir(), 0, func(c *loop.Config) {
					clock := c.Clock.(*clocktesting.FakeClock) //nolint:forcetypeassert // that of a rig
					clock.SetTime(clock.Now().Add(jump))
				})
				r.add(brief())
				r.add(without)
				r.source("file", true)
				r.configPeer.set(r.config)
				r.plegPeer.set(node.Events)
				r.eventually("the pod without a deadline is ready", func() bool { return r.ready("u2") })
				r.pass(2 * time.Minute)
				want := []string{"web", "without"}
				if jump > 0 {
					want = []string{"without"}
				}
				r.eventually("the pods run that should", r.runs(want...))
				if node.Container("u2") != "container-2" {
					t.Errorf("the pod without a deadline runs in %s, and ran in container-2", node.Container("u2"))
				}
			})
		})
	}
}
