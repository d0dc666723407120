package loop_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
)

// TestManifestChangedWhileTheProcessWasDead: the old pod still runs and only the runtime knows it. fakenode records a
// violation if both run at a time.
func TestManifestChangedWhileTheProcessWasDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := fakenode.New()
		node.Run(fakenode.Pod("u1", "web", always))
		r := newRig(t, node, t.TempDir())
		r.add(fakenode.Pod("u2", "web", always))
		r.source("file", true)
		r.configPeer.set(r.config)
		r.plegPeer.set(node.Events)
		r.eventually("only the new pod is left, and ready", func() bool { return slices.Equal(node.UIDs(), []types.UID{"u2"}) && r.ready("u2") })
	})
}

func TestPodWaitsForAnotherOfItsNameThatASilentSourceMayWant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := fakenode.New()
		node.Run(fakenode.Pod("u1", "web", always))
		r := newRig(t, node, t.TempDir())
		r.add(fakenode.Pod("u2", "web", always))
		r.source("file", true)
		r.source("http", false)
		r.configPeer.set(r.config)
		r.plegPeer.set(node.Events)
		r.pass(time.Minute)
		if calls := node.Calls(); len(calls) > 0 {
			t.Fatalf("calls before a source is ready: %v", calls)
		}
		pods, err := r.store.Pods()
		if err != nil || len(pods) != 1 || pods[0].Status.Reason != "NameTaken" {
			t.Errorf("pods %v, error %v, want exactly one and pods[0].Status.Reason %q", pods, err, "NameTaken")
		}
		r.source("http", true)
		r.eventually("only the new pod is left, and ready", func() bool { return slices.Equal(node.UIDs(), []types.UID{"u2"}) && r.ready("u2") })
	})
}

func TestFilesOfPodsThatAreGoneAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.add(fakenode.Pod("u1", "web", always))
		pods := []*v1.Pod{fakenode.Pod("u1", "web", always), fakenode.Pod("gone", "gone", always), {ObjectMeta: metav1.ObjectMeta{UID: "nameless"}}}
		r.leftovers.Store(&pods)
		cleaned := func(uid string) bool { return slices.Contains(r.node.Calls(), "clean "+uid) }
		r.pass(time.Minute)
		if cleaned("gone") {
			t.Fatal("a pod was cleaned up that an unready source may still name")
		}
		r.source("file", true)
		r.eventually("the leftovers are removed", func() bool { return cleaned("gone") && cleaned("nameless") })
		r.eventually("web is ready", func() bool { return r.ready("u1") })
		if calls := r.node.Calls(); cleaned("u1") || slices.ContainsFunc(calls, func(c string) bool { return strings.HasPrefix(c, "kill") }) {
			t.Errorf("calls: %v, want no kill and no clean-up of u1", calls)
		}
	})
}

// TestDeletedPodIsStoppedAndNotStartedAgain has a pod with a deletion timestamp that its source still names.
func TestDeletedPodIsStoppedAndNotStartedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.source("file", true)
		r.add(fakenode.Pod("u1", "web", always))
		r.eventually("web is ready", func() bool { return r.ready("u1") })
		deleted := fakenode.Pod("u1", "web", always)
		now, grace := metav1.Now(), int64(7)
		deleted.DeletionTimestamp, deleted.DeletionGracePeriodSeconds = &now, &grace
		r.add(deleted)
		r.eventually("web is stopped", r.runs())
		if calls := r.node.Calls(); !slices.Contains(calls, "kill web 7") {
			t.Errorf("calls: %v, want %q among them", calls, "kill web 7")
		}
		r.pass(5 * time.Minute)
		if got := r.node.Running(); len(got) > 0 {
			t.Errorf("running: %v, want none", got)
		}
		if pods, err := r.store.Pods(); err != nil || len(pods) != 1 {
			t.Errorf("the source still names the pod; listed: %v, %v", pods, err)
		}
		r.config.Delete("u1")
		r.eventually("nothing is left", func() bool { return len(r.node.UIDs()) == 0 && r.store.Len() == 0 })
	})
}

func TestPodThatIsFirstSeenBeingDeletedIsNotStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.source("file", true)
		deleted := fakenode.Pod("u1", "web", always)
		now := metav1.Now()
		deleted.DeletionTimestamp = &now
		r.add(deleted)
		r.pass(time.Minute)
		for _, call := range r.node.Calls() {
			if strings.HasPrefix(call, "sync") {
				t.Errorf("it was started: %v, want call not beginning with %q", r.node.Calls(), "sync")
			}
		}
	})
}
