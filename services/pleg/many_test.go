package pleg

import (
	"fmt"
	"testing"
	"time"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/test/fakecri"
)

// Five hundred pods lose a container at the same time, while one of them hangs, the inspections of ten others fail at
// first, and events are lost, duplicated and reordered: each exit is sent once, with its exit code.
//
// It does not run in parallel with other tests, because it needs a processor of its own.
func TestFiveHundredDeathsAtOnceAreReportedOnceEach(t *testing.T) {
	const pods = 500
	fake := fakecri.New(t)
	victims := map[string]int32{}
	for i := range pods {
		uid := fmt.Sprint("uid-", i)
		_, ids := fake.RunPod(fakecri.Pod{UID: uid, Containers: []string{"app", "sidecar"}})
		victims[ids["app"]] = int32(i % 100)
	}
	r := startPLEG(t, fake.Endpoint())
	r.synced()
	r.mode(evented)
	w := r.watch()
	fake.TwistEvents(fakecri.Losing(3), fakecri.Repeating(2), fakecri.Reversing(7))
	gate := fake.Hang("ContainerStatus", "uid-0")
	defer gate.Open()
	for i := 1; i < pods; i += 50 {
		fake.Fail("ContainerStatus", fmt.Sprint("uid-", i), 1, fmt.Errorf("scripted"))
	}
	begun, left := time.Now(), len(victims)
	for id, code := range victims {
		fake.Exit(id, code)
	}
	// A list finds the changes without an event; the test does not wait for the next one.
	if _, err := r.client.RequestRelist(r.ctx(), &lifecyclev1.RequestRelistRequest{}); err != nil {
		t.Fatal(err)
	}
	publish := func(until int) {
		t.Helper()
		for left > until {
			e := w.next()
			if e.GetType() != died {
				continue
			}
			left--
			if code, awaited := victims[e.GetContainerId()]; !awaited || code != e.GetExitCode() {
				t.Errorf(
					"container %s of %s is told to have died with %d; awaited is %t",
					e.GetContainerName(),
					e.GetPodUid(),
					e.GetExitCode(),
					awaited,
				)
			}
			delete(victims, e.GetContainerId())
		}
	}
	publish(1)
	t.Logf("%d deaths were told within %v", pods-1, time.Since(begun).Round(time.Millisecond))
	gate.Open()
	publish(0)
	if _, err := r.client.RequestRelist(r.ctx(), &lifecyclev1.RequestRelistRequest{}); err != nil {
		t.Fatal(err)
	}
	for len(w.deltas) > 0 {
		if e := w.next(); e.GetType() == died {
			t.Errorf("a death is told once more: %s of %s", e.GetContainerName(), e.GetPodUid())
		}
	}
}
