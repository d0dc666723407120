package memory

import (
	"context"
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
		h := &fakeHeap{percent: startPercent}
		go pace(ctx, clock.RealClock{}, h)
		work := func(seconds int, bytes uint64) {
			for range seconds {
				h.bytes.Add(bytes)
				time.Sleep(period)
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
		if !slices.Equal(h.set, []int{percent}) {
			t.Errorf("after %d s without work it has set %v, want %d once", restPeriods-1, h.set, percent)
		}
		work(300, busy-1)
		if !slices.Equal(h.set, []int{percent, restPercent}) || h.released != 1 {
			t.Errorf("at rest it has set %v and released %d times, want once", h.set, h.released)
		}
		for range 10 {
			work(busyPeriods-1, rush-1) // a full list, for example
			work(30, 0)
		}
		if h.percent != restPercent || h.released != 1 {
			t.Errorf("with periodic work it has %d percent and released %d times, want once", h.percent, h.released)
		}
		for i, start := range []func(){func() { work(busyPeriods, busy) }, func() { work(1, rush) }} {
			start()
			if h.percent != percent {
				t.Errorf("a process that is busy again has %d percent, want %d", h.percent, percent)
			}
			work(restPeriods, 0)
			if want := i + 2; h.percent != restPercent || h.released != want {
				t.Errorf("at rest again it has %d percent and released %d times, want %d", h.percent, h.released, want)
			}
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
	before := h.setPercent(restPercent)
	defer h.setPercent(before)
	Start()
	SmallAtRest(t.Context(), clock.RealClock{}) // returns at once
	if got := h.setPercent(restPercent); got != restPercent {
		t.Errorf("the percentage is %d now", got)
	}
}
