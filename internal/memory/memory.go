// Package memory keeps the heap of a process at rest small.
//
// Go collects garbage when the heap has doubled, and returns the pages of a busy time to the kernel slowly. A node is
// at rest most of the time, and has five processes: what each keeps for the next busy time is paid five times. So a
// process at rest collects when its heap has grown by a quarter, and returns the free pages once. A busy process is as
// Go has it, so that a start of many pods is not slower.
package memory

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"k8s.io/utils/clock"
)

const (
	// period is the interval in which allocations are compared.
	period = time.Second
	// busy is the bytes allocated within a period by a process that is busy. Each start of a pod allocates about as much
	// in all processes together; a node at rest with 100 pods allocates a tenth.
	busy = 1 << 20
	// restPeriods is the number of periods without work after which a process is at rest.
	restPeriods = 10
	// restPercent is by how many percent the heap of a process at rest grows until the next collection. A collection takes
	// about 10 ms of processor time and is then due every half a minute.
	restPercent = 25
	// allocated is the bytes allocated since the start of the process.
	allocated = "/gc/heap/allocs:bytes"
	// percentVariable is Go's environment variable with the percentage.
	percentVariable = "GOGC"
)

// heap is the garbage collector of a process.
type heap interface {
	// allocated returns the bytes allocated since the start of the process.
	allocated() uint64
	// setPercent sets by how many percent the heap grows between collections, and returns the earlier value.
	setPercent(percent int) int
	// release collects and returns free pages to the kernel.
	release()
}

// SmallAtRest keeps the heap of this process small while it has nothing to do, until ctx ends. If the environment
// variable GOGC is set, it does nothing: the operator has decided.
func SmallAtRest(ctx context.Context, c clock.WithTicker) {
	if os.Getenv(percentVariable) != "" {
		return
	}
	pace(ctx, c, newProcessHeap())
}

// pace compares the allocations of each period.
func pace(ctx context.Context, c clock.WithTicker, h heap) {
	ticker := c.NewTicker(period)
	defer ticker.Stop()
	before, without, percent := h.allocated(), 0, 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		now := h.allocated()
		if now-before < busy {
			without++
		} else {
			without = 0
		}
		before = now
		switch {
		case without == restPeriods:
			percent = h.setPercent(restPercent)
			h.release()
		case without == 0 && percent != 0:
			h.setPercent(percent)
			percent = 0
		}
	}
}

// processHeap is the heap of this process.
type processHeap struct{ samples []metrics.Sample }

func newProcessHeap() *processHeap {
	return &processHeap{samples: []metrics.Sample{{Name: allocated}}}
}

func (p *processHeap) allocated() uint64 {
	metrics.Read(p.samples)
	return p.samples[0].Value.Uint64()
}

func (*processHeap) setPercent(percent int) int { return debug.SetGCPercent(percent) }
func (*processHeap) release()                   { debug.FreeOSMemory() }
