package podworkers_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/boottime"
	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/statusmanager"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/gracebook"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
	"github.com/quartet-node/quartet/test/eventually"
)

// TestEndedContainersAreRemovedAlsoWhenTheSyncFails has a pod with a crashing container, while the image of another
// container cannot be pulled.
func TestEndedContainersAreRemovedAlsoWhenTheSyncFails(t *testing.T) {
	r := start(t)
	r.node.SetScript(fakenode.Script{Late: errors.New("container b: no such image")})
	r.want(fakenode.Pod("u1", "web", v1.RestartPolicyAlways))
	for range 3 {
		eventually.That(t, "web runs", r.running("web"))
		container := r.node.Container("u1")
		r.node.Exit("u1", 1)
		r.pool.Poke("u1", podworkers.Cause{Kind: podworkers.CauseLost})
		eventually.That(t, "web runs again", func() bool { return r.node.Container("u1") != container })
	}
	eventually.That(t, "ended containers are removed", func() bool { return slices.Contains(r.node.Calls(), "prune u1") })
}

// TestWhenWorkIsDoneAgain checks the delay until the next sync: the resync period after a sync, 10 s after an error
// that is likely to pass, and less if pleg or the runtime is away or the error has a time.
func TestWhenWorkIsDoneAgain(t *testing.T) {
	failing := func(err error) fakenode.Script {
		return fakenode.Script{Sync: func(context.Context, *v1.Pod) error { return err }}
	}
	observing := func(err error) fakenode.Script {
		return fakenode.Script{Observe: func(context.Context, types.UID) error { return err }}
	}
	killing := func(err error) fakenode.Script {
		return fakenode.Script{Kill: func(context.Context, *v1.Pod, int64) error { return err }}
	}
	away := status.Error(codes.Unavailable, "connection refused")
	for name, c := range map[string]struct {
		script  fakenode.Script
		removed bool
		want    time.Duration
	}{
		"nothing to do":                   {fakenode.Script{}, false, time.Minute},
		"a back-off ends":                 {fakenode.Script{RetryAfter: 7 * time.Second}, false, 7 * time.Second},
		"a back-off ends after the look":  {fakenode.Script{RetryAfter: 5 * time.Minute}, false, time.Minute},
		"the pod is wrong":                {failing(errors.New("no such secret")), false, time.Minute},
		"the runtime refuses":             {failing(status.Error(codes.Unknown, "no space left on device")), false, 10 * time.Second},
		"the runtime is away":             {failing(away), false, 500 * time.Millisecond},
		"the runtime was never there":     {failing(&cri.NotConnectedError{Endpoint: "unix:///run/x.sock", Cause: errors.New("no such file")}), false, 500 * time.Millisecond},
		"the error knows":                 {fakenode.Script{Late: errors.New("image: back-off"), RetryAfter: 3 * time.Second}, false, 3 * time.Second},
		"pleg fails":                      {observing(errors.New("internal")), false, 10 * time.Second},
		"pleg is away":                    {observing(away), false, 500 * time.Millisecond},
		"the kill fails":                  {killing(status.Error(codes.Unknown, "cannot signal")), true, 10 * time.Second},
		"the runtime is away at the kill": {killing(away), true, 500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			node, clock := fakenode.New(), clocktesting.NewFakeClock(time.Now())
			pod := fakenode.Pod("u1", "web", v1.RestartPolicyAlways)
			node.Run(pod)
			node.SetScript(c.script)
			pool, jittered := poolOn(t, node, clock)
			var end *podworkers.End
			if c.removed {
				end = &podworkers.End{Removed: true}
			}
			pool.Want(pod, podworkers.Cause{Kind: podworkers.CauseConfig}, end)
			eventually.That(t, "the worker is done", func() bool { _, ok := pool.Due().At("u1"); return ok })
			at, _ := pool.Due().At("u1")
			if got := at.Sub(clock.Now()); got != c.want {
				t.Errorf("again after %v, want %v", got, c.want)
			}
			if len(jittered()) == 0 {
				t.Error("the delay has no jitter")
			}
		})
	}
}

// poolOn returns a pool on a fake clock, which is stopped when the test ends, and a function that returns the delays
// that were jittered.
func poolOn(
	t *testing.T, node *fakenode.Node, clock *clocktesting.FakeClock, counts ...*podworkers.Metrics,
) (pool *podworkers.Pool, jittered func() []time.Duration) {
	t.Helper()
	process, end := context.WithCancel(context.Background())
	store := podstore.New(podstore.Config{
		API: statusmanager.None{}, Clock: clock, Tracer: telemetry.Off(), Logger: slog.New(slog.DiscardHandler),
	})
	store.Open()
	spread := make(chan time.Duration, 16)
	cfg := podworkers.Config{
		Runtime: node, Observer: node, Statuses: store, Endings: gracebook.InMemory(boottime.Now),
		Clock: clock, BootTime: boottime.Now,
		Tracer: telemetry.Off(), Logger: slog.New(slog.DiscardHandler), Resync: time.Minute,
		Jitter: func(d time.Duration) time.Duration { spread <- d; return d },
	}
	for _, m := range counts {
		cfg.Metrics = m
	}
	pool = podworkers.NewPool(process, cfg)
	t.Cleanup(func() {
		end()
		pool.Wait()
		store.Close()
	})
	return pool, func() (all []time.Duration) {
		for len(spread) > 0 {
			all = append(all, <-spread)
		}
		return all
	}
}

