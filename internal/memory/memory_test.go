package memory

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"k8s.io/utils/clock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeHeap records what is done. Half a megabyte of its objects is in use.
type fakeHeap struct {
	bytes               atomic.Uint64
	set                 []int
	released, collected int
}

const used = 500_000

func (f *fakeHeap) allocated() uint64 { return f.bytes.Load() }
func (f *fakeHeap) live() uint64      { return used }
func (f *fakeHeap) release()          { f.released++ }
func (f *fakeHeap) collect()          { f.collected++ }
func (f *fakeHeap) setPercent(percent int) int {
	f.set = append(f.set, percent)
	return startPercent
}

func TestTheHeapIsSmallAtRestOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		h := &fakeHeap{}
		go pace(ctx, clock.RealClock{}, h)
		work := func(seconds int, bytes uint64) {
			for range seconds {
				h.bytes.Add(bytes)
				<-time.After(period)
				synctest.Wait()
			}
		}
		work(startPeriods-1, busy)
		if len(h.set) != 0 {
			t.Errorf("a process that has just started has set %v", h.set)
		}
		work(60, busy)
		if !slices.Equal(h.set, []int{percent}) || h.released != 0 {
			t.Errorf("a busy process has set %v and released %d times, want %d once", h.set, h.released, percent)
		}
		work(restPeriods-1, busy-1)
		if h.released != 0 || h.collected != 0 {
			t.Errorf("after %d s without work it has released %d times, and collected %d times",
				restPeriods-1, h.released, h.collected)
		}
		work(300, busy-1)
		if !slices.Equal(h.set, []int{percent}) || h.released != 1 {
			t.Errorf("at rest it has set %v and released %d times, want once", h.set, h.released)
		}
		const seconds = int(restPeriod / period)
		work(seconds, 0)
		for range 10 {
			work(1, rush-1) // a full list, for example
			work(29, 0)
		}
		if h.released != 1 {
			t.Errorf("with periodic work it has released %d times, want once", h.released)
		}
		for i, start := range []func(){func() { work(busyPeriods*seconds, busy) }, func() { work(1, rush) }} {
			start()
			work(seconds, busy)
			before := h.collected
			work(seconds, busy)
			if h.collected != before {
				t.Errorf("a process that is busy again has collected %d times", h.collected-before)
			}
			work(restPeriods, 0)
			if want := i + 2; h.released != want {
				t.Errorf("at rest again it has released %d times, want %d", h.released, want)
			}
		}
		stop()
		synctest.Wait()
	})
}

// TestAProcessAtRestCollectsWhenATenthIsGarbage has little work for a minute, and then none.
func TestAProcessAtRestCollectsWhenATenthIsGarbage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		h := &fakeHeap{}
		go pace(ctx, clock.RealClock{}, h)
		wait := func(length time.Duration) {
			<-time.After(length)
			synctest.Wait()
		}
		wait(restPeriods * period)
		for range 12 {
			h.bytes.Add(used / 20)
			wait(restPeriod)
		}
		if h.released != 1 || h.collected != 6 {
			t.Errorf("it has released %d times, want once, and collected %d times, want 6", h.released, h.collected)
		}
		wait(time.Hour)
		if h.collected != 6 {
			t.Errorf("without any work it has collected %d times", h.collected-6)
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
	h.collect()
	if got := h.live(); got < busy {
		t.Errorf("with %d bytes in use it has counted %d", len(kept), got)
	}
	runtime.KeepAlive(kept)
	old := h.setPercent(percent)
	defer debug.SetGCPercent(old)
	if got := h.setPercent(old); got != percent {
		t.Errorf("the percentage is %d, want %d", got, percent)
	}
}

// TestTheReleaseShrinksStacks measures the stack of a goroutine that has needed much of it once.
func TestTheReleaseShrinksStacks(t *testing.T) {
	h := newProcessHeap()
	const goroutines, depth = 200, 200
	ready, end := make(chan struct{}), make(chan struct{})
	for range goroutines {
		go func() {
			deep(depth)
			ready <- struct{}{}
			<-end
		}()
	}
	for range goroutines {
		<-ready
	}
	defer close(end)
	before := stacks()
	h.release()
	if after := stacks(); after > before/4 {
		t.Errorf("the stacks have %d bytes, and had %d", after, before)
	}
}

// deep needs some hundred bytes of stack for each level.
func deep(levels int) byte {
	var room [256]byte
	if levels > 0 {
		room[levels%len(room)] = deep(levels - 1)
	}
	return room[0]
}

func stacks() uint64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

func TestTheOperatorDecides(t *testing.T) {
	t.Setenv(Variable, "50")
	h := newProcessHeap()
	before := h.setPercent(percent + 1)
	defer h.setPercent(before)
	Start()
	SmallAtRest(t.Context(), clock.RealClock{}) // returns at once
	if got := h.setPercent(percent + 1); got != percent+1 {
		t.Errorf("the percentage is %d now", got)
	}
}
