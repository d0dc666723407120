package pleg

import (
	"strings"
	"testing"
	"time"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/fakecri"
)

// A pod for which the runtime does not answer is reported as unknown, with a time and a reason; pleg and the other pods
// stay healthy meanwhile, and the report is removed when the runtime answers.
func TestAPodWhoseInspectionHangsIsOfUnknownStateAndNothingElseIs(t *testing.T) {
	for _, mode := range []lifecyclev1.RelistMode{evented, generic} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			fake := fakecri.New(t)
			fake.SetEventsSupported(mode == evented)
			_, victim := fake.RunPod(fakecri.Pod{UID: "hung", Containers: []string{"app"}})
			_, well := fake.RunPod(fakecri.Pod{UID: "well", Containers: []string{"app"}})
			r := startPLEG(t, fake.Endpoint())
			r.synced()
			r.mode(mode)
			w := r.watch()

			begun := time.Now()
			gate := fake.Hang("ContainerStatus", victim["app"])
			defer gate.Open()
			fake.Exit(victim["app"], 7)
			eventually.That(r.t, "it hangs", func() bool { return gate.Waiting() == 1 })
			fake.Exit(well["app"], 1)
			w.until(died, well["app"])
			e := w.until(podSync, "hung")
			got := e.GetStatus()
			if !strings.Contains(got.GetInspectError(), "has not answered for 5s") ||
				got.GetContainers()[0].GetState() != lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING {
				t.Errorf("the event has the status %v, want what was last seen and why it is old", got)
			}
			if since := got.GetUnknownSince().AsTime(); since.Before(begun) || since.After(time.Now()) {
				t.Errorf("it is not known since %v, and hangs since %v", since, begun)
			}
			if w.r.status("hung", 0).GetInspectError() == "" || w.r.status("well", 0).GetInspectError() != "" {
				t.Error("another pod than the one that hangs is of unknown state")
			}
			health, err := r.client.GetHealth(r.ctx(), &lifecyclev1.GetHealthRequest{})
			if err != nil || !health.GetHealthy() {
				t.Errorf("the health is %v, %v", health, err)
			}
			_, later := fake.RunPod(fakecri.Pod{UID: "later", Containers: []string{"app"}})
			w.until(started, later["app"])

			gate.Open()
			e = w.until(died, victim["app"])
			if s := e.GetStatus(); e.GetExitCode() != 7 || s.GetInspectError() != "" || s.GetUnknownSince() != nil {
				t.Errorf("when it is over the event is %v", e)
			}
		})
	}
}