// TestADelayIsSpreadByAHalf checks the default jitter.
func TestADelayIsSpreadByAHalf(t *testing.T) {
	node := fakenode.New()
	r := newRigWith(node, time.Minute)
	defer r.stop()
	begun, seen := time.Now(), map[time.Duration]bool{}
	for i := range 20 {
		uid := types.UID(fmt.Sprintf("u%d", i))
		pod := fakenode.Pod(string(uid), string(uid), v1.RestartPolicyAlways)
		node.Run(pod)
		r.want(pod)
		eventually.That(t, "it is done", func() bool { _, ok := r.pool.Due().At(uid); return ok })
		at, _ := r.pool.Due().At(uid)
		after := at.Sub(begun).Round(time.Second)
		if after < time.Minute || after > 90*time.Second+patience {
			t.Errorf("again after %v", after)
		}
		seen[after] = true
	}
	if len(seen) < 3 {
		t.Errorf("20 pods are due after %v: all at once", seen)
	}
}

// TestAPodThatIsEvictedWhileItWaitsForItsNameIsNeverStarted checks that such a pod does not start when its name is
// free.
func TestAPodThatIsEvictedWhileItWaitsForItsNameIsNeverStarted(t *testing.T) {
	r := start(t)
	mayStop := make(chan struct{})
	r.node.SetScript(fakenode.Script{Kill: func(context.Context, *v1.Pod, int64) error {
		<-mayStop
		return nil
	}})
	r.want(fakenode.Pod("u1", "web", v1.RestartPolicyAlways))
	eventually.That(t, "web runs", r.running("web"))
	r.remove("u1", podworkers.End{})
	synced := func() (times int) {
		for _, call := range r.node.Calls() {
			if call == "sync web" {
				times++
			}
		}
		return times
	}
	before := synced()
	r.want(fakenode.Pod("u2", "web", v1.RestartPolicyAlways))
	stopped := make(chan struct{})
	if !r.pool.End("u2", podworkers.Cause{}, podworkers.End{Stopped: []chan<- struct{}{stopped}}) {
		t.Fatal("the pod that waits is not known")
	}
	close(mayStop)
	<-stopped
	eventually.That(t, "the first is gone", func() bool { return len(r.node.UIDs()) == 0 && len(r.pool.List()) == 1 })
	for range 20 { // no update starts it again
		r.pool.Poke("u2", podworkers.Cause{Kind: podworkers.CauseLost})
		r.want(fakenode.Pod("u2", "web", v1.RestartPolicyAlways))
	}
	r.remove("u2", podworkers.End{})
	eventually.That(t, "nothing is left", func() bool { return len(r.pool.List()) == 0 })
	if after := synced(); after != before {
		t.Errorf("it was synced; calls: %v, want after %v", r.node.Calls(), before)
	}
}

// TestANextLifeContinuesThePreviousOne: the ended containers stay, by which the next ones are counted as restarted, and
// their ends are no crashes. A pod whose containers may be its results begins with nothing, so that it runs again.
func TestANextLifeContinuesThePreviousOne(t *testing.T) {
	never := v1.ContainerRestartPolicyNever
	for name, test := range map[string]struct {
		policy    v1.RestartPolicy
		own       *v1.ContainerRestartPolicy
		continues bool
	}{
		"always":                      {v1.RestartPolicyAlways, nil, true},
		"on failure":                  {v1.RestartPolicyOnFailure, nil, false},
		"never":                       {v1.RestartPolicyNever, nil, false},
		"always, a container's never": {v1.RestartPolicyAlways, &never, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t)
			stopping, mayStop := make(chan struct{}), make(chan struct{})
			r.node.SetScript(fakenode.Script{Kill: func(context.Context, *v1.Pod, int64) error {
				close(stopping)
				<-mayStop
				return nil
			}})
			pod := fakenode.Pod("u1", "web", test.policy)
			pod.Spec.Containers[0].RestartPolicy = test.own
			r.want(pod)
			eventually.That(t, "web runs", r.running("web"))
			first := r.node.Container("u1")
			r.remove("u1", podworkers.End{})
			<-stopping
			r.want(pod)
			close(mayStop)
			eventually.That(t, "web runs again", func() bool { c := r.node.Container("u1"); return c != "" && c != first && len(r.node.Running()) == 1 })
			if cleaned := slices.Contains(r.node.Calls(), "clean u1"); cleaned == test.continues {
				t.Errorf("its containers were removed: %v, want %v; calls: %v", cleaned, !test.continues, r.node.Calls())
			}
			if got := r.endings.Replaced("u1", first); got != test.continues {
				t.Errorf("its container is known as replaced: %v, want %v", got, test.continues)
			}
			if test.continues && !slices.Contains(r.node.Released(), "u1") {
				t.Errorf("what the first life held was not given back: %v", r.node.Calls())
			}
		})
	}
}

