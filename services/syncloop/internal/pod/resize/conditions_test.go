package resize_test

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podtest"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resize"
)

func TestTheConditionsOfAResize(t *testing.T) {
	at := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	var c resize.Conditions
	wait := func(reason, message string, generation int64, wantNews bool) {
		t.Helper()
		at = at.Add(time.Second)
		next, news := c.Wait(reason, message, generation, at)
		if news != wantNews || next.Pending.Message != message || next.Pending.Generation != generation {
			t.Errorf("waiting for %s is %+v, news %v", message, next.Pending, news)
		}
		c = next
	}
	wait(v1.PodReasonDeferred, "no room", 2, true)
	since := c.Pending.Since
	wait(v1.PodReasonDeferred, "still no room", 2, false)
	wait(v1.PodReasonDeferred, "no room for this either", 3, true)
	if !c.Pending.Since.Equal(since) {
		t.Error("it is deferred since another time")
	}
	wait(v1.PodReasonInfeasible, "never", 4, true)
	if !c.Pending.Since.Equal(at) {
		t.Error("it is infeasible since another time")
	}

	c = c.Accept(5, at)
	if c.Pending != nil || c.InProgress == nil || c.InProgress.Generation != 5 || c.InProgress.Reason != "" {
		t.Errorf("accepted is %+v", c)
	}
	fail := func(message string, wantNews bool) {
		t.Helper()
		next, news := c.Fail(message, 9, at)
		if news != wantNews || next.InProgress.Reason != v1.PodReasonError || next.InProgress.Message != message ||
			next.InProgress.Generation != 5 {
			t.Errorf("failed is %+v, news %v", next.InProgress, news)
		}
		c = next
	}
	fail("uses 1", true)
	fail("uses 2", false)
	if c = c.Continue(9, at); c.InProgress.Reason != v1.PodReasonError || c.InProgress.Message != "uses 2" {
		t.Errorf("it goes on as %+v, want Reason %v and Message %q", c.InProgress, v1.PodReasonError, "uses 2")
	}
	next, generation, was := c.Done()
	if !was || generation != 5 || next.InProgress != nil {
		t.Errorf("done is %+v of %d, %v", next, generation, was)
	}
	if _, _, was := next.Done(); was {
		t.Error("it is done twice")
	}
	if c = next.Continue(6, at); c.InProgress.Generation != 6 {
		t.Errorf("it goes on as %+v, want Generation 6", c.InProgress)
	}
	if c, news := (resize.Conditions{}).Fail("x", 7, at); !news || c.InProgress.Generation != 7 {
		t.Errorf("failed is %+v", c.InProgress)
	}
	waiting, _ := resize.Conditions{}.Wait(v1.PodReasonDeferred, "x", 1, at)
	if waiting.Settle() != (resize.Conditions{}) {
		t.Error("it waits when nothing is pending")
	}
}

// TestTheSummaryIsTheKubelets compares the summary with the kubelet's, byte by byte.
func TestTheSummaryIsTheKubelets(t *testing.T) {
	pod := podtest.Pod("u", named("a", list("cpu", "1500m"), list("memory", "1Gi")))
	pod.Spec.InitContainers = []v1.Container{named("i", nil, nil)}
	want := `{"initContainers":[{"name":"i","resources":{}}],` +
		`"containers":[{"name":"a","resources":{"limits":{"memory":"1Gi"},"requests":{"cpu":"1500m"}}}],"generation":3,"error":"no"}`
	if got := resize.Summary(pod, 3, "no"); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := resize.Summary(pod, 3, ""); strings.Contains(got, "error") {
		t.Errorf("without an error it says %s", got)
	}
}
