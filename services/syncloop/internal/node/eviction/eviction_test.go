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
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/eviction"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/stats"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/diskusage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const mebi = 1 << 20

// pod has one container that asks for so many MiB of memory and of disk.
func pod(name string, priority int32, asks int64) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop", UID: types.UID(name)}, Spec: v1.PodSpec{
		Priority: &priority, TerminationGracePeriodSeconds: ptr.To[int64](60), Containers: []v1.Container{{Name: "main"}},
	}}
	if asks > 0 {
		amount := *resource.NewQuantity(asks*mebi, resource.BinarySI)
		p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceMemory: amount, v1.ResourceEphemeralStorage: amount}
	}
	return p
}

func TestRank(t *testing.T) {
	memory := func(n uint64) *stats.PodUsage { return &stats.PodUsage{MemoryBytes: ptr.To(n * mebi)} }
	disk := func(layers, logs, volumes int64) *stats.PodUsage {
		return &stats.PodUsage{
			Layers: &diskusage.Usage{Bytes: layers * mebi, Inodes: volumes}, Logs: &diskusage.Usage{Bytes: logs * mebi, Inodes: logs},
			Volumes: &diskusage.Usage{Bytes: volumes * mebi, Inodes: layers},
		}
	}
	processes := func(n uint64) *stats.PodUsage { return &stats.PodUsage{Processes: &n} }
	for name, test := range map[string]struct {
		signal    string
		dedicated bool
		pods      []eviction.Candidate
		want      string
	}{
		"what is not known goes first": {"memory.available", false, []eviction.Candidate{{pod("known", -10, 0), memory(100)}, {pod("unknown", 10, 0), nil}}, "unknown known"},
		"then what uses more than it asks for, whatever its priority": {"memory.available", false,
			[]eviction.Candidate{{pod("within", -10, 200), memory(199)}, {pod("beyond", 10, 100), memory(101)}}, "beyond within"},
		"of these the least priority": {"memory.available", false,
			[]eviction.Candidate{{pod("high", 10, 0), memory(500)}, {pod("low", 5, 0), memory(1)}}, "low high"},
		"of these what uses most beyond it": {"allocatableMemory.available", false,
			[]eviction.Candidate{{pod("a", 0, 100), memory(150)}, {pod("b", 0, 10), memory(100)}, {pod("c", 0, 0), memory(60)}}, "b c a"},
		"also of those that are within": {"memory.available", false,
			[]eviction.Candidate{{pod("far", 0, 200), memory(1)}, {pod("near", 0, 200), memory(190)}}, "near far"},
		"of the disk all counts":                             {"nodefs.available", false, []eviction.Candidate{{pod("a", 0, 0), disk(1, 1, 1)}, {pod("b", 0, 0), disk(4, 0, 0)}}, "b a"},
		"but what is on another file system":                 {"nodefs.available", true, []eviction.Candidate{{pod("b", 0, 0), disk(4, 0, 0)}, {pod("a", 0, 0), disk(1, 1, 1)}}, "a b"},
		"which has the layers":                               {"imagefs.available", true, []eviction.Candidate{{pod("a", 0, 0), disk(1, 9, 9)}, {pod("b", 0, 0), disk(4, 0, 0)}}, "b a"},
		"inodes are those of the files":                      {"nodefs.inodesFree", false, []eviction.Candidate{{pod("a", 0, 0), disk(1, 1, 1)}, {pod("b", 0, 0), disk(0, 0, 9)}}, "b a"},
		"of processes the least priority, and then how many": {"pid.available", false, []eviction.Candidate{{pod("many", 5, 0), processes(99)}, {pod("few", 0, 0), processes(1)}, {pod("some", 0, 0), processes(9)}}, "some few many"},
	} {
		t.Run(name, func(t *testing.T) {
			for range 2 { // whatever the order was before
				eviction.Rank(test.signal, test.dedicated, test.pods)
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

// rig is an evictor of a node whose pods use what the test says, and what it has done.
type rig struct {
	*eviction.Evictor
	registry *prometheus.Registry
	// stats is what pods use, and asked how often that was asked for.
	stats     map[types.UID]statsv1alpha1.PodStats
	asked     int
	pods      []*v1.Pod
	alive     map[types.UID]bool
	dedicated bool
	fails     map[types.UID]bool
	did       []string
	// swept is how often the containers of evicted pods were removed.
	swept       atomic.Int32
	annotations map[string]string
	// clock is the machine's, which the test sets.
	clock *settable
}

// settable is a clock that can be set back and forth.
type settable struct {
	clock.RealClock

	by atomic.Int64
}

func (c *settable) Now() time.Time { return c.RealClock.Now().Add(time.Duration(c.by.Load())).Round(0) }

func (c *settable) set(by time.Duration) { c.by.Add(int64(by)) }

// using is a pod whose container uses so many MiB of memory.
func using(mib uint64) statsv1alpha1.PodStats {
	memory := &statsv1alpha1.MemoryStats{WorkingSetBytes: ptr.To(mib * mebi)}
	return statsv1alpha1.PodStats{Memory: memory, Containers: []statsv1alpha1.ContainerStats{{Name: "main", Memory: memory}}}
}

func (r *rig) Summary(context.Context) (*statsv1alpha1.Summary, error) {
	r.asked++
	summary := &statsv1alpha1.Summary{}
	for uid, stats := range r.stats {
		stats.PodRef.UID = string(uid)
		summary.Pods = append(summary.Pods, stats)
	}
	return summary, nil
}

func (r *rig) DedicatedImageFS() bool { return r.dedicated }

func (r *rig) NodeWarning(_ context.Context, reason, message string) {
	r.did = append(r.did, reason+": "+message)
}

func newRig(t *testing.T, change func(*rig)) *rig {
	t.Helper()
	r := &rig{registry: prometheus.NewRegistry(), alive: map[types.UID]bool{}, fails: map[types.UID]bool{}, stats: map[types.UID]statsv1alpha1.PodStats{
		"guaranteed": using(50), "big": using(40), "small": using(4), "critical": using(90),
	}}
	r.pods = []*v1.Pod{pod("guaranteed", 0, 100), pod("small", 0, 0), pod("big", 0, 0), pod("critical", -1, 0)}
	r.clock = &settable{}
	if change != nil {
		change(r)
	}
	booted := time.Now()
	r.Evictor = eviction.New(eviction.Config{
		Stats: r, Limits: true, Pods: func() ([]*v1.Pod, error) { return r.pods, nil }, Spared: func(p *v1.Pod) bool { return p.Name == "critical" },
		Evict: func(_ context.Context, uid types.UID, e podstore.Eviction, grace int64, annotations map[string]string) error {
			if r.fails[uid] {
				return errors.New("the disk is full")
			}
			r.did, r.annotations = append(r.did, fmt.Sprintf("%s %s in %d s: %s", e.Reason, uid, grace, e.Message)), annotations
			r.pods = slices.DeleteFunc(r.pods, func(p *v1.Pod) bool { return p.UID == uid })
			return nil
		},
		Gone:             func(uid types.UID) bool { return !r.alive[uid] },
		RemoveContainers: func(context.Context) { r.did = append(r.did, "containers") },
		RemoveEvicted:    func(context.Context) { r.swept.Add(1) },
		RemoveImages:     func(context.Context) error { r.did = append(r.did, "images"); return nil },
		Events:           r, MaxGrace: 30, Clock: r.clock, BootTime: func() time.Duration { return time.Since(booted) }, Logger: slog.New(slog.DiscardHandler), Metrics: eviction.NewMetrics(r.registry),
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

// say tells that something presses, as it is read now, and returns what was done.
func (r *rig) say(signal string, hard bool) []string {
	r.did = nil
	<-time.After(time.Second)
	r.Pressing([]*nodev1.EvictionSignal{{Signal: signal, Available: 10 * mebi, Threshold: 100 * mebi, Hard: hard, ReadAt: timestamppb.New(r.clock.Now())}})
	synctest.Wait()
	return r.did
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
		want(t, r.say("memory.available", true), attempt+"memory", "Evicted big in 1 s: "+fmt.Sprintf(lowOn, 40))
		if told := map[string]string{"offending_containers": "main", "offending_containers_usage": "40Mi", "starved_resource": "memory"}; !maps.Equal(r.annotations, told) {
			t.Errorf("the event is annotated with %v, want %v", r.annotations, told)
		}
		r.did = nil
		// The same reading again, as it comes with every change of the Node, says nothing new.
		r.Pressing([]*nodev1.EvictionSignal{{Signal: "memory.available", Hard: true, ReadAt: timestamppb.New(time.Now().Add(-time.Minute))}})
		synctest.Wait()
		want(t, r.did)
		want(t, r.say("memory.available", false), attempt+"memory", "Evicted small in 30 s: "+fmt.Sprintf(lowOn, 4))
		// What asks for what it uses goes last, and what the node cannot do without never.
		want(t, r.say("memory.available", true), attempt+"memory", "Evicted guaranteed in 1 s: The node was low on resource: memory. Threshold quantity: 100Mi, available: 10Mi. ")
		want(t, r.say("memory.available", true), attempt+"memory")
		if r.swept.Load() != 3 {
			t.Errorf("the ended containers of evicted pods were removed %d times, want 3", r.swept.Load())
		}
	})
}

// TestAClockThatIsSet back or forth neither keeps pods from being evicted nor makes an old reading a new one.
func TestAClockThatIsSet(t *testing.T) {
	for _, by := range []time.Duration{-time.Hour, time.Hour} {
		t.Run(by.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, nil)
				if did := r.say("memory.available", true); len(did) != 2 || !strings.HasPrefix(did[1], "Evicted big") {
					t.Errorf("before the clock is set: %q", did)
				}
				before := timestamppb.New(r.clock.Now())
				<-time.After(time.Second)
				r.clock.set(by)
				r.did = nil
				r.Pressing([]*nodev1.EvictionSignal{{Signal: "memory.available", Hard: true, ReadAt: before}})
				synctest.Wait()
				want(t, r.did)
				if did := r.say("memory.available", true); len(did) != 2 || !strings.HasPrefix(did[1], "Evicted small") {
					t.Errorf("after the clock was set: %q", did)
				}
			})
		})
	}
}

func TestTheNextOneWaitsForTheEndOfTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(r *rig) { r.alive["big"] = true })
		r.say("memory.available", true)
		want(t, r.say("memory.available", true))
		<-time.After(20 * time.Second)
		want(t, r.say("memory.available", true))
		if r.swept.Load() != 0 {
			t.Error("the containers of the evicted pod were removed while it was ending")
		}
		<-time.After(10 * time.Second) // it has had 30 s, and what was read before they were over says nothing
		synctest.Wait()
		want(t, r.did)
		if r.swept.Load() != 1 {
			t.Errorf("the ended containers of evicted pods were removed %d times, want 1", r.swept.Load())
		}
		if did := r.say("memory.available", true); len(did) != 2 || !strings.HasPrefix(did[1], "Evicted small") {
			t.Errorf("after 30 s: %q", did)
		}
	})
}

