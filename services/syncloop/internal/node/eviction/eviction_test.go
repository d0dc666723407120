package eviction_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/watchdog"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/eviction"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/stats"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/diskusage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const mebi = 1 << 20

// pod returns a pod with one container that requests the given MiB of memory and of ephemeral storage.
func pod(name string, priority int32, requests int64) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop", UID: types.UID(name)}, Spec: v1.PodSpec{
		Priority: &priority, TerminationGracePeriodSeconds: ptr.To[int64](60), Containers: []v1.Container{{Name: "main"}},
	}}
	if requests > 0 {
		amount := *resource.NewQuantity(requests*mebi, resource.BinarySI)
		p.Spec.Containers[0].Resources.Requests = v1.ResourceList{
			v1.ResourceMemory: amount, v1.ResourceEphemeralStorage: amount,
		}
	}
	return p
}

func TestRank(t *testing.T) {
	memory := func(n uint64) *stats.PodUsage { return &stats.PodUsage{MemoryBytes: ptr.To(n * mebi)} }
	disk := func(layers, logs, volumes int64) *stats.PodUsage {
		return &stats.PodUsage{
			Layers:  &diskusage.Usage{Bytes: layers * mebi, Inodes: volumes},
			Logs:    &diskusage.Usage{Bytes: logs * mebi, Inodes: logs},
			Volumes: &diskusage.Usage{Bytes: volumes * mebi, Inodes: layers},
		}
	}
	processes := func(n uint64) *stats.PodUsage { return &stats.PodUsage{Processes: &n} }
	for name, test := range map[string]struct {
		signal string
		disks  stats.Disks
		pods   []eviction.Candidate
		want   string
	}{
		"unknown usage first": {"memory.available", stats.OneDisk,
			[]eviction.Candidate{{pod("known", -10, 0), memory(100)}, {pod("unknown", 10, 0), nil}}, "unknown known"},
		"then usage above the request, whatever the priority": {"memory.available", stats.OneDisk,
			[]eviction.Candidate{{pod("within", -10, 200), memory(199)}, {pod("beyond", 10, 100), memory(101)}}, "beyond within"},
		"then lower priority": {"memory.available", stats.OneDisk,
			[]eviction.Candidate{{pod("high", 10, 0), memory(500)}, {pod("low", 5, 0), memory(1)}}, "low high"},
		"then the largest excess": {"allocatableMemory.available", stats.OneDisk,
			[]eviction.Candidate{{pod("a", 0, 100), memory(150)}, {pod("b", 0, 10), memory(100)}, {pod("c", 0, 0), memory(60)}}, "b c a"},
		"the difference also counts below the request": {"memory.available", stats.OneDisk,
			[]eviction.Candidate{{pod("far", 0, 200), memory(1)}, {pod("near", 0, 200), memory(190)}}, "near far"},
		"layers, logs and volumes count on a common disk": {"nodefs.available", stats.OneDisk,
			[]eviction.Candidate{{pod("a", 0, 0), disk(1, 1, 1)}, {pod("b", 0, 0), disk(4, 0, 0)}}, "b a"},
		"layers do not count for nodefs on a disk of their own": {"nodefs.available", stats.ImageDisk,
			[]eviction.Candidate{{pod("b", 0, 0), disk(4, 0, 0)}, {pod("a", 0, 0), disk(1, 1, 1)}}, "a b"},
		"only layers count for imagefs": {"imagefs.available", stats.ImageDisk,
			[]eviction.Candidate{{pod("a", 0, 0), disk(1, 9, 9)}, {pod("b", 0, 0), disk(4, 0, 0)}}, "b a"},
		"layers count for nodefs beside a disk of images": {"nodefs.available", stats.SplitDisks,
			[]eviction.Candidate{{pod("a", 0, 0), disk(1, 1, 1)}, {pod("b", 0, 0), disk(4, 0, 0)}}, "b a"},
		"all counts for containerfs": {"containerfs.inodesFree", stats.SplitDisks,
			[]eviction.Candidate{{pod("a", 0, 0), disk(1, 1, 1)}, {pod("b", 0, 0), disk(0, 0, 9)}}, "b a"},
		"no part of a pod is on a disk of images": {"imagefs.available", stats.SplitDisks,
			[]eviction.Candidate{{pod("high", 1, 0), disk(9, 9, 9)}, {pod("low", 0, 0), disk(1, 1, 1)}}, "low high"},
		"inodes": {"nodefs.inodesFree", stats.OneDisk,
			[]eviction.Candidate{{pod("a", 0, 0), disk(1, 1, 1)}, {pod("b", 0, 0), disk(0, 0, 9)}}, "b a"},
		"processes: lower priority, then the larger number": {"pid.available", stats.OneDisk,
			[]eviction.Candidate{{pod("many", 5, 0), processes(99)}, {pod("few", 0, 0), processes(1)}, {pod("some", 0, 0), processes(9)}},
			"some few many"},
	} {
		t.Run(name, func(t *testing.T) {
			for range 2 { // The result does not depend on the order before.
				eviction.Rank(test.signal, test.disks, test.pods)
				var got []string
				for _, c := range test.pods {
					got = append(got, c.Pod.Name)
				}
				if strings.Join(got, " ") != test.want {
					t.Errorf("got %q, want %q", strings.Join(got, " "), test.want)
				}
				slices.Reverse(test.pods)
			}
		})
	}
}

