package volumes_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quartet-node/quartet/test/eventually"
)

func TestContentIsBroughtUpToDateWhenThePodIsLookedAtAndWhenItChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		pod := newPod("u1", "config")
		if err := r.want(pod); err != nil {
			t.Fatal(err)
		}
		r.manager.Want(t.Context(), pod)
		eventually.That(r.t, "a look", func() bool { return r.plugin.count("setup config") == 2 })
		eventually.That(r.t, "it is done", func() bool { return r.plugin.underWay() == 0 })
		r.manager.Refresh("u1")
		eventually.That(r.t, "a change", func() bool { return r.plugin.count("setup config") == 3 })
		r.plugin.failing("config", errors.New("gone"))
		r.manager.Refresh("u1")
		eventually.That(r.t, "it is told", func() bool { return strings.Contains(r.events.String(), `volume "config" : gone`) })
		if !r.manager.Ready("u1") {
			t.Error("a volume that is in place does not count any more since it could not be brought up to date")
		}
		r.plugin.failing("config", nil)
		tries := r.plugin.count("setup config")
		eventually.That(r.t, "it is tried again, though nobody looks", func() bool {
			r.clock.Step(time.Second)
			return r.plugin.count("setup config") > tries
		})
		r.manager.Refresh("of nobody")
	})
}

// TestAVolumeWhoseContentNeverChangesIsRetriedToo checks that Refresh ends the back-off of such a volume, also if the
// change comes during an attempt, and leaves it alone once it is set up.
func TestAVolumeWhoseContentNeverChangesIsRetriedToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.plugin.fixed = true
		r.plugin.failing("data", errors.New("PVC is not bound"))
		if err := r.want(newPod("u1", "data")); err == nil {
			t.Fatal("it is there")
		}
		open := r.plugin.hanging("data")
		r.manager.Refresh("u1") // the clock stands still
		eventually.That(r.t, "it is retried", func() bool { return r.plugin.underWay() == 1 })
		r.manager.Refresh("u1")
		open()
		eventually.That(r.t, "it is retried again", func() bool { return r.plugin.count("setup data") == 3 && r.plugin.underWay() == 0 })
		r.plugin.failing("data", nil)
		r.manager.Refresh("u1")
		eventually.That(r.t, "the volume is there", func() bool { return r.manager.Ready("u1") })
		r.manager.Refresh("u1")
		synctest.Wait()
		if got := r.plugin.count("setup data"); got != 4 {
			t.Errorf("it was set up %d times, want 4", got)
		}
	})
}