// TestAStaticPodComesBackChangedWhileItEnds with the same UID: its newest version runs after the end.
func TestAStaticPodComesBackChangedWhileItEnds(t *testing.T) {
	r := start(t)
	stopping, mayStop := make(chan struct{}), make(chan struct{})
	r.node.SetScript(fakenode.Script{Kill: func(context.Context, *v1.Pod, int64) error {
		close(stopping)
		<-mayStop
		return nil
	}})
	r.want(fakenode.Pod("u1", "web", v1.RestartPolicyAlways))
	eventually.That(t, "web runs", r.running("web"))
	r.remove("u1", podworkers.End{})
	<-stopping
	for _, image := range []string{"example.test/main:2", "example.test/main:3"} {
		changed := fakenode.Pod("u1", "web", v1.RestartPolicyAlways)
		changed.Spec.Containers[0].Image = image
		r.want(changed)
	}
	close(mayStop)
	eventually.That(t, "web runs as it is now", func() bool {
		known, err := r.node.GetPodStatus(t.Context(), "u1", 0)
		return err == nil && slices.ContainsFunc(known.GetContainers(), func(c *lifecyclev1.Container) bool {
			return podview.Running(c) && c.GetImage() == "example.test/main:3"
		})
	})
	if count := r.node.RestartCount("u1"); count != 1 {
		t.Errorf("restart count %d, want 1", count)
	}
}

// TestAShorterGracePeriodReachesThePodThatEndsAlsoWhenItsNextLifeWaits: an eviction ends both lives of the pod.
func TestAShorterGracePeriodReachesThePodThatEndsAlsoWhenItsNextLifeWaits(t *testing.T) {
	r := start(t)
	kills := make(chan int64, 8)
	r.node.SetScript(fakenode.Script{Kill: func(ctx context.Context, _ *v1.Pod, grace int64) error {
		kills <- grace
		if grace > 2 {
			<-ctx.Done()
		}
		return ctx.Err()
	}})
	pod := fakenode.Pod("u1", "web", v1.RestartPolicyAlways)
	r.want(pod)
	eventually.That(t, "web runs", r.running("web"))
	r.remove("u1", podworkers.End{})
	if got := <-kills; got != 30 {
		t.Fatalf("it has %d s, want 30", got)
	}
	r.want(pod)
	r.pool.End("u1", podworkers.Cause{}, podworkers.End{Grace: new(int64(2))})
	eventually.That(t, "it has 2 s", func() bool { return len(kills) > 0 && <-kills == 2 })
	eventually.That(t, "its next life has ended before it began", func() bool {
		return r.state("u1") == enginev1.WorkerState_WORKER_STATE_TERMINATED && len(r.node.UIDs()) == 0
	})
}

// TestAPodThatCameBackWhileItEndedIsCounted, and a pod that is started for the first time is not counted.
func TestAPodThatCameBackWhileItEndedIsCounted(t *testing.T) {
	registry := prometheus.NewRegistry()
	node := fakenode.New()
	stopping, mayStop := make(chan struct{}), make(chan struct{})
	node.SetScript(fakenode.Script{Kill: func(context.Context, *v1.Pod, int64) error {
		close(stopping)
		<-mayStop
		return nil
	}})
	pool, _ := poolOn(t, node, clocktesting.NewFakeClock(time.Now()), podworkers.NewMetrics(registry))
	pod := fakenode.Pod("u1", "web", v1.RestartPolicyAlways)
	pod.Annotations = map[string]string{podset.AnnotationSource: "file"}
	pool.Want(pod, podworkers.Cause{Kind: podworkers.CauseConfig}, nil)
	eventually.That(t, "web runs", func() bool { return len(node.Running()) == 1 })
	first := node.Container("u1")
	pool.End("u1", podworkers.Cause{}, podworkers.End{Removed: true})
	<-stopping
	pool.Want(pod, podworkers.Cause{Kind: podworkers.CauseConfig}, nil)
	close(mayStop)
	eventually.That(t, "web runs again", func() bool { c := node.Container("u1"); return c != "" && c != first && len(node.Running()) == 1 })
	const want = `# HELP kubelet_restarted_pods_total Pods that came back with the UID of a pod that was still ending, and were started after its end.
# TYPE kubelet_restarted_pods_total counter
kubelet_restarted_pods_total{static=""} 0
kubelet_restarted_pods_total{static="true"} 1
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "kubelet_restarted_pods_total"); err != nil {
		t.Error(err)
	}
}