// rig is an evictor on a node with the statistics that the test sets. It records the evictor's actions.
type rig struct {
	*eviction.Evictor
	registry *prometheus.Registry
	// stats are the statistics of the pods, and reads counts how often they were read.
	stats   map[types.UID]statsv1alpha1.PodStats
	reads   int
	pods    []*v1.Pod
	alive   map[types.UID]bool
	disks   stats.Disks
	fails   map[types.UID]bool
	actions []string
	// cleanups counts the removals of evicted pods' containers.
	cleanups    atomic.Int32
	annotations map[string]string
	clock       *adjustableClock
}

// adjustableClock is a clock that can be set back and forth.
type adjustableClock struct {
	clock.RealClock

	offset atomic.Int64
}

func (c *adjustableClock) Now() time.Time {
	return c.RealClock.Now().Add(time.Duration(c.offset.Load())).Round(0)
}

func (c *adjustableClock) adjust(by time.Duration) { c.offset.Add(int64(by)) }

// using returns the statistics of a pod whose container uses the given MiB of memory.
func using(mib uint64) statsv1alpha1.PodStats {
	memory := &statsv1alpha1.MemoryStats{WorkingSetBytes: ptr.To(mib * mebi)}
	containers := []statsv1alpha1.ContainerStats{{Name: "main", Memory: memory}}
	return statsv1alpha1.PodStats{Memory: memory, Containers: containers}
}

func (r *rig) Summary(context.Context) (*statsv1alpha1.Summary, error) {
	r.reads++
	summary := &statsv1alpha1.Summary{}
	for uid, stats := range r.stats {
		stats.PodRef.UID = string(uid)
		summary.Pods = append(summary.Pods, stats)
	}
	return summary, nil
}

func (r *rig) Disks() stats.Disks { return r.disks }

func (r *rig) NodeWarning(_ context.Context, reason, message string) {
	r.actions = append(r.actions, reason+": "+message)
}

