package loop_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
	"github.com/quartet-node/quartet/test/require"
)

// makeUnreadable has every read of a file fail with an I/O error, until readable is called.
func makeUnreadable(t *testing.T, file string) (readable func()) {
	t.Helper()
	require.NoError(t, os.Rename(file, file+".good"))
	require.NoError(t, os.Symlink("/proc/self/mem", file)) // of which no read succeeds
	return func() { require.NoError(t, os.Rename(file+".good", file)) }
}

// bookIsRead waits until the book is read again, in the time of the bubble.
func (r *rig) bookIsRead() {
	r.t.Helper()
	r.eventually("the book is read", func() bool { return r.book.Unread() == nil })
}

// TestNoEvictedPodStartsWhileTheBookCannotBeRead restarts a node with a running pod, an evicted one and one that was
// evicted just before the kill. Each read of the book fails with an I/O error until the disk is well. Until then only
// the first pod runs; then a new pod starts, and the evicted ones have failed.
func TestNoEvictedPodStartsWhileTheBookCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, stateDir := fakenode.New(), t.TempDir()
		file := filepath.Join(stateDir, "evictions.json")
		r := newRig(t, node, stateDir)
		for _, uid := range []string{"kept", "late"} {
			r.add(fakenode.Pod(uid, uid, always))
		}
		r.source("file", true)
		r.configPeer.set(r.config)
		r.plegPeer.set(node.Events)
		r.eventually("both run", r.runs("kept", "late"))
		for _, uid := range []string{"gone", "late"} {
			r.book.Put(types.UID(uid), podstore.Eviction{Reason: "Evicted"})
		}
		r.stop()
		readable := makeUnreadable(t, file)

		again := newRig(t, node, stateDir)
		for _, uid := range []string{"kept", "late", "gone", "new"} {
			again.add(fakenode.Pod(uid, uid, always))
		}
		again.source("file", true)
		again.configPeer.set(again.config)
		again.plegPeer.set(node.Restart())
		again.eventually("the running pods are ready", func() bool { return again.ready("kept") && again.ready("late") })
		again.pass(time.Minute)
		if got := node.Running(); !slices.Equal(got, []string{"kept", "late"}) {
			t.Errorf("without the book %v run, want the pods that ran", got)
		}
		if reasons := strings.Join(again.loop.Health().Reasons, "; "); !strings.Contains(reasons, file) {
			t.Errorf("the health says %q, want the file", reasons)
		}
		if got := again.pod("new").Status; got.Reason != "EvictionsUnreadable" {
			t.Errorf("the new pod waits for %v, want EvictionsUnreadable", got.Reason)
		}
		readable()
		again.bookIsRead()
		again.eventually("the new pod runs, and the evicted ones do not", again.runs("kept", "new"))
		for _, uid := range []string{"late", "gone"} {
			if got := again.pod(uid).Status; got.Reason != "Evicted" || got.Phase != v1.PodFailed {
				t.Errorf("%s is %s %s, want Failed Evicted", uid, got.Phase, got.Reason)
			}
		}
		if reasons := again.loop.Health().Reasons; len(reasons) > 0 {
			t.Errorf("at the end the health says %q", reasons)
		}
	})
}

// TestAResizeThatCannotBeReadIsNotForgotten accepts a resize that the runtime does not do, kills the process, and has
// each read of its record fail until the disk is well. Then it is done, although the node has no room for what the
// source asks for by now.
func TestAResizeThatCannotBeReadIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, stateDir := fakenode.New(), t.TempDir()
		begin := func(cpu string) *rig {
			r := newRig(t, node, stateDir)
			r.setNode(machine("2"))
			r.add(cpus("a", cpu, 0))
			r.source("file", true)
			r.configPeer.set(r.config)
			r.plegPeer.set(node.Restart())
			return r
		}
		r := begin("500m")
		r.eventually("it runs", r.runs("a"))
		node.SetScript(fakenode.Script{Resize: func(*v1.Pod) error { return errors.New("the runtime is busy") }})
		r.change(cpus("a", "1500m", 0))
		r.eventually("it cannot be resized", func() bool { return r.condition("a", v1.PodResizeInProgress).Reason == v1.PodReasonError })
		r.stop()
		file := filepath.Join(stateDir, "resizes", "a.json")
		readable := makeUnreadable(t, file)

		node.SetScript(fakenode.Script{})
		again := begin("3")
		again.eventually("it waits", func() bool {
			return again.pending("a") && strings.Contains(again.condition("a", v1.PodResizePending).Message, file)
		})
		if got := again.requestedCPU("a"); got != "500m" {
			t.Errorf("without the record it has %s, want what runs", got)
		}
		readable()
		again.eventually("it has the accepted resize", func() bool { return again.requestedCPU("a") == "1500m" })
	})
}

// TestAnEvictionIsShownAlsoWhenItIsReadWhileThePodEnds kills a process that was ending an evicted pod. The next one
// cannot read the book, and goes on to end the pod. The book is read before, or after, the pod has ended.
func TestAnEvictionIsShownAlsoWhenItIsReadWhileThePodEnds(t *testing.T) {
	for name, early := range map[string]bool{"while it ends": true, "when it has ended": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				node, stateDir := killedWhileEnding(t, func(r *rig) {
					r.book.Put("u1", podstore.Eviction{Reason: "Evicted"})
					r.pool.End("u1", podworkers.Cause{Kind: podworkers.CauseConfig}, podworkers.End{})
				})
				readable := makeUnreadable(t, filepath.Join(stateDir, "evictions.json"))
				ended := make(chan struct{})
				node.SetScript(fakenode.Script{Kill: func(context.Context, *v1.Pod, int64) error {
					<-ended
					return nil
				}})
				r := after20s(t, node, stateDir, slow())
				r.eventually("the pod is being stopped", func() bool { return r.pool.Ending("u1") })
				read := func() {
					readable()
					r.bookIsRead()
					r.pass(time.Minute)
				}
				if early {
					read()
				}
				close(ended)
				r.eventually("the pod has ended", r.runs())
				if !early {
					r.pass(time.Minute)
					read()
				}
				r.eventually("the pod is shown as evicted", func() bool {
					status := r.pod("u1").Status
					return status.Reason == "Evicted" && status.Phase == v1.PodFailed
				})
			})
		})
	}
}

// TestAnEvictionIsShownThatIsReadBeforePodsAreSynced has the book readable after the source has named the pod, and
// before pleg answers.
func TestAnEvictionIsShownThatIsReadBeforePodsAreSynced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stateDir := t.TempDir()
		file := filepath.Join(stateDir, "evictions.json")
		require.NoError(t, os.WriteFile(file, []byte(`{"u1": {"reason": "Evicted"}}`), 0o600))
		readable := makeUnreadable(t, file)
		r := newRig(t, fakenode.New(), stateDir)
		r.add(slow())
		r.source("file", true)
		r.configPeer.set(r.config)
		r.eventually("the pod is known", func() bool { return r.store.Has("u1") })
		readable()
		r.bookIsRead()
		r.plegPeer.set(r.node.Events)
		r.eventually("the pod is shown as evicted", func() bool {
			pods, err := r.store.List()
			return err == nil && len(pods) == 1 && r.pod("u1").Status.Reason == "Evicted"
		})
		if calls := r.node.Calls(); slices.Contains(calls, "sync web") {
			t.Errorf("calls %v, want no start", calls)
		}
	})
}
