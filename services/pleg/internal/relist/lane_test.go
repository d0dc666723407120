package relist_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/quartet-node/quartet/internal/boottime"
	"github.com/quartet-node/quartet/services/pleg/internal/relist"
	"github.com/quartet-node/quartet/test/fakecri"
)

// TestPodsThatHangAgainAndAgainDelayNoOther: three times as many as may be inspected at the same time time out and are tried
// again, in step, and relists go on.
func TestPodsThatHangAgainAndAgainDelayNoOther(t *testing.T) {
	fake := fakecri.New(t)
	fake.RunPod(fakecri.Pod{UID: "well", Containers: []string{"app"}})
	var hung []*fakecri.Gate
	for i := range 12 {
		_, ids := fake.RunPod(fakecri.Pod{UID: fmt.Sprint("hung-", i), Containers: []string{"app"}})
		defer func() { hung[i].Open() }()
		hung = append(hung, fake.Hang("ContainerStatus", ids["app"]))
	}
	const timeout = 1200 * time.Millisecond
	r := startWith(t, fake, timeout)
	again := func() bool {
		r.clock.Step(relist.Period) // what has failed is tried again
		for _, gate := range hung {
			if gate.Reached() < 2 {
				return false
			}
		}
		return true
	}
	r.eventually("each hangs for the second time", again)
	relists := r.Progress().FinishedAt
	slowest := time.Duration(0)
	for began := time.Now(); time.Since(began) < 2*timeout; r.clock.Step(relist.Period) {
		asked := time.Now()
		if _, err := r.Status(t.Context(), "well", boottime.Now()); err != nil {
			t.Fatal(err)
		}
		slowest = max(slowest, time.Since(asked))
	}
	// One that waits for its turn behind those that hang waits 1 s for each four of them.
	if slowest > 900*time.Millisecond {
		t.Errorf("beside 12 pods that hang another one was inspected within %v", slowest)
	}
	r.eventually("relists go on", func() bool {
		r.clock.Step(relist.Period)
		return r.Progress().FinishedAt.After(relists)
	})
}
