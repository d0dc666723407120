package loop_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
)

// slow returns a pod with a grace period of one minute.
func slow() *v1.Pod {
	pod, grace := fakenode.Pod("u1", "web", always), int64(60)
	pod.Spec.TerminationGracePeriodSeconds = &grace
	return pod
}

// killedWhileEnding returns a node whose process was killed during the grace period of a pod.
func killedWhileEnding(t *testing.T, end func(*rig)) (node *fakenode.Node, stateDir string) {
	t.Helper()
	node, stateDir = fakenode.New(), t.TempDir()
	r := newRig(t, node, stateDir)
	r.add(slow())
	r.source("file", true)
	r.configPeer.set(r.config)
	r.plegPeer.set(node.Events)
	r.eventually("web is ready", func() bool { return r.ready("u1") })
	node.SetScript(fakenode.Script{Kill: func(ctx context.Context, _ *v1.Pod, _ int64) error {
		<-ctx.Done() // it needs its whole grace period
		return ctx.Err()
	}})
	end(r)
	r.eventually("web is being stopped", func() bool { return slices.Contains(node.Calls(), "kill web 60") })
	r.stop()
	node.SetScript(fakenode.Script{})
	return node, stateDir
}

// after20s starts the next process 20 s later, with the pods that its source names now.
func after20s(t *testing.T, node *fakenode.Node, stateDir string, named ...*v1.Pod) *rig {
	t.Helper()
	r := newRigWith(t, node, stateDir, 20*time.Second)
	for _, pod := range named {
		r.add(pod)
	}
	r.source("file", true)
	r.configPeer.set(r.config)
	r.plegPeer.set(node.Restart())
	return r
}

// checkRemainingGrace checks that the next process stopped the pod once, with the rest of its grace period.
func (r *rig) checkRemainingGrace() {
	r.t.Helper()
	kills := slices.DeleteFunc(r.node.Calls(), func(call string) bool { return !strings.HasPrefix(call, "kill") })
	if len(kills) != 2 || kills[1] != "kill web 40" {
		r.t.Errorf("calls %v, want it stopped with the 40 s that were left", kills)
	}
}

func TestARemovedPodHasTheRestOfItsGracePeriodAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, stateDir := killedWhileEnding(t, func(r *rig) { r.config.Delete("u1") })
		r := after20s(t, node, stateDir)
		r.eventually("nothing is left", func() bool { return len(node.UIDs()) == 0 })
		r.checkRemainingGrace()
		if known := r.endings.UIDs(); len(known) > 0 {
			t.Errorf("the end of %v is still known", known)
		}
	})
}

// TestAPodThatEndsIsShownFromTheFirstAnswerOn: after a restart a client that waits for the end of the pod must not miss
// a pod that still runs.
func TestAPodThatEndsIsShownFromTheFirstAnswerOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, stateDir := killedWhileEnding(t, func(r *rig) { r.config.Delete("u1") })
		node.SetScript(fakenode.Script{Kill: func(ctx context.Context, _ *v1.Pod, _ int64) error {
			<-ctx.Done()
			return ctx.Err()
		}})
		r := after20s(t, node, stateDir)
		r.eventually("the pods are shown", func() bool { _, err := r.store.List(); return err == nil })
		if list, err := r.store.List(); err != nil || len(list) != 1 {
			t.Errorf("%d pods are shown (%v), want the one that ends", len(list), err)
		}
	})
}

func TestADeletedPodHasTheRestOfItsGracePeriodAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		deleted := slow()
		now := metav1.Now()
		deleted.DeletionTimestamp = &now
		node, stateDir := killedWhileEnding(t, func(r *rig) { r.add(deleted) })
		r := after20s(t, node, stateDir, deleted)
		r.eventually("web is stopped", r.runs())
		r.checkRemainingGrace()
	})
}

func TestAPodThatIsNamedAgainWhileItEndsIsStartedWhenItHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, stateDir := killedWhileEnding(t, func(r *rig) { r.config.Delete("u1") })
		before := node.Container("u1")
		r := after20s(t, node, stateDir, slow())
		r.eventually("web runs in a new container", func() bool {
			c := node.Container("u1")
			return c != "" && c != before && r.ready("u1")
		})
		r.checkRemainingGrace()
	})
}

func TestTheEndOfAPodThatIsGoneIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, stateDir := killedWhileEnding(t, func(r *rig) { r.config.Delete("u1") })
		node.Vanish("u1")
		r := after20s(t, node, stateDir)
		r.eventually("the end is forgotten", func() bool { return len(r.endings.UIDs()) == 0 })
	})
}
