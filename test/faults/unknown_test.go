package faults

import (
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/test/criproxy"
	"github.com/quartet-node/quartet/test/livenode"
)

// TestAPodOfAHangingInspectionIsReportedAsUnknown ends the container of a pod while the runtime does not answer
// calls for that container: the pod has the condition of an unknown state, with a time and a reason, while the node
// stays Ready. The condition is removed as soon as the runtime answers.
func TestAPodOfAHangingInspectionIsReportedAsUnknown(t *testing.T) {
	t.Parallel()
	place(t, "unknown")
	place(t, "beside-unknown")
	before := only(awaitOne(t, "unknown"))
	crashed := only(awaitOne(t, "beside-unknown"))
	hung := node.proxy.Hang("ContainerStatus", criproxy.For(full("unknown")))
	t.Cleanup(hung.Lift)
	begun := time.Now()
	kill(t, "unknown")
	unknown := func(p *v1.Pod) *v1.PodCondition {
		at := slices.IndexFunc(p.Status.Conditions, func(c v1.PodCondition) bool {
			return c.Type == podset.ConditionRuntimeStateUnknown
		})
		if at < 0 {
			return nil
		}
		return &p.Status.Conditions[at]
	}
	p := await(t, "unknown", "of unknown state", func(p *v1.Pod) bool { return unknown(p) != nil })
	if c := unknown(p); c.LastTransitionTime.Time.Before(begun.Add(-time.Second)) ||
		c.LastTransitionTime.After(time.Now()) || !strings.Contains(c.Message, "has not answered") {
		t.Errorf("it hangs since %v, and the condition is %+v", begun, c)
	}
	if !livenode.Ready(p) || only(p).ContainerID != before.ContainerID {
		t.Errorf("what was last seen of it is not kept: %s", describe(t, p))
	}
	if out, err := node.Command(t.Context(), "get", "pods", "-n", namespace, "unknown", "beside-unknown"); err != nil || strings.Count(out, "Unknown (") != 1 {
		t.Errorf("get pods, %v:\n%s\nwant %q once", err, out, "Unknown (")
	}
	if out, err := node.Command(t.Context(), "describe", "pod", "-n", namespace, "unknown"); err != nil || !strings.Contains(out, "unknown since") {
		t.Errorf("describe pod, %v:\n%s\nwant text with %q", err, out, "unknown since")
	}
	if out, err := node.Command(t.Context(), "events", "--pod", namespace+"/unknown"); err != nil || !strings.Contains(out, "has not answered") {
		t.Errorf("events, %v:\n%s\nwant text with %q", err, out, "has not answered")
	}
	if !node.isReady(t.Context()) {
		t.Error("the node is not Ready since one pod hangs")
	}
	kill(t, "beside-unknown")
	await(t, "beside-unknown", "restarted", func(p *v1.Pod) bool { return livenode.Ready(p) && only(p).RestartCount == crashed.RestartCount+1 })

	hung.Lift()
	await(t, "unknown", "restarted, and known again", func(p *v1.Pod) bool {
		return unknown(p) == nil && livenode.Ready(p) && only(p).RestartCount == before.RestartCount+1
	})
	if out, err := node.Command(t.Context(), "events", "--types", "Lifecycle", "--pod", string(p.UID), "-o", "json"); err != nil || !strings.Contains(out, `"type":"ContainerDied"`) {
		t.Errorf("events, %v:\n%s\nwant text with %q", err, out, `"type":"ContainerDied"`)
	}
}