func newRig(t *testing.T, change func(*rig)) *rig {
	t.Helper()
	r := &rig{
		registry: prometheus.NewRegistry(), alive: map[types.UID]bool{}, fails: map[types.UID]bool{},
		stats: map[types.UID]statsv1alpha1.PodStats{
			"guaranteed": using(50), "big": using(40), "small": using(4), "critical": using(90),
		},
	}
	r.pods = []*v1.Pod{pod("guaranteed", 0, 100), pod("small", 0, 0), pod("big", 0, 0), pod("critical", -1, 0)}
	r.clock = &adjustableClock{}
	if change != nil {
		change(r)
	}
	booted := time.Now()
	r.Evictor = eviction.New(eviction.Config{
		Stats: r, Limits: true,
		Pods:   func() ([]*v1.Pod, error) { return r.pods, nil },
		Spared: func(p *v1.Pod) bool { return p.Name == "critical" },
		Evict: func(_ context.Context, uid types.UID, e podstore.Eviction, grace int64, annotations map[string]string) error {
			if r.fails[uid] {
				return errors.New("the disk is full")
			}
			r.actions = append(r.actions, fmt.Sprintf("%s %s in %d s: %s", e.Reason, uid, grace, e.Message))
			r.annotations = annotations
			r.pods = slices.DeleteFunc(r.pods, func(p *v1.Pod) bool { return p.UID == uid })
			return nil
		},
		Gone:             func(uid types.UID) bool { return !r.alive[uid] },
		RemoveContainers: func(context.Context) { r.actions = append(r.actions, "containers") },
		RemoveEvicted:    func(context.Context) { r.cleanups.Add(1) },
		RemoveImages:     func(context.Context) error { r.actions = append(r.actions, "images"); return nil },
		Events:           r, MaxGrace: 30, Clock: r.clock, BootTime: func() time.Duration { return time.Since(booted) },
		Logger: slog.New(slog.DiscardHandler), Metrics: eviction.NewMetrics(r.registry),
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	return r
}

// press reports pressure that is measured now, and returns the evictor's actions.
func (r *rig) press(signal string, hard bool) []string {
	r.actions = nil
	<-time.After(time.Second)
	r.Pressing([]*nodev1.EvictionSignal{{
		Signal: signal, Available: 10 * mebi, Threshold: 100 * mebi, Hard: hard, ReadAt: timestamppb.New(r.clock.Now()),
	}})
	synctest.Wait()
	return r.actions
}

func want(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

const (
	attempt = "EvictionThresholdMet: Attempting to reclaim "
	lowOn   = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 10Mi. Container main was using %dMi, request is 0, has larger consumption of memory. "
)

func TestOnePodIsEvictedForEachReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		want(t, r.press("memory.available", true), attempt+"memory", "Evicted big in 1 s: "+fmt.Sprintf(lowOn, 40))
		annotations := map[string]string{
			"offending_containers": "main", "offending_containers_usage": "40Mi", "starved_resource": "memory",
		}
		if !maps.Equal(r.annotations, annotations) {
			t.Errorf("the event has the annotations %v, want %v", r.annotations, annotations)
		}
		r.actions = nil
		// A repeated measurement, as every change of the Node brings, has no effect.
		r.Pressing([]*nodev1.EvictionSignal{{
			Signal: "memory.available", Hard: true, ReadAt: timestamppb.New(time.Now().Add(-time.Minute)),
		}})
		synctest.Wait()
		want(t, r.actions)
		want(t, r.press("memory.available", false), attempt+"memory", "Evicted small in 30 s: "+fmt.Sprintf(lowOn, 4))
		// A pod within its request is evicted last, a critical pod never.
		want(t, r.press("memory.available", true), attempt+"memory",
			"Evicted guaranteed in 1 s: The node was low on resource: memory. Threshold quantity: 100Mi, available: 10Mi. ")
		want(t, r.press("memory.available", true), attempt+"memory")
		if r.cleanups.Load() != 3 {
			t.Errorf("the ended containers of evicted pods were removed %d times, want 3", r.cleanups.Load())
		}
	})
}

// TestAClockThatIsSet checks that a clock that is set back or forth neither stops evictions nor makes an old
// measurement look new.
func TestAClockThatIsSet(t *testing.T) {
	for _, by := range []time.Duration{-time.Hour, time.Hour} {
		t.Run(by.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, nil)
				if did := r.press("memory.available", true); len(did) != 2 || !strings.HasPrefix(did[1], "Evicted big") {
					t.Errorf("before the clock is set: %q", did)
				}
				before := timestamppb.New(r.clock.Now())
				<-time.After(time.Second)
				r.clock.adjust(by)
				r.actions = nil
				r.Pressing([]*nodev1.EvictionSignal{{Signal: "memory.available", Hard: true, ReadAt: before}})
				synctest.Wait()
				want(t, r.actions)
				if did := r.press("memory.available", true); len(did) != 2 || !strings.HasPrefix(did[1], "Evicted small") {
					t.Errorf("after the clock was set: %q", did)
				}
			})
		})
	}
}

func TestTheNextOneWaitsForTheEndOfTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(r *rig) { r.alive["big"] = true })
		r.press("memory.available", true)
		want(t, r.press("memory.available", true))
		<-time.After(20 * time.Second)
		want(t, r.press("memory.available", true))
		if r.cleanups.Load() != 0 {
			t.Error("the containers of the evicted pod were removed while it was ending")
		}
		<-time.After(10 * time.Second) // The timeout of 30 s is over; measurements from before are ignored.
		synctest.Wait()
		want(t, r.actions)
		if r.cleanups.Load() != 1 {
			t.Errorf("the ended containers of evicted pods were removed %d times, want 1", r.cleanups.Load())
		}
		if did := r.press("memory.available", true); len(did) != 2 || !strings.HasPrefix(did[1], "Evicted small") {
			t.Errorf("after 30 s: %q", did)
		}
	})
}

func TestUnusedObjectsAreRemovedBeforePodsAreEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		want(t, r.press("nodefs.available", true), attempt+"ephemeral-storage", "containers", "images")
		if did := r.press("nodefs.available", true); len(did) != 2 || !strings.HasPrefix(did[1], "Evicted ") {
			t.Errorf("that was not enough: %q", did)
		}
		<-time.After(time.Minute)
		want(t, r.press("imagefs.inodesFree", true), attempt+"inodes", "containers", "images")
		r.disks = stats.ImageDisk
		<-time.After(time.Minute)
		if did := r.press("nodefs.available", true); len(did) != 2 || !strings.HasPrefix(did[1], "Evicted ") {
			t.Errorf("images are on another file system: %q", did)
		}
	})
}

// TestOnSplitDisksOnlyWhatIsThereIsRemoved has images on a disk of their own, without the layers of containers.
func TestOnSplitDisksOnlyWhatIsThereIsRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(r *rig) { r.disks = stats.SplitDisks })
		for signal, actions := range map[string][]string{
			"imagefs.available":     {attempt + "ephemeral-storage", "images"},
			"nodefs.inodesFree":     {attempt + "inodes", "containers"},
			"containerfs.available": {attempt + "ephemeral-storage", "containers"},
		} {
			want(t, r.press(signal, true), actions...)
			<-time.After(time.Minute)
		}
	})
}

func TestMemoryPressureIsHandledFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		<-time.After(time.Second)
		r.Pressing([]*nodev1.EvictionSignal{
			{Signal: "imagefs.available", ReadAt: timestamppb.Now()}, {Signal: "some.other", ReadAt: timestamppb.Now()},
			{Signal: "memory.available", ReadAt: timestamppb.Now()},
		})
		synctest.Wait()
		if len(r.actions) == 0 || r.actions[0] != attempt+"memory" {
			t.Errorf("r.actions = %q, want at least one and r.actions[0] %v", r.actions, attempt+"memory")
		}
	})
}

func TestAPodThatCannotBeEvictedIsSkipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(r *rig) { r.fails["big"] = true })
		if did := r.press("memory.available", true); len(did) != 2 || !strings.HasPrefix(did[1], "Evicted small") {
			t.Errorf("press(memory.available) = %q, want 2 entries and did[1] beginning with %q", did, "Evicted small")
		}
	})
}

// TestAnEvictorThatWaitsForALockStandsStill, and one that waits for the end of a pod or for the runtime does not.
func TestAnEvictorThatWaitsForALockStandsStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var locked atomic.Bool
		free := make(chan struct{})
		r := newRig(t, func(r *rig) { r.alive["big"] = true })
		lock := eviction.New(eviction.Config{
			Limits: true, Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler),
			Pods: func() ([]*v1.Pod, error) {
				if locked.Load() {
					<-free
				}
				return nil, nil
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- lock.Run(ctx) }()
		r.Pressing([]*nodev1.EvictionSignal{{Signal: "memory.available", Hard: true, ReadAt: timestamppb.Now()}})
		time.Sleep(29 * time.Second)
		for what, e := range map[string]*eviction.Evictor{"one that waits for a pod": r.Evictor, "an idle one": lock} {
			if err := e.Stands(); err != nil {
				t.Errorf("%s stands still: %v", what, err)
			}
		}
		locked.Store(true)
		time.Sleep(10*time.Second + watchdog.Limit + time.Second)
		if err := lock.Stands(); err == nil {
			t.Error("one that waits for a lock does not stand still")
		}
		close(free)
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}
