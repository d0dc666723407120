package podworkers_test

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
	"github.com/quartet-node/quartet/test/eventually"
)

// TestDueTimesAreNotOfAClockThatCanBeSet checks that due times have a reading of the monotonic clock, which Go then
// compares. A step of the wall clock delays no worker.
func TestDueTimesAreNotOfAClockThatCanBeSet(t *testing.T) {
	r := newRigWith(fakenode.New(), time.Hour)
	t.Cleanup(r.stop)
	r.want(fakenode.Pod("a", "web", v1.RestartPolicyAlways))
	for _, due := range map[string]func() (time.Time, bool){
		"of the pod":   func() (time.Time, bool) { return r.pool.Due().At("a") },
		"the earliest": r.pool.Due().Next,
	} {
		var at time.Time
		eventually.That(t, "the pod is due", func() (known bool) {
			at, known = due()
			return known
		})
		if !strings.Contains(at.String(), " m=") {
			t.Errorf("it is due at %v, without a monotonic reading", at)
		}
	}
}
