package loop_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/api/engineapi"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/loop"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
)

func TestEvictedPodStaysEvictedOverARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, dir := fakenode.New(), t.TempDir()
		pod := fakenode.Pod("u1", "web", always)
		r := newRig(t, node, dir)
		r.add(pod)
		r.source("file", true)
		r.configPeer.set(r.config)
		r.plegPeer.set(node.Events)
		r.eventually("web is ready", func() bool { return r.ready("u1") })
		r.book.Put("u1", podstore.Eviction{Reason: "Evicted", Message: "memory"})
		r.stop()

		again := newRig(t, node, dir)
		again.add(pod)
		again.source("file", true)
		again.configPeer.set(again.config)
		again.plegPeer.set(node.Events)
		again.eventually("web is stopped", again.runs())
		again.pass(5 * time.Minute)
		pods, err := again.store.Pods()
		if err != nil || len(pods) != 1 || pods[0].Status.Phase != v1.PodFailed || pods[0].Status.Reason != "Evicted" {
			t.Fatalf("Pods() = %v, %v, want exactly one, pods[0].Status.Phase %v and pods[0].Status.Reason %q",
				pods, err, v1.PodFailed, "Evicted")
		}
		if got := node.Running(); len(got) != 0 {
			t.Fatalf("running: %v, want none", got)
		}
		again.config.Delete("u1")
		again.eventually("it is forgotten", func() bool { return len(again.book.UIDs()) == 0 && len(node.UIDs()) == 0 })
	})
}

// TestPodsWithoutTheirContainersStayEndedOverARestart checks that an evicted pod, and a pod of the API server that ran
// to its end, does not run again when its ended containers are removed, and that its status shows how they ended.
func TestPodsWithoutTheirContainersStayEndedOverARestart(t *testing.T) {
	for name, test := range map[string]struct {
		source, reason string
		evicted        bool
		phase          v1.PodPhase
	}{
		"a static pod that was evicted":               {source: "file", reason: "Evicted", evicted: true, phase: v1.PodFailed},
		"a pod of the API server that was evicted":    {source: "api", reason: "Evicted", evicted: true, phase: v1.PodFailed},
		"a pod of the API server that ran to its end": {source: "api", phase: v1.PodSucceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				node, dir := fakenode.New(), t.TempDir()
				pod := fakenode.Pod("u1", "web", v1.RestartPolicyNever)
				pod.Annotations = map[string]string{podset.AnnotationSource: test.source}
				begin := func() *rig {
					r := newRig(t, node, dir)
					r.config.Put("u1", &loop.Desired{Pod: pod, Source: test.source})
					r.source(test.source, true)
					r.configPeer.set(r.config)
					r.plegPeer.set(node.Events)
					return r
				}
				r := begin()
				r.eventually("web is ready", func() bool { return r.ready("u1") })
				if test.evicted {
					evicter := engineapi.Evictions{
						Book: r.book, Store: r.store, Workers: r.pool, Metrics: engineapi.NewMetrics(nil), Events: r.events,
					}
					if err := evicter.Evict(t.Context(), "u1", podstore.Eviction{Reason: "Evicted", Message: "memory"}, 1); err != nil {
						t.Fatal(err)
					}
				} else {
					node.Exit("u1", 0)
				}
				var last *v1.PodStatus
				r.eventually("it has ended", func() bool {
					status, evicted, static, ended := r.store.Ended("u1")
					last = status
					return ended && evicted == test.evicted && static == (test.source == "file")
				})
				if kept, err := r.book.SetLast("u1", last, !test.evicted); err != nil || !kept {
					t.Fatalf("kept is %v, %v", kept, err)
				}
				r.store.SetLast("u1", last)
				if err := node.PruneContainers(t.Context(), r.store.Observed("u1"), 0); err != nil {
					t.Fatal(err)
				}
				check := func(r *rig) {
					t.Helper()
					pods, err := r.store.Pods()
					if err != nil || len(pods) != 1 || pods[0].Status.Phase != test.phase || pods[0].Status.Reason != test.reason {
						t.Fatalf("Pods() = %v, %v, want exactly one, pods[0].Status.Phase %v and pods[0].Status.Reason %v",
							pods, err, test.phase, test.reason)
					}
					if diff := cmp.Diff(inSeconds(last), inSeconds(&pods[0].Status)); diff != "" ||
						last.ContainerStatuses[0].State.Terminated == nil {
						t.Errorf("the containers' statuses (-before +after):\n%s", diff)
					}
					if got := node.Running(); len(got) != 0 {
						t.Fatalf("running: %v, want none", got)
					}
				}
				r.eventually("the containers are gone", func() bool { return len(r.store.Observed("u1").GetContainers()) == 0 })
				check(r)
				r.stop()

				again := begin()
				again.eventually("its worker is done", func() bool {
					_, _, _, ended := again.store.Ended("u1")
					return ended
				})
				again.pass(5 * time.Minute)
				check(again)
				again.config.Delete("u1")
				again.eventually("it is forgotten", func() bool { return len(again.book.UIDs()) == 0 })
			})
		})
	}
}

// inSeconds returns the container statuses with times in whole seconds, as on disk and in the API server.
func inSeconds(status *v1.PodStatus) []v1.ContainerStatus {
	out := status.DeepCopy().ContainerStatuses
	for i := range out {
		if ended := out[i].State.Terminated; ended != nil {
			ended.StartedAt = metav1.NewTime(ended.StartedAt.Truncate(time.Second))
			ended.FinishedAt = metav1.NewTime(ended.FinishedAt.Truncate(time.Second))
		}
	}
	return out
}
