package volumes_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// exhausted is the error of a driver without a place.
type exhausted struct{ reason string }

func (e *exhausted) Error() string         { return "no place" }
func (e *exhausted) RejectsPod() string    { return e.reason }
func (*exhausted) ExhaustedDriver() string { return "disk.example.com" }

// TestAPodIsRejectedOnlyAfterItHasWaitedForAPlace checks that other errors never reject a pod.
func TestAPodIsRejectedOnlyAfterItHasWaitedForAPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.plugin.failing("full", fmt.Errorf("attach: %w", &exhausted{reason: "VolumeAttachmentLimitExceeded"}))
		r.plugin.failing("waits", fmt.Errorf("attach: %w", &exhausted{}))
		r.plugin.failing("broken", errors.New("no such thing"))
		full, other := newPod("u1", "broken", "full", "fine"), newPod("u2", "broken", "waits")
		if r.want(full) == nil || r.want(other) == nil {
			t.Fatal("the volumes are in place")
		}
		r.clock.Step(2 * time.Minute)
		synctest.Wait()
		if got := r.manager.Rejected(); len(got) != 0 {
			t.Errorf("too early: %+v", got)
		}
		r.clock.Step(4 * time.Second)
		synctest.Wait()
		got := r.manager.Rejected()
		if len(got) != 1 || got[0].Pod != full || got[0].Reason != "VolumeAttachmentLimitExceeded" ||
			len(got[0].Drivers) != 1 || got[0].Drivers[0] != "disk.example.com" {
			t.Fatalf("got %+v", got)
		}
		const want = "Node has reached its volume attachment limit, rejecting pod. unmounted volumes=[broken full], " +
			"unattached volumes=[full], failed to process volumes=[]: context deadline exceeded"
		if got[0].Message != want {
			t.Errorf("got %q", got[0].Message)
		}
		for _, name := range []string{"full", "waits", "broken"} {
			r.plugin.failing(name, nil)
		}
		if err := r.release("u1"); err != nil {
			t.Fatal(err)
		}
		if got := r.manager.Rejected(); len(got) != 0 {
			t.Errorf("after its end: %+v", got)
		}
	})
}
