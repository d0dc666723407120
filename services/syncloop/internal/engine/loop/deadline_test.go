package loop_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
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
