package relist_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/trace/noop"

	"github.com/quartet-node/quartet/internal/boottime"
	"github.com/quartet-node/quartet/services/pleg/internal/relist"
)

// TestPodsThatHangAgainAndAgainDelayNoOther: three times as many pods as parallel inspections time out and are retried
// in step, and relists continue.
func TestPodsThatHangAgainAndAgainDelayNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		var hung []string
		for i := range 12 {
			hung = append(hung, fmt.Sprint("hung-", i))
		}
		for _, uid := range append([]string{"well"}, hung...) {
			w.addSandbox(uid)
			w.addContainer(uid)
		}
		p := startProcess(w, &storage{}, noop.NewTracerProvider().Tracer(""))
		defer p.end()
		defer w.heal()
		synctest.Wait()
		w.hang(hung...)
		time.Sleep(2 * callTimeout)
		for _, uid := range hung {
			if n := w.inspected(uid); n != 2 {
				t.Fatalf("pod %s is inspected for time %d, want each to hang for the second time", uid, n)
			}
		}
		relists, slowest := p.Progress().FinishedAt, time.Duration(0)
		for began := time.Now(); time.Since(began) < 3*callTimeout; time.Sleep(relist.Period / 3) {
			begun := time.Now()
			if _, err := p.Status(t.Context(), "well", boottime.Now()); err != nil {
				t.Fatal(err)
			}
			slowest = max(slowest, time.Since(begun))
		}
		// A pod that waits for its turn behind hanging ones waits 1 s for each four of them.
		if slowest > 0 {
			t.Errorf("beside 12 pods that hang another one was inspected within %v, want at once", slowest)
		}
		if !p.Progress().FinishedAt.After(relists) {
			t.Error("no relist has finished meanwhile")
		}
	})
}
