package loop_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/loop"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
)

const always = v1.RestartPolicyAlways

func TestPodRunsIsReadyChangesAndGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.add(fakenode.Pod("u1", "web", always))
		r.source("file", true)
		r.eventually("web is ready", func() bool { return r.ready("u1") })

		r.config.Delete("u1")
		r.add(fakenode.Pod("u2", "web", always))
		r.eventually("the changed pod is ready", func() bool { return r.ready("u2") && slices.Equal(r.node.UIDs(), []types.UID{"u2"}) })

		r.config.Delete("u2")
		r.eventually("nothing is left", func() bool { return len(r.node.UIDs()) == 0 && r.store.Len() == 0 })
	})
}

func TestReadyShowsWithTheEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.source("file", true)
		r.add(fakenode.Pod("u1", "web", always))
		// The clock stands still, so only events can make the pod ready.
		deadline := time.Now().Add(60 * time.Second)
		for !r.ready("u1") {
			if time.Now().After(deadline) {
				t.Fatal("web does not become ready by events alone")
			}
			if len(r.node.Calls()) == 0 {
				r.clock.Step(50 * time.Millisecond)
			}
			<-time.After(time.Millisecond)
		}
	})
}

func TestCrashedContainerIsStartedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.source("file", true)
		r.add(fakenode.Pod("u1", "web", always))
		r.eventually("web is ready", func() bool { return r.ready("u1") })
		before := r.node.Container("u1")
		r.node.Exit("u1", 1)
		r.eventually("web runs again", func() bool { return r.node.Container("u1") != before && r.ready("u1") })
	})
}

func TestOldestPodsAreDispatchedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, fakenode.New(), t.TempDir())
		for i, age := range []time.Duration{1, 3, 2} {
			pod := fakenode.Pod(fmt.Sprintf("u%d", i), fmt.Sprintf("age-%d", age), always)
			pod.CreationTimestamp = metav1.NewTime(time.Unix(1_700_000_000, 0).Add(-age * time.Hour))
			r.add(pod)
		}
		r.source("file", true)
		r.configPeer.set(r.config)
		r.plegPeer.set(r.node.Events)
		r.eventually("all run", r.runs("age-1", "age-2", "age-3"))
		var order []string
		for _, span := range r.spans.Ended() {
			if span.Name() == "dispatch" {
				attributes := attribute.NewSet(span.Attributes()...)
				name, _ := attributes.Value("k8s.pod.name")
				order = append(order, name.AsString())
			}
		}
		if want := []string{"age-3", "age-2", "age-1"}; !slices.Equal(order, want) {
			t.Errorf("dispatched %v, want %v", order, want)
		}
	})
}

func TestRestartTouchesNothingThatRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := fakenode.New()
		var pods []*v1.Pod
		for i := range 10 {
			pod := fakenode.Pod(fmt.Sprintf("u%d", i), fmt.Sprintf("web-%d", i), always)
			pods = append(pods, pod)
			node.Run(pod)
		}
		containers := map[types.UID]string{}
		for _, pod := range pods {
			containers[pod.UID] = node.Container(pod.UID)
		}
		r := newRig(t, node, t.TempDir())
		// Callers get an error and no incomplete list, in whatever order the peers appear.
		r.plegPeer.set(node.Events)
		r.pass(3 * time.Second)
		if _, err := r.store.Pods(); !errors.As(err, new(*podstore.NotReadyError)) {
			t.Fatalf("pods are listed before configmux is there: %v", err)
		}
		for _, pod := range pods {
			r.add(pod)
		}
		r.source("file", true)
		r.configPeer.set(r.config)
		r.eventually("the pods are known", func() bool { _, err := r.store.Pods(); return err == nil })
		for _, pod := range pods {
			if !r.ready(string(pod.UID)) {
				t.Errorf("%s is not ready in the first answer", pod.Name)
			}
		}
		r.pass(5 * time.Minute)
		for _, pod := range pods {
			if got := node.Container(pod.UID); got != containers[pod.UID] {
				t.Errorf("%s: container %s, then %s", pod.Name, containers[pod.UID], got)
			}
		}
		for _, call := range node.Calls() {
			if !strings.HasPrefix(call, "sync ") {
				t.Errorf("the restart did %q, want text beginning with %q", call, "sync ")
			}
		}
	})
}

func TestOrphansEndOnlyWhenEverySourceIsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := fakenode.New()
		node.Run(fakenode.Pod("u1", "orphan", always))
		r := newRig(t, node, t.TempDir())
		r.source("file", true)
		r.source("http", false)
		r.configPeer.set(r.config)
		r.plegPeer.set(node.Events)
		r.pass(time.Minute)
		if calls := node.Calls(); len(calls) > 0 {
			t.Fatalf("calls before a source is ready: %v", calls)
		}
		if _, err := r.store.Pods(); err != nil {
			t.Errorf("one unready source hides all pods for ever: %v", err)
		}
		r.source("http", true)
		r.eventually("the orphan is gone", func() bool { return len(node.UIDs()) == 0 })
		if calls := node.Calls(); !slices.Contains(calls, "kill orphan 1") {
			t.Errorf("calls: %v, want %q among them", calls, "kill orphan 1")
		}
	})
}

func TestNoSourceAtAllRemovesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := fakenode.New()
		node.Run(fakenode.Pod("u1", "web", always))
		r := newRig(t, node, t.TempDir())
		r.configPeer.set(r.config)
		r.plegPeer.set(node.Events)
		r.pass(time.Minute)
		if calls := node.Calls(); len(calls) > 0 {
			t.Fatalf("calls before configmux has named a source: %v", calls)
		}
	})
}

func TestRestartedConfigmuxRemovesNothingBeforeItsSourceIsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.source("file", true)
		kept, gone := fakenode.Pod("u1", "kept", always), fakenode.Pod("u2", "gone", always)
		r.add(kept)
		r.add(gone)
		r.eventually("both are ready", func() bool { return r.ready("u1") && r.ready("u2") })

		r.configPeer.set(nil)
		r.config.Close()
		r.pass(time.Minute)
		r.config = stream.NewLevel[*loop.Desired](stream.Config{})
		r.source("file", false)
		r.configPeer.set(r.config)
		r.pass(time.Minute)
		if got := r.node.Running(); len(got) != 2 {
			t.Fatalf("running before the source is ready: %v", got)
		}
		r.add(kept)
		r.source("file", true)
		r.eventually("only the pods of the source run", r.runs("kept"))
		killed := func(call string) bool { return strings.HasPrefix(call, "kill kept") }
		if calls := r.node.Calls(); slices.ContainsFunc(calls, killed) {
			t.Errorf("calls: %v, want no kill", calls)
		}
	})
}

func TestSourceThatIsNotConfiguredAnyMoreLosesItsPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.source("file", true)
		r.source("http", true)
		r.config.Put("u1", &loop.Desired{Pod: fakenode.Pod("u1", "web", always), Source: "http"})
		r.eventually("web is ready", func() bool { return r.ready("u1") })
		r.config.Close()
		r.config = stream.NewLevel[*loop.Desired](stream.Config{})
		r.source("file", true)
		r.configPeer.set(r.config)
		r.eventually("web is gone", func() bool { return len(r.node.UIDs()) == 0 })
	})
}

func TestUnhealthyPlegDelaysSyncsAndNoRemoval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.source("file", true)
		r.add(fakenode.Pod("u1", "old", always))
		r.eventually("old is ready", func() bool { return r.ready("u1") })
		r.node.SetUnhealthy("the runtime is not ready")
		r.eventually("the loop has the reason", func() bool {
			return slices.ContainsFunc(r.loop.Health().Reasons, func(s string) bool {
				return strings.Contains(s, "the runtime is not ready")
			})
		})
		r.add(fakenode.Pod("u2", "new", always))
		r.config.Delete("u1")
		r.eventually("old is gone", func() bool { return !slices.Contains(r.node.UIDs(), "u1") })
		r.pass(time.Minute)
		if slices.Contains(r.node.Calls(), "sync new") {
			t.Fatal("a pod was synced while pleg was unhealthy")
		}
		r.node.SetUnhealthy()
		r.eventually("new is ready", func() bool { return r.ready("u2") })
	})
}

func TestARemovalThatFailsIsTriedAgainWhilePlegIsUnhealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.source("file", true)
		r.add(fakenode.Pod("u1", "web", always))
		r.eventually("web is ready", func() bool { return r.ready("u1") })
		var tries atomic.Int64
		r.node.SetScript(fakenode.Script{Kill: func(context.Context, *v1.Pod, int64) error {
			if tries.Add(1) < 4 {
				return status.Error(codes.Unavailable, "connection refused")
			}
			return nil
		}})
		r.node.SetUnhealthy("no relist has finished for 4 min")
		r.eventually("the loop has the reason", func() bool {
			return slices.ContainsFunc(r.loop.Health().Reasons, func(s string) bool { return strings.Contains(s, "no relist") })
		})
		r.config.Delete("u1")
		r.eventually("web is gone", func() bool { return len(r.node.UIDs()) == 0 })
	})
}

func TestHealthSaysWhetherConfigMuxIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRigWith(t, fakenode.New(), t.TempDir(), 0)
		logContains := func(what string) func() bool {
			return func() bool { return strings.Contains(r.loop.Health().ConfigMux, what) }
		}
		// The first attempt to reach configmux may have ended already.
		if !logContains("has not sent all pods yet")() && !logContains("configmux is away")() {
			t.Errorf("before it is followed: %q", r.loop.Health().ConfigMux)
		}
		r.source("file", true)
		r.configPeer.set(r.config)
		r.eventually("it is followed", func() bool { return r.loop.Health().ConfigMux == "" })
		r.configPeer.set(nil)
		r.config.Close()
		r.eventually("it is away", logContains("configmux is away"))
		if !r.loop.Health().Healthy {
			t.Error("syncloop is not healthy because configmux is away")
		}
	})
}

