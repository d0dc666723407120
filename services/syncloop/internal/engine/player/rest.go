package player

import (
	"context"
	"runtime/metrics"
	"time"
)

const (
	// restPatience bounds the wait for rest, for a process that does something else beside the replay.
	restPatience = 10 * time.Second
	// restReads is how often in a row the process must be found at rest: the counts of one read are not of one moment.
	restReads = 3
	// restPause is the pause after it was not.
	restPause = 100 * time.Microsecond
)

// rester waits until every goroutine of the process waits: whatever a change or a step of the clock has caused is then
// decided. So a replay does not depend on how busy the machine is.
type rester struct {
	samples []metrics.Sample
	// outside is the number of goroutines that stay in system calls, such as that of signals.
	outside uint64
}

// The counts of the Go scheduler, in the order of rester.samples.
const (
	runnable = iota
	running
	outsideGo
)

func newRester() *rester {
	r := &rester{samples: []metrics.Sample{
		runnable:  {Name: "/sched/goroutines/runnable:goroutines"},
		running:   {Name: "/sched/goroutines/running:goroutines"},
		outsideGo: {Name: "/sched/goroutines/not-in-go:goroutines"},
	}}
	metrics.Read(r.samples)
	r.outside = r.samples[outsideGo].Value.Uint64()
	return r
}

// await waits for rest, until ctx ends, or for restPatience.
func (r *rester) await(ctx context.Context) {
	deadline := time.Now().Add(restPatience)
	for found := 0; found < restReads && ctx.Err() == nil; {
		if time.Now().After(deadline) {
			r.outside = r.samples[outsideGo].Value.Uint64() // what stays in a system call is waited for once
			return
		}
		if r.rests() {
			found++
			continue
		}
		found = 0
		if !sleep(ctx, restPause) {
			return
		}
	}
}

// rests reports whether only this goroutine runs.
func (r *rester) rests() bool {
	metrics.Read(r.samples)
	count := func(i int) uint64 { return r.samples[i].Value.Uint64() }
	return count(runnable) == 0 && count(running) <= 1 && count(outsideGo) <= r.outside
}
