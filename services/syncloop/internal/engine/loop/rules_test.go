package loop_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/loop"
)

// scriptedPleg is a pleg with a list of health results, which records the times of the calls.
type scriptedPleg struct {
	mu      sync.Mutex
	begun   time.Time
	calls   []time.Duration
	answers []error
}

// Health implements loop.Pleg.
func (m *scriptedPleg) Health(context.Context) (reasons []string, network string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.calls) == len(m.answers) {
		return nil, "", errors.New("more calls than answers")
	}
	m.calls = append(m.calls, time.Since(m.begun))
	return nil, "", m.answers[len(m.calls)-1]
}

// Relist implements loop.Pleg.
func (m *scriptedPleg) Relist(context.Context) error { return nil }

// startingPleg is a pleg whose first relist takes some time. Until then it is not healthy.
type startingPleg struct {
	relisted time.Time
	clock    clock.Clock
}

// Health implements loop.Pleg.
func (p *startingPleg) Health(context.Context) (reasons []string, network string, err error) {
	if p.clock.Now().Before(p.relisted) {
		return []string{"no relist has finished yet"}, "", nil
	}
	return nil, "", nil
}

// Relist implements loop.Pleg.
func (p *startingPleg) Relist(ctx context.Context) error {
	select {
	case <-p.clock.After(p.relisted.Sub(p.clock.Now())):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestPodsAreSyncedAsSoonAsPlegHasRelisted, not after a pause that is longer the longer the first relist takes.
func TestPodsAreSyncedAsSoonAsPlegHasRelisted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const (
			relist = 750 * time.Millisecond
			step   = 10 * time.Millisecond
		)
		var relisted time.Time
		r := start(t, func(c *loop.Config) {
			relisted = c.Clock.Now().Add(relist)
			c.Pleg = &startingPleg{relisted: relisted, clock: c.Clock}
		})
		r.source("file", true)
		r.stepUntil("pods are synced", step, func() bool { return len(r.loop.Health().Reasons) == 0 })
		if after := r.clock.Since(relisted); after < 0 || after > 2*step {
			t.Errorf("pods are synced %v after pleg's first relist, want at once", after)
		}
	})
}

// TestAnUnwellPlegIsAskedLessAndLess: the delays are 100 ms, doubling to 5 s, and again from 100 ms after a success.
func TestAnUnwellPlegIsAskedLessAndLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := errors.New("connection refused")
		pleg := &scriptedPleg{
			begun: time.Now(), answers: []error{away, away, away, away, away, away, away, away, nil, nil, away, away, nil},
		}
		var want []time.Duration
		at := time.Duration(0)
		for _, after := range []int{0, 100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000, 5000, 100, 200} {
			at += time.Duration(after) * time.Millisecond
			want = append(want, at)
		}
		r := start(t, func(c *loop.Config) { c.Pleg, c.Clock = pleg, clock.RealClock{} })
		time.Sleep(want[len(want)-1] + time.Second)
		synctest.Wait()
		r.stop()
		pleg.mu.Lock()
		defer pleg.mu.Unlock()
		if !slices.Equal(pleg.calls, want) {
			t.Errorf("asked after %v, want %v", pleg.calls, want)
		}
	})
}

// TestHealthFailsWhenAHandlerHangs although nothing else is due.
func TestHealthFailsWhenAHandlerHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hanging, done := make(chan struct{}), make(chan struct{})
		hangs := sync.OnceFunc(func() { close(hanging) })
		r := start(t, func(c *loop.Config) {
			c.PodFromObserved = func(*lifecyclev1.PodStatus) *v1.Pod {
				hangs()
				<-done
				return nil
			}
		})
		defer close(done)
		r.node.Run(fakenode.Pod("u1", "orphan", always))
		r.node.Exit("u1", 0) // pleg emits an event
		r.source("file", true)
		r.eventually("a handler hangs", func() bool {
			select {
			case <-hanging:
				return true
			default:
				return false
			}
		})
		if h := r.loop.Health(); !h.Healthy {
			t.Errorf("too early: %+v", h)
		}
		r.clock.Step(2*time.Minute - 5*time.Second) // it may have waited for work for 2 s
		if h := r.loop.Health(); !h.Healthy {
			t.Errorf("within twice the resync period: %+v", h)
		}
		r.clock.Step(6 * time.Second)
		if h := r.loop.Health(); h.Healthy || !strings.Contains(strings.Join(h.Reasons, " "), "has not turned") {
			t.Errorf("Health() = %+v, want Healthy false and Reasons with %q", h, "has not turned")
		}
	})
}

