package memory

import (
	"context"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"k8s.io/utils/clock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeHeap records what is set.
type fakeHeap struct {
	bytes    atomic.Uint64
	percent  int
	set      []int
	released int
}

func (f *fakeHeap) allocated() uint64 { return f.bytes.Load() }
func (f *fakeHeap) release()          { f.released++ }
func (f *fakeHeap) setPercent(percent int) int {
	before := f.percent
	f.percent = percent
	f.set = append(f.set, percent)
	return before
}

func TestTheHeapIsSmallAtRestOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		h := &fakeHeap{percent: 100}
		go pace(ctx, clock.RealClock{}, h)
		work := func(seconds int, bytes uint64) {
			for range seconds {
				h.bytes.Add(bytes)
				time.Sleep(period)
				synctest.Wait()
			}
		}
		work(60, busy)
		if len(h.set) != 0 || h.released != 0 {
			t.Errorf("a busy process has set %v and released %d times", h.set, h.released)
		}
		work(restPeriods-1, busy-1)
		if len(h.set) != 0 {
			t.Errorf("after %d s without work it has set %v", restPeriods-1, h.set)
		}
		work(300, busy-1)
		if !slices.Equal(h.set, []int{restPercent}) || h.released != 1 {
			t.Errorf("at rest it has set %v and released %d times, want once", h.set, h.released)
		}
		work(5, busy)
		if h.percent != 100 {
			t.Errorf("a process that is busy again has %d percent, want 100", h.percent)
		}
		work(restPeriods, 0)
		if h.percent != restPercent || h.released != 2 {
			t.Errorf("at rest again it has %d percent and released %d times", h.percent, h.released)
		}
		stop()
		synctest.Wait()
	})
}

// TestTheProcess measures the real heap.
func TestTheProcess(t *testing.T) {
	h := newProcessHeap()
	before := h.allocated()
	kept := make([]byte, busy)
	if got := h.allocated() - before; got < busy {
		t.Errorf("after %d bytes it has counted %d", len(kept), got)
	}
	old := h.setPercent(restPercent)
	defer debug.SetGCPercent(old)
	if got := h.setPercent(old); got != restPercent {
		t.Errorf("the percentage is %d, want %d", got, restPercent)
	}
}

func TestTheOperatorDecides(t *testing.T) {
	t.Setenv(percentVariable, "50")
	SmallAtRest(t.Context(), clock.RealClock{}) // returns at once
}
