// Package memory keeps a process small, above all at rest.
//
// Go collects garbage when the heap has doubled, and returns the pages of a busy time to the kernel slowly. It never
// moves an object, so what stays of a busy time is spread over many pages, the more the larger the heap was. A node is
// at rest most of the time, and has five processes: what each keeps for the next busy time is paid five times. So a
// process collects when its heap has grown by a third. At rest it looks every few seconds whether a tenth is garbage,
// and collects then; it starts a single pod, or a few, without a collection for that. When it comes to rest, it has
// returned the free pages, and given up the pages of its program, too. Only the first seconds are an exception: the
// heap is small then, so that collections would come one after another, while a node waits for all of its processes.
package memory

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"k8s.io/utils/clock"
)

const (
	// period is the interval in which allocations are compared, and restPeriod that of a process at rest, because each
	// comparison wakes the process.
	period     = time.Second
	restPeriod = 5 * period
	// busy is the bytes allocated within a period by a process that is busy. Each start of a pod allocates about as much
	// in all processes together; a node at rest with 100 pods allocates a tenth.
	busy = 1 << 20
	// restBusy is the bytes that a process at rest allocates within each of busyPeriods if it is busy again, and rush
	// those within a single one. pleg allocates less for a full list, every 30 s.
	restBusy    = 5 << 20
	rush        = 8 << 20
	busyPeriods = 2
	// restPeriods is the number of periods without work after which a process is at rest.
	restPeriods = 10
	// startPercent is by how many percent the heap grows until the next collection in the startPeriods of a process that
	// has just started. A restart with 60 pods takes 220 ms until pods are synced; with 50 percent 270 ms, and with 400
	// percent 190 ms, but that leaves 3 MiB more in five processes at rest.
	startPercent = 200
	startPeriods = 3
	// percent is by how many percent the heap grows until the next collection. With Go's 100 the processes of a node with
	// 100 pods at rest have 3 MiB more, and with 50 they have 1 MiB more; starts take about the same processor time.
	percent = 30
	// restPercent is how much a process at rest has allocated since its last collection, in percent of the objects in use,
	// when it collects at the end of a restPeriod. Nearly all of it is garbage then.
	restPercent = 10
	// collections is the number of collections when a process comes to rest, because each halves the stacks of goroutines
	// that do not need their size any more.
	collections = 4
	// allocated is the bytes allocated since the start of the process, and live those of the objects that the last
	// collection has found in use.
	allocated = "/gc/heap/allocs:bytes"
	live      = "/gc/heap/live:bytes"
	// childPercent is the percentage while the packages of a process are initialized. They allocate about 4 MiB, which is
	// when Go collects for the first time. It is not "off", because a program that does not set another one keeps it.
	childPercent = "400"
)

// Variable is Go's environment variable with the percentage.
const Variable = "GOGC"

// heap is the garbage collector of a process.
type heap interface {
	// allocated returns the bytes allocated since the start of the process.
	allocated() uint64
	// live returns the bytes that the last collection has found in use.
	live() uint64
	// setPercent sets by how many percent the heap grows between collections, and returns the earlier value.
	setPercent(percent int) int
	// collect collects garbage.
	collect()
	// release collects, shrinks stacks, returns free pages to the kernel and gives up those of the program.
	release()
}

// ForChild returns the value of Variable for a child of this process, until it calls Start.
func ForChild() string { return childPercent }

// Start lets the heap of this process grow more between collections than Go does, until SmallAtRest changes that. It
// is called first. If the environment variable GOGC is set, it does nothing: the operator has decided.
func Start() {
	if os.Getenv(Variable) == "" {
		newProcessHeap().setPercent(startPercent)
	}
}

// SmallAtRest keeps the heap of this process small while it has nothing to do, until ctx ends. If the environment
// variable GOGC is set, it does nothing: the operator has decided.
func SmallAtRest(ctx context.Context, c clock.WithTicker) {
	if os.Getenv(Variable) != "" {
		return
	}
	pace(ctx, c, newProcessHeap())
}

// pace compares the allocations of each period.
func pace(ctx context.Context, c clock.WithTicker, h heap) {
	const hundred = 100
	before, quiet, loud, resting := h.allocated(), 0, 0, false
	length, limit := period, uint64(busy)
	// collected is what was allocated before the last collection at rest.
	var collected uint64
	timer := c.NewTimer(length)
	defer timer.Stop()
	for periods := 1; ; periods++ {
		select {
		case <-ctx.Done():
			return
		case <-timer.C():
		}
		now := h.allocated()
		if periods == startPeriods {
			h.setPercent(percent)
		}
		if now-before < limit {
			quiet, loud = quiet+1, 0
		} else {
			quiet, loud = 0, loud+1
		}
		switch {
		case !resting && quiet >= restPeriods:
			resting, length, limit = true, restPeriod, restBusy
			h.release()
			collected = now
		case resting && (loud >= busyPeriods || now-before >= rush):
			resting, length, limit = false, period, busy
		case resting && (now-collected)*hundred >= h.live()*restPercent:
			h.collect()
			collected = now
		}
		before = now
		timer.Reset(length)
	}
}

// processHeap is the heap of this process.
type processHeap struct{ samples []metrics.Sample }

func newProcessHeap() *processHeap {
	return &processHeap{samples: []metrics.Sample{{Name: allocated}, {Name: live}}}
}

func (p *processHeap) allocated() uint64 {
	metrics.Read(p.samples[:1])
	return p.samples[0].Value.Uint64()
}

func (p *processHeap) live() uint64 {
	metrics.Read(p.samples[1:])
	return p.samples[1].Value.Uint64()
}

func (*processHeap) setPercent(percent int) int { return debug.SetGCPercent(percent) }

func (*processHeap) collect() { runtime.GC() }

func (*processHeap) release() {
	for range collections - 1 {
		runtime.GC()
	}
	debug.FreeOSMemory() // collects, too
	releaseProgram()
}