// TestAShortResyncPeriodMakesNoIdleLoopUnhealthy: an idle loop turns with each housekeeping, every 2 s.
func TestAShortResyncPeriodMakesNoIdleLoopUnhealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, func(c *loop.Config) { c.Resync = 500 * time.Millisecond })
		r.source("file", true)
		r.eventually("the loop turns", func() bool { return r.loop.Health().Healthy })
		for range 100 {
			r.pass(100 * time.Millisecond)
			if h := r.loop.Health(); !h.Healthy {
				t.Fatalf("Health() = %+v, want Healthy true", h)
			}
		}
	})
}

// TestARemovedContainerIsNoReasonToSync, because the loop itself removes containers. The death of a container is one.
func TestARemovedContainerIsNoReasonToSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.source("file", true)
		r.add(fakenode.Pod("u1", "web", always))
		r.eventually("web is ready", func() bool { return r.ready("u1") })
		r.pass(5 * time.Second)
		synced := func() int { return len(r.node.Calls()) }
		before := synced()
		publish := func(kind lifecyclev1.EventType) {
			seen, err := r.node.GetPodStatus(t.Context(), "u1", 1<<62)
			if err != nil {
				t.Fatal(err)
			}
			event := &lifecyclev1.Event{Type: kind, PodUid: "u1", Status: seen}
			r.node.Events.Emit("u1", event, event)
		}
		for range 10 {
			publish(lifecyclev1.EventType_EVENT_TYPE_CONTAINER_REMOVED)
		}
		r.pass(5 * time.Second)
		if after := synced(); after != before {
			t.Errorf("%d syncs followed, want after %v", after-before, before)
		}
		publish(lifecyclev1.EventType_EVENT_TYPE_CONTAINER_DIED)
		r.eventually("a death is followed by a sync", func() bool { return synced() > before })
	})
}

// TestADeathAlsoCleansUpWhatEndedBefore checks that the last ended container of a name is kept for its log and exit
// code, and that older ones are removed.
func TestADeathAlsoCleansUpWhatEndedBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.source("file", true)
		r.add(fakenode.Pod("u1", "web", always))
		for range 4 {
			r.eventually("web is ready", func() bool { return r.ready("u1") })
			before := r.node.Container("u1")
			r.node.Exit("u1", 1)
			r.eventually("web runs again", func() bool { return r.node.Container("u1") != before })
		}
		r.eventually("one that runs and one that has ended are left", func() bool {
			seen, err := r.node.GetPodStatus(t.Context(), "u1", 0)
			return err == nil && len(seen.GetContainers()) == 2
		})
	})
}

// TestACleanUpThatDelaysTheLoopIsLogged if it takes a second or longer.
func TestACleanUpThatDelaysTheLoopIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var log bytes.Buffer
		var r *rig
		ready := make(chan struct{})
		r = start(t, func(c *loop.Config) {
			c.Logger = slog.New(slog.NewTextHandler(writer(func(line []byte) (int, error) {
				mu.Lock()
				defer mu.Unlock()
				return log.Write(line)
			}), nil))
			c.Leftovers = nil
			c.Workers = slowToTidy{c.Workers, func() { <-ready; r.clock.Step(1100 * time.Millisecond) }}
		})
		close(ready)
		r.source("file", true)
		r.eventually("it is logged", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return strings.Contains(log.String(), "housekeeping held up the sync loop") && strings.Contains(log.String(), "duration=1.1s")
		})
	})
}

type writer func([]byte) (int, error)

// Write implements io.Writer.
func (w writer) Write(p []byte) (int, error) { return w(p) }

// slowToTidy has workers whose Tidy takes time.
type slowToTidy struct {
	loop.Workers
	passes func()
}

// Tidy implements loop.Workers.
func (s slowToTidy) Tidy() {
	s.passes()
	s.Workers.Tidy()
}

// TestAnOrphanIsCounted once, however long its termination takes.
func TestAnOrphanIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		node := fakenode.New()
		node.Run(fakenode.Pod("u1", "orphan", always))
		mayStop := make(chan struct{})
		node.SetScript(fakenode.Script{Kill: func(context.Context, *v1.Pod, int64) error {
			<-mayStop
			return nil
		}})
		r := newRigWith(t, node, t.TempDir(), 0, func(c *loop.Config) { c.Metrics = loop.NewMetrics(registry) })
		r.source("file", true)
		r.configPeer.set(r.config)
		r.plegPeer.set(node.Events)
		r.eventually("it is being ended", func() bool { return slices.Contains(node.Calls(), "kill orphan 1") })
		r.pass(10 * time.Second)
		close(mayStop)
		r.eventually("it is gone", func() bool { return len(node.UIDs()) == 0 })
		const want = `# HELP kubelet_orphaned_runtime_pods_total Running pods that no source names and that had no worker.
# TYPE kubelet_orphaned_runtime_pods_total counter
kubelet_orphaned_runtime_pods_total 1
`
		if err := testutil.GatherAndCompare(registry, strings.NewReader(want),
			"kubelet_orphaned_runtime_pods_total"); err != nil {
			t.Error(err)
		}
	})
}
