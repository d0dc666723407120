package loop_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/loop"
)

// severalPeriods is longer than a housekeeping and some periods of the probe.
const severalPeriods = 5 * time.Second

// probedPod returns a pod with a readiness probe with thresholds of 1.
func probedPod() *v1.Pod {
	pod := fakenode.Pod("u1", "web", always)
	pod.Spec.Containers[0].ReadinessProbe = &v1.Probe{PeriodSeconds: 1, FailureThreshold: 1, SuccessThreshold: 1}
	return pod
}

// listedReady reports whether the container of the only listed pod is ready. The pod may be an orphan.
func (r *rig) listedReady() bool {
	r.t.Helper()
	list, err := r.store.List()
	if err != nil || len(list) != 1 {
		r.t.Fatalf("%d pods are listed: %v, want 1", len(list), err)
	}
	var pod v1.Pod
	if err := pod.Unmarshal(list[0].GetPod()); err != nil {
		r.t.Fatal(err)
	}
	return pod.Status.ContainerStatuses[0].Ready
}

// syncs returns the number of syncs.
func (r *rig) syncs() int { return strings.Count(strings.Join(r.node.Calls(), "\n"), "sync ") }

func TestReadyFollowsTheReadinessProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.source("file", true)
		r.probesFail.Store(true)
		r.add(probedPod())
		r.eventually("it runs", r.runs("web"))
		r.pass(severalPeriods)
		if r.ready("u1") {
			t.Fatal("it is ready before its probe has succeeded")
		}
		for _, probesFail := range []bool{false, true, false} {
			before := r.syncs()
			r.probesFail.Store(probesFail)
			r.eventually("its status follows", func() bool { return r.ready("u1") != probesFail })
			r.eventually("its worker looks", func() bool { return r.syncs() > before })
		}
	})
}

func TestAPodThatIsBeingEndedIsNotKilledAgainForItsProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, killed := fakenode.New(), make(chan struct{})
		node.SetScript(fakenode.Script{Kill: func(ctx context.Context, _ *v1.Pod, _ int64) error {
			select {
			case <-killed:
			case <-ctx.Done():
			}
			return ctx.Err()
		}})
		r := newRig(t, node, t.TempDir())
		r.configPeer.set(r.config)
		r.plegPeer.set(r.node.Events)
		r.source("file", true)
		r.add(probedPod())
		r.eventually("it is ready", func() bool { return r.ready("u1") })
		r.config.Delete("u1")
		r.eventually("it is being killed", func() bool { return strings.Contains(strings.Join(node.Calls(), "\n"), "kill ") })
		r.probesFail.Store(true)
		r.eventually("it is shown as not ready", func() bool { return !r.listedReady() })
		close(killed)
		r.eventually("it is gone", func() bool { return len(node.UIDs()) == 0 })
		if got := strings.Count(strings.Join(node.Calls(), "\n"), "kill "); got != 1 {
			t.Errorf("it was killed %d times: %v, want 1", got, node.Calls())
		}
	})
}

func TestAPodIsReadyFromTheFirstAnswerAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, dir := fakenode.New(), t.TempDir()
		r := newRig(t, node, dir)
		r.configPeer.set(r.config)
		r.plegPeer.set(node.Events)
		r.source("file", true)
		r.add(probedPod())
		r.eventually("it is ready", func() bool { return r.ready("u1") })
		r.stop()

		again := newRig(t, node, dir)
		again.probesFail.Store(true) // the kept result counts
		again.add(probedPod())       // before its source is ready, or it is taken for removed
		again.source("file", true)
		again.configPeer.set(again.config)
		again.plegPeer.set(node.Restart())
		again.eventually("the pods are known", func() bool {
			pods, err := again.store.Pods()
			if err != nil || len(pods) == 0 {
				return false
			}
			if !again.ready("u1") {
				t.Fatal("it is not ready in the first answer")
			}
			return true
		})
	})
}

func TestResultsOfPodsThatAreGoneAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, dir := fakenode.New(), t.TempDir()
		r := newRig(t, node, dir)
		r.configPeer.set(r.config)
		r.plegPeer.set(node.Events)
		r.source("file", true)
		r.add(probedPod())
		r.eventually("it is ready", func() bool { return r.ready("u1") })
		r.stop()
		node.Vanish("u1")

		again := newRig(t, node, dir)
		again.configPeer.set(again.config)
		again.plegPeer.set(node.Restart())
		again.source("file", false)
		again.pass(severalPeriods)
		if len(again.probes.UIDs()) != 1 {
			t.Error("it was forgotten before its source was ready")
		}
		again.source("file", true)
		again.eventually("its results are forgotten", func() bool {
			files, err := os.ReadDir(filepath.Join(dir, "probes"))
			return err == nil && len(files) == 0 && len(again.probes.UIDs()) == 0
		})
	})
}

func TestTheTraceOfAStartEndsWithTheProbeThatMakesThePodReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.source("file", true)
		const change = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
		r.config.Put("u1", &loop.Desired{Pod: probedPod(), Source: "file", Traceparent: change})
		ids, parents := map[string]string{}, map[string]string{}
		look := func() {
			clear(ids)
			clear(parents)
			for _, span := range r.spans.Ended() {
				if _, seen := ids[span.Name()]; !seen {
					ids[span.Name()], parents[span.Name()] = span.SpanContext().SpanID().String(), span.Parent().SpanID().String()
				}
			}
		}
		r.eventually("the spans are there", func() bool { look(); return len(ids) == 5 })
		want := map[string]string{
			"dispatch": "b7ad6b7169203331", "pod.sync": ids["dispatch"], "probe": ids["pod.sync"], "status.update": ids["probe"],
			"wait": ids["pod.sync"], // for the probe
		}
		if diff := cmp.Diff(want, parents); diff != "" {
			t.Errorf("parents (-want +got):\n%s", diff)
		}
		r.probesFail.Store(true)
		r.eventually("it fails", func() bool { return !r.ready("u1") })
		r.eventually("its trace is there", func() bool {
			for _, span := range r.spans.Ended() {
				if span.Name() != "probe" || span.Parent().IsValid() {
					continue
				}
				if links := span.Links(); len(links) != 1 || links[0].SpanContext.SpanID().String() != ids["pod.sync"] {
					t.Fatalf("a failure is linked to %v, want exactly one and links[0].SpanContext.SpanID %v",
						links, ids["pod.sync"])
				}
				for _, next := range r.spans.Ended() {
					if next.Name() == "pod.sync" && next.Parent().SpanID() == span.SpanContext().SpanID() {
						return true
					}
				}
			}
			return false
		})
	})
}
