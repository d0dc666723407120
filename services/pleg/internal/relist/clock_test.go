package relist_test

import (
	"testing"
	"time"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/pleg/internal/relist"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/fakecri"
)

// TestAClockThatWasSetBackHidesNoDeath: later changes have an earlier time than the last observation.
func TestAClockThatWasSetBackHidesNoDeath(t *testing.T) {
	fake := fakecri.New(t)
	_, ids := fake.RunPod(fakecri.Pod{UID: "uid-1", Name: "web", Containers: []string{"app"}})
	r := start(t, fake)
	r.SetEvented(true)
	r.request()
	next := r.subscribe()
	r.clock.SetTime(r.clock.Now().Add(-time.Hour))
	fake.Kill(ids["app"])
	r.Hint("uid-1", r.clock.Now())
	if e := next(); e.GetType() != lifecyclev1.EventType_EVENT_TYPE_CONTAINER_DIED {
		t.Errorf("the death of a container is told as %v", e.GetType())
	}
	before := r.fullLists()
	r.HintAny("unheard-of", r.clock.Now())
	r.clock.Step(time.Hour + relist.Period) // to the next tick, as if the clock had not been set
	eventually.That(r.t, "everything is listed for what nobody knows", func() bool { return r.fullLists() == before+1 })
}
