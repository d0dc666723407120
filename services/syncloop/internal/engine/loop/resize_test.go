package loop_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/loop"
)

// requestedCPU returns the CPU request of a pod's first container, in the version that is worked on.
func (r *rig) requestedCPU(uid string) string {
	if containers := r.pod(uid).Spec.Containers; len(containers) > 0 {
		return containers[0].Resources.Requests.Cpu().String()
	}
	return ""
}

// change updates a pod.
func (r *rig) change(pod *v1.Pod) {
	r.config.Put(string(pod.UID), &loop.Desired{Pod: pod, Source: "file"})
}

func (r *rig) pending(uid string) bool {
	return slices.ContainsFunc(r.pod(uid).Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.PodResizePending && c.Status == v1.ConditionTrue && c.Reason == v1.PodReasonDeferred
	})
}

func TestAResizeWaitsForRoomOnTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		var tooMuch atomic.Bool
		r.node.SetScript(fakenode.Script{Sync: func(_ context.Context, pod *v1.Pod) error {
			if pod.Spec.Containers[0].Resources.Requests.Cpu().Value() == 3 {
				tooMuch.Store(true)
			}
			return nil
		}})
		r.setNode(machine("2"))
		r.add(cpus("a", "500m", 0))
		r.add(cpus("b", "1", 10))
		r.source("file", true)
		r.eventually("both run", r.runs("a", "b"))

		r.change(cpus("a", "1500m", 0))
		r.eventually("it waits", func() bool { return r.pending("a") })
		if got := r.requestedCPU("a"); got != "500m" {
			t.Errorf("while it waits, it has %s, want %q", got, "500m")
		}
		// Other changes are applied, and a change of the status alone has no effect.
		changed := cpus("a", "1500m", 0)
		changed.Labels, changed.Status.Message = map[string]string{"x": "y"}, "m"
		r.change(changed)
		r.eventually("its label is there", func() bool { return r.pod("a").Labels["x"] == "y" })
		r.pass(time.Minute)
		if !r.pending("a") || r.requestedCPU("a") != "500m" {
			t.Errorf("after another change it has %s", r.requestedCPU("a"))
		}
		if events := r.events.list(); !slices.Equal(events, []string{"Warning ResizeDeferred a"}) {
			t.Errorf("events %v, want one", events)
		}
		// The CPUs that it waits for are free for other pods.
		r.add(cpus("c", "500m", 20))
		r.eventually("another pod is admitted", r.runs("a", "b", "c"))

		r.config.Delete("b")
		r.eventually("it has the requested CPUs", func() bool { return r.requestedCPU("a") == "1500m" && !r.pending("a") })
		r.change(cpus("a", "1", 0))
		r.eventually("less is always possible", func() bool { return r.requestedCPU("a") == "1" })

		// The change is reverted while the resize is pending.
		r.change(cpus("a", "3", 0))
		r.eventually("it waits again", func() bool { return r.pending("a") })
		r.change(cpus("a", "1", 0))
		r.eventually("it waits no longer", func() bool { return !r.pending("a") && r.requestedCPU("a") == "1" })
		if tooMuch.Load() {
			t.Error("a pod was synced with resources that the node does not have")
		}
	})
}
