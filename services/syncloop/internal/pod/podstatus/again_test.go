package podstatus_test

import (
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/decide"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podstatus"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podviewtest"
)

func TestAPodThatBeginsAgainSaysSo(t *testing.T) {
	never := v1.ContainerRestartPolicyNever
	pod := podviewtest.Pod(v1.RestartPolicyNever, "a b")
	pod.Spec.Containers[0].RestartPolicy = &never
	pod.Spec.Containers[0].RestartPolicyRules = []v1.ContainerRestartRule{{
		Action:    v1.ContainerRestartRuleActionRestartAllContainers,
		ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}},
	}}
	for observed, want := range map[string]v1.ConditionStatus{
		"s0:ready a@s0:running b@s0:running":   v1.ConditionFalse,
		"s0:ready a@s0:exited=1 b@s0:running":  v1.ConditionFalse,
		"s0:ready a@s0:exited=42 b@s0:running": v1.ConditionTrue,
		"s0:ready":                             v1.ConditionFalse,
	} {
		status := podstatus.Generate(pod, podviewtest.Status(pod, observed), podstatus.Inputs{Now: now})
		at := slices.IndexFunc(status.Conditions, func(c v1.PodCondition) bool {
			return c.Type == v1.AllContainersRestarting
		})
		if at < 0 || status.Conditions[at].Status != want || status.Phase == v1.PodFailed {
			t.Errorf("%s: phase %s, conditions %+v, want %s", observed, status.Phase, status.Conditions, want)
		}
	}
}

// TestAPodThatBeginsAgainDoesNotEnd follows a pod whose containers are all restarted because of the end of a sidecar,
// and whose ordinary container would not be restarted alone. Its records are removed before it is reached again.
func TestAPodThatBeginsAgainDoesNotEnd(t *testing.T) {
	pod := podviewtest.Pod(v1.RestartPolicyNever, "init:i sidecar:s a")
	pod.Spec.InitContainers[1].RestartPolicyRules = []v1.ContainerRestartRule{{
		Action:    v1.ContainerRestartRuleActionRestartAllContainers,
		ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}},
	}}
	const removed = "waiting(RestartingAllContainers),rc=1,last=RestartingAllContainers(137)"
	ended := "Running +sandbox +initialized i=Completed(0),ready s=Error(42) a=Error(137)"
	for _, histories := range [][][2]string{
		{
			{"i@s0:exited=0 s@s0:exited=42 a@s0:exited=137", ended},
			{"", "Running +sandbox +initialized i=" + removed + " s=" + removed + " a=" + removed},
			{"i@s0:running,rc=1", "Pending +sandbox +initialized i=running,rc=1,last=RestartingAllContainers(137) "},
		},
		{
			{"i@s0:exited=0 s@s0:exited=42 a@s0:exited=137", ended},
			{"i@s0:exited=0,rc=1", "Running +sandbox +initialized i=Completed(0),ready,rc=1 s=" + removed + " a=" + removed},
			{"i@s0:exited=0,rc=1 s@s0:running,rc=1", "Running +sandbox +initialized i=Completed(0),ready,rc=1"},
			{
				"i@s0:exited=0,rc=1 s@s0:running,rc=1 a@s0:running,rc=1",
				"Running +sandbox +initialized +ready +containers i=Completed(0),ready,rc=1",
			},
			{"i@s0:exited=0,rc=1 s@s0:exited=0,rc=1 a@s0:exited=1,rc=1", "Failed +sandbox"},
		},
		{ // nothing was seen between the running pod and the init container that has ended again
			{"i@s0:exited=0,rc=1", "Running +sandbox +initialized i=Completed(0),ready,rc=1 s=" + removed + " a=" + removed},
		},
		{ // the init container, which is not restarted, fails after all
			{"i@s0:exited=3,rc=1", "Failed +sandbox +initialized i=Error(3),rc=1"},
		},
	} {
		previous := podstatus.Generate(pod,
			podviewtest.Status(pod, "s0:ready i@s0:exited=0 s@s0:running a@s0:running"), podstatus.Inputs{Now: now})
		for _, step := range histories {
			status := podviewtest.Status(pod, "s0:ready "+step[0])
			for _, c := range status.GetContainers() {
				if c.GetAttempt() > 0 {
					c.Annotations[podlabels.StartCause] = decide.CauseAll
				}
			}
			previous = podstatus.Generate(pod, status, podstatus.Inputs{Now: now, Previous: previous})
			if got := format(previous); !strings.HasPrefix(got, step[1]) {
				t.Fatalf("%s:\n got %s\nwant %s", step[0], got, step[1])
			}
		}
	}
}