func TestPlegThatIsAwayDelaysSyncsUntilItIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.source("file", true)
		r.add(fakenode.Pod("u1", "web", always))
		r.eventually("web is ready", func() bool { return r.ready("u1") })
		r.plegPeer.set(nil)
		r.node.Events.Close()
		r.pass(time.Second)
		r.add(fakenode.Pod("u2", "new", always))
		r.pass(30 * time.Second)
		if slices.Contains(r.node.Calls(), "sync new") {
			t.Fatal("a pod was synced while pleg was away")
		}
		if !r.ready("u1") {
			t.Error("a running pod is not ready because pleg is away")
		}
		r.plegPeer.set(r.node.Restart())
		r.eventually("new is ready", func() bool { return r.ready("u2") })
		if !r.ready("u1") {
			t.Error("a running pod is not ready because pleg was away")
		}
	})
}

func TestPodThatVanishedWhilePlegWasAwayIsStartedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.source("file", true)
		r.add(fakenode.Pod("u1", "web", always))
		r.eventually("web is ready", func() bool { return r.ready("u1") })
		r.plegPeer.set(nil)
		r.node.Events.Close()
		r.node.Vanish("u1")
		r.plegPeer.set(r.node.Restart())
		r.eventually("web runs again", func() bool { return len(r.node.Running()) == 1 && r.ready("u1") })
	})
}

func TestOneTraceFromTheChangeToReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.source("file", true)
		const change = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
		r.config.Put("u1", &loop.Desired{Pod: fakenode.Pod("u1", "web", always), Source: "file", Traceparent: change})
		ids, parents := map[string]string{}, map[string]string{}
		r.eventually("the spans are there", func() bool {
			for _, span := range r.spans.Ended() {
				if _, seen := ids[span.Name()]; !seen { // the first of each name: later ones belong to later events
					ids[span.Name()], parents[span.Name()] = span.SpanContext().SpanID().String(), span.Parent().SpanID().String()
				}
			}
			return len(ids) == 3
		})
		want := map[string]string{"dispatch": "b7ad6b7169203331", "pod.sync": ids["dispatch"], "status.update": ids["pod.sync"]}
		if diff := cmp.Diff(want, parents); diff != "" {
			t.Errorf("parents (-want +got):\n%s", diff)
		}
	})
}

func TestHealthFailsWhenTheLoopStandsStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.source("file", true)
		r.eventually("the loop turns", func() bool { return r.loop.Health().Healthy })
		r.stop()
		r.clock.Step(3 * time.Minute)
		if h := r.loop.Health(); h.Healthy || len(h.Reasons) == 0 {
			t.Errorf("Health() = %+v, want Healthy false and some Reasons", h)
		}
	})
}

func TestABurstOnOneStreamDelaysNoOtherStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.source("file", true)
		r.node.Run(fakenode.Pod("noise", "noise", always))
		r.add(fakenode.Pod("noise", "noise", always))
		r.eventually("noise is ready", func() bool { return r.ready("noise") })
		seen := r.store.Observed("noise")
		event := &lifecyclev1.Event{Type: lifecyclev1.EventType_EVENT_TYPE_POD_SYNC, PodUid: "noise", Status: seen}
		for range 1500 { // fewer than the stream's log holds
			r.node.Events.Emit("noise", event, event)
		}
		r.add(fakenode.Pod("u1", "web", always))
		r.eventually("web is ready", func() bool { return r.ready("u1") })
	})
}

func TestAMirrorPodIsNotRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.source("file", true)
		mirror := fakenode.Pod("mirror", "web", always)
		mirror.Annotations = map[string]string{v1.MirrorPodAnnotationKey: "u1"}
		r.add(mirror)
		r.add(fakenode.Pod("u1", "web", always))
		r.eventually("the static pod is ready", func() bool { return r.ready("u1") })
		r.config.Delete("mirror")
		r.pass(time.Minute)
		if got := r.node.UIDs(); !slices.Equal(got, []types.UID{"u1"}) {
			t.Errorf("the runtime has %v, want the static pod alone", got)
		}
	})
}

// TestTheTimeOfTheLastTurnIsMonotonic, so that the watchdog compares it without the wall clock, which may be set.
func TestTheTimeOfTheLastTurnIsMonotonic(t *testing.T) {
	r := newRigWith(t, fakenode.New(), t.TempDir(), 0, func(cfg *loop.Config) { cfg.Clock = clock.RealClock{} })
	<-r.loop.Begun()
	if last := r.loop.Health().LastTurn; !strings.Contains(last.String(), " m=") {
		t.Errorf("the last turn is %v, want a time with a monotonic reading", last)
	}
}
