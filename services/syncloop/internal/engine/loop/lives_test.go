package loop_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/loop"
)

// addLife adds a pod with a life.
func (r *rig) addLife(pod *v1.Pod, life string) {
	r.config.Put(string(pod.UID), &loop.Desired{Pod: pod, Source: "file", Life: life})
}

// kills returns the number of kills.
func (r *rig) kills() int {
	return len(slices.DeleteFunc(r.node.Calls(), func(c string) bool { return !strings.HasPrefix(c, "kill ") }))
}

// restartConfigmux replaces configmux by one that found these pods at its start.
func (r *rig) restartConfigmux(pods ...*v1.Pod) {
	old := r.config
	r.config = stream.NewLevel[*loop.Desired](stream.Config{})
	for _, pod := range pods {
		r.addLife(pod, "")
	}
	r.source("file", true)
	r.configPeer.set(r.config)
	old.Close()
}

// TestAPodThatIsBackInAnotherLifeIsEndedAndRunAgain: one message replaced the removal and the recreation of the pod.
func TestAPodThatIsBackInAnotherLifeIsEndedAndRunAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.source("file", true)
		// The loop ends the earlier life, and then wants the next one. A stop takes longer than what is between the two.
		r.node.SetScript(fakenode.Script{Kill: func(context.Context, *v1.Pod, int64) error {
			time.Sleep(time.Millisecond)
			return nil
		}})
		web := func() *v1.Pod { return fakenode.Pod("u1", "web", always) }
		r.addLife(web(), "")
		r.eventually("web is ready", func() bool { return r.ready("u1") })
		for i, life := range []string{"e/2", "e/3"} {
			r.addLife(web(), life)
			r.eventually("web has been ended", func() bool { return r.kills() == i+1 })
			r.eventually("its restart count is continued", func() bool { return r.node.RestartCount("u1") == i+1 })
			r.eventually("web is cleaned up and ready again", func() bool {
				calls := r.node.Calls()
				last := len(calls) - 1 - slices.IndexFunc(reversed(calls), func(c string) bool {
					return strings.HasPrefix(c, "kill ")
				})
				return r.ready("u1") && slices.ContainsFunc(calls[last:], func(c string) bool { return strings.HasPrefix(c, "sync") })
			})
		}
		r.addLife(web(), "e/3")
		r.pass(5 * time.Minute)
		if n := r.kills(); n != 2 || !slices.Equal(r.node.Running(), []string{"web"}) {
			t.Errorf("%d times ended, want twice; calls: %v", n, r.node.Calls())
		}
	})
}

func reversed(lines []string) []string {
	out := slices.Clone(lines)
	slices.Reverse(out)
	return out
}

// TestARestartedConfigmuxStartsNoNewLife, but a pod that is removed and recreated after the restart has one.
func TestARestartedConfigmuxStartsNoNewLife(t *testing.T) {
	for name, before := range map[string]string{"of the start": "", "of a recreation": "e/2"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := start(t)
				r.source("file", true)
				web := func() *v1.Pod { return fakenode.Pod("u1", "web", always) }
				r.addLife(web(), before)
				r.eventually("web is ready", func() bool { return r.ready("u1") })
				for range 3 {
					r.restartConfigmux(web())
					r.pass(time.Minute)
				}
				if n := r.kills(); n != 0 {
					t.Fatalf("calls: %v, want no kill", r.node.Calls())
				}
				r.addLife(web(), "f/1")
				r.eventually("web has been ended", func() bool { return r.kills() == 1 })
				r.eventually("web runs again", func() bool { return r.ready("u1") })
			})
		})
	}
}

// TestALifeInASnapshot restarts configmux, and the manifest is recreated before the loop follows it again.
func TestALifeInASnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.source("file", true)
		web := fakenode.Pod("u1", "web", always)
		r.addLife(web, "")
		r.eventually("web is ready", func() bool { return r.ready("u1") })
		old := r.config
		r.config = stream.NewLevel[*loop.Desired](stream.Config{})
		r.addLife(web, "f/2")
		r.source("file", true)
		r.configPeer.set(r.config)
		old.Close()
		r.eventually("web has been ended", func() bool { return r.kills() == 1 })
		r.eventually("web runs again", func() bool { return r.ready("u1") })
		r.pass(5 * time.Minute)
		if n := r.kills(); n != 1 {
			t.Errorf("%d times ended, want once; calls: %v", n, r.node.Calls())
		}
	})
}

// TestARestartedSyncloopTakesTheLifeAsItIs: without the previous life, a life does not show that the pod was recreated.
func TestARestartedSyncloopTakesTheLifeAsItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := fakenode.New()
		node.Run(fakenode.Pod("u1", "web", always))
		r := newRig(t, node, t.TempDir())
		r.addLife(fakenode.Pod("u1", "web", always), "e/2")
		r.source("file", true)
		r.configPeer.set(r.config)
		r.plegPeer.set(node.Events)
		r.pass(5 * time.Minute)
		if n := r.kills(); n != 0 || !r.ready("u1") {
			t.Errorf("calls: %v, want no kill, and the pod u1 ready", r.node.Calls())
		}
	})
}

// TestTheRestartCountIsContinuedThroughAKill kills syncloop during the end of a pod, whose manifest is removed and put
// back meanwhile.
func TestTheRestartCountIsContinuedThroughAKill(t *testing.T) {
	web := func() *v1.Pod { return fakenode.Pod("u1", "web", always) }
	for name, test := range map[string]struct {
		killed func(*rig)
		// exits is true if the container ends while syncloop does not run.
		exits bool
	}{
		"during the grace period": {
			killed: func(r *rig) {
				r.node.SetScript(fakenode.Script{Kill: func(ctx context.Context, _ *v1.Pod, _ int64) error {
					<-ctx.Done()
					return ctx.Err()
				}})
				r.addLife(web(), "e/2")
				r.eventually("web is being stopped", func() bool { return r.kills() == 1 })
			},
		},
		"during the grace period, which then ends": {
			exits: true,
			killed: func(r *rig) {
				r.node.SetScript(fakenode.Script{Kill: func(ctx context.Context, _ *v1.Pod, _ int64) error {
					<-ctx.Done()
					return ctx.Err()
				}})
				r.addLife(web(), "e/2")
				r.eventually("web is being stopped", func() bool { return r.kills() == 1 })
			},
		},
		"between the lives": {
			killed: func(r *rig) {
				var released atomic.Bool
				r.node.SetScript(fakenode.Script{Release: func(*v1.Pod) error {
					released.Store(true)
					return errors.New("something hangs")
				}})
				r.addLife(web(), "e/2")
				r.eventually("the pod has ended", released.Load)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				node, stateDir := fakenode.New(), t.TempDir()
				r := newRig(t, node, stateDir)
				r.addLife(web(), "")
				r.source("file", true)
				r.configPeer.set(r.config)
				r.plegPeer.set(node.Events)
				r.eventually("web is ready", func() bool { return r.ready("u1") })
				test.killed(r)
				r.stop()
				node.SetScript(fakenode.Script{})
				if test.exits {
					node.Exit("u1", 143)
				}

				again := newRig(t, node, stateDir)
				again.addLife(web(), "e/2")
				again.source("file", true)
				again.configPeer.set(again.config)
				again.plegPeer.set(node.Restart())
				again.eventually("web runs with the next count", func() bool { return again.ready("u1") && node.RestartCount("u1") == 1 })
				again.pass(5 * time.Minute)
				if count := node.RestartCount("u1"); count != 1 || !again.ready("u1") {
					t.Errorf("restart count %d, want 1 and the pod ready", count)
				}
			})
		})
	}
}