func TestWhatNobodyNeedsGoesBeforePodsDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		want(t, r.say("nodefs.available", true), attempt+"ephemeral-storage", "containers", "images")
		if did := r.say("nodefs.available", true); len(did) != 2 || !strings.HasPrefix(did[1], "Evicted ") {
			t.Errorf("it was not enough: %q", did)
		}
		<-time.After(time.Minute)
		want(t, r.say("imagefs.inodesFree", true), attempt+"inodes", "containers", "images")
		r.dedicated = true
		<-time.After(time.Minute)
		if did := r.say("nodefs.available", true); len(did) != 2 || !strings.HasPrefix(did[1], "Evicted ") {
			t.Errorf("images are on another file system: %q", did)
		}
	})
}

func TestMemoryIsMadeRoomForFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		<-time.After(time.Second)
		r.Pressing([]*nodev1.EvictionSignal{
			{Signal: "imagefs.available", ReadAt: timestamppb.Now()}, {Signal: "some.other", ReadAt: timestamppb.Now()}, {Signal: "memory.available", ReadAt: timestamppb.Now()},
		})
		synctest.Wait()
		if len(r.did) == 0 || r.did[0] != attempt+"memory" {
			t.Errorf("%q", r.did)
		}
	})
}

func TestOneThatCannotBeEvictedIsPassedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(r *rig) { r.fails["big"] = true })
		if did := r.say("memory.available", true); len(did) != 2 || !strings.HasPrefix(did[1], "Evicted small") {
			t.Errorf("%q", did)
		}
	})
}
