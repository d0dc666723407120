package server_test

import (
	"context"
	"runtime"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

const (
	// stuckPods is the number of pods: their snapshot is larger than the windows of a connection.
	stuckPods = 500
	// stuckChanges is the number of changes after the warm-up. Stored, they would need many times the allowed memory.
	stuckChanges = 6_000
	// stuckPatience is the time limit of all changes, many times their duration.
	stuckPatience = 2 * time.Minute
)

// modes are the three of WatchPodUpdates.
func modes() []configv1.Mode {
	return []configv1.Mode{
		configv1.Mode_MODE_INCREMENTAL,
		configv1.Mode_MODE_SNAPSHOT_AND_UPDATES,
		configv1.Mode_MODE_SNAPSHOT,
	}
}

// A subscriber that has stopped reading has no effect on others: in each mode, the others get each change before the
// next one is made, and memory depends on the number of pods, not of changes. When it reads again, it gets the final
// state.
func TestAStuckSubscriberDelaysNoOther(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*rig) source.Pod
		// forgotten is true when so many pods were removed that the stuck subscriber has to begin again.
		forgotten bool
	}{
		"pods that change":      {change: (*rig).update},
		"pods that come and go": {change: (*rig).replace, forgotten: true},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), stuckPatience)
			defer cancel()
			r := newRig(t, stuckPods)
			healthy := r.subscribe(ctx, configv1.Mode_MODE_INCREMENTAL)
			var stuck []*subscriber
			for _, mode := range modes() {
				stuck = append(stuck, r.subscribe(ctx, mode))
			}
			if err := healthy.sync(); err != nil {
				t.Fatal(err)
			}
			var last source.Pod
			change := func(times int) {
				for range times {
					last = tc.change(r)
					if err := healthy.see(last); err != nil {
						t.Fatalf("change %d: the subscriber that reads gets %v, want the pod", r.changes, err)
					}
				}
			}
			change(stuckPods + stream.DefaultTombstones)
			before := heap()
			change(stuckChanges)
			after := heap()
			if allowed := 2 * encoded(r); after > before+allowed {
				t.Errorf(
					"%d changes took %d KiB, want no more than two versions of each pod, which are %d KiB",
					stuckChanges,
					(after-before)>>10,
					allowed>>10,
				)
			}
			r.isHeldBy(healthy)
			for i, mode := range modes() {
				t.Run(mode.String(), func(t *testing.T) { readsAgain(ctx, t, r, stuck[i], mode, last, tc.forgotten) })
			}
		})
	}
}

// readsAgain checks that a subscriber was stuck, and its messages after that.
func readsAgain(
	ctx context.Context,
	t *testing.T,
	r *rig,
	s *subscriber,
	mode configv1.Mode,
	last source.Pod,
	forgotten bool,
) {
	t.Helper()
	err := s.see(last)
	if few := 3 * stuckPods; s.messages > few {
		t.Errorf("it was sent %d messages, want at most %d: it was not stuck, or was told of each change", s.messages, few)
	}
	if !forgotten {
		if err != nil {
			t.Errorf("%v, want the last change", err)
		}
		return
	}
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("%v, want to be told to begin again", err)
	}
	if err := r.subscribe(ctx, mode).see(last); err != nil {
		t.Errorf("begun again: %v, want the last change", err)
	}
}

// isHeldBy checks that a subscriber has the last version of each pod, and no others.
func (r *rig) isHeldBy(s *subscriber) {
	r.tb.Helper()
	var want, got []string
	for _, u := range r.desired.Pods() {
		want = append(want, string(u.GetPod()))
	}
	for _, data := range s.held {
		got = append(got, string(data))
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		r.tb.Errorf("it holds %d pods, want the %d that are desired, as they are", len(got), len(want))
	}
}

// encoded returns how many bytes the desired pods have on the wire.
func encoded(r *rig) uint64 {
	var n uint64
	for _, u := range r.desired.Pods() {
		n += uint64(len(u.GetPod()))
	}
	return n
}

// heap returns the heap in use. The first collection leaves the content of pools until the next one.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
