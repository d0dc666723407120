package shadow

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/admission"
)

const (
	syncing     = enginev1.WorkerState_WORKER_STATE_SYNCING
	terminating = enginev1.WorkerState_WORKER_STATE_TERMINATING
	terminated  = enginev1.WorkerState_WORKER_STATE_TERMINATED

	runs   = lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING
	exited = lifecyclev1.ContainerState_CONTAINER_STATE_EXITED
)

// pod returns a side with a phase, a reason and a message.
func pod(state enginev1.WorkerState, phase v1.PodPhase, reason, message string) *side {
	return &side{state: state, pod: &v1.Pod{Status: v1.PodStatus{Phase: phase, Reason: reason, Message: message}}}
}

func running() *side { return pod(syncing, v1.PodRunning, "", "") }

// waits returns a side whose container waits for a reason.
func waits(reason string) *side {
	s := pod(syncing, v1.PodPending, "", "")
	s.pod.Status.ContainerStatuses = []v1.ContainerStatus{{
		Name: "main", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason}},
	}}
	return s
}

// observed returns an observation with containers, the newest first.
func observed(containers ...*lifecyclev1.Container) *lifecyclev1.PodStatus {
	return &lifecyclev1.PodStatus{
		Sandboxes:  []*lifecyclev1.Sandbox{{Id: "box", State: lifecyclev1.SandboxState_SANDBOX_STATE_READY}},
		Containers: containers,
	}
}

func container(id string, attempt uint32, state lifecyclev1.ContainerState) *lifecyclev1.Container {
	return &lifecyclev1.Container{Id: id, Name: "main", Attempt: attempt, State: state}
}

// planned returns a plan that has the intents now, and has had them.
func planned(now ...intent) plan {
	p := newPlans()
	p.set("u", now)
	return p.of("u")
}

// seen returns what has existed before the shadow, and after.
func seen(before *lifecyclev1.PodStatus, later ...*lifecyclev1.PodStatus) *existing {
	e := newExisting()
	e.see(before, true)
	for _, status := range later {
		e.see(status, false)
	}
	return e
}

func start(after string) intent {
	return intent{action: StartContainer, name: "main", object: after, text: "start main, restart count 1"}
}

func TestTheFirstDecisionThatDiffersIsFound(t *testing.T) {
	refusal := pod(syncing, v1.PodFailed, "OutOfcpu", admission.RejectedPrefix+"Node didn't have enough resource: cpu")
	first, second := container("a", 0, exited), container("b", 1, runs)
	for name, c := range map[string]struct {
		in   sides
		want []found
	}{
		"nothing":        {in: sides{}},
		"both run it":    {in: sides{shadow: running(), running: running()}},
		"both refuse it": {in: sides{shadow: refusal, running: refusal}},
		"only the shadow refuses it": {
			in: sides{shadow: refusal, running: running()},
			want: []found{{
				key: "admit", action: Admit, shadow: "refuse it: OutOfcpu: Node didn't have enough resource: cpu", running: "run it",
			}},
		},
		"they refuse it for different reasons": {
			in: sides{
				shadow:  refusal,
				running: pod(syncing, v1.PodFailed, "SysctlForbidden", admission.RejectedPrefix+"forbidden"),
			},
			want: []found{{
				key: "admit", action: Admit, shadow: "refuse it: OutOfcpu: Node didn't have enough resource: cpu",
				running: "refuse it: SysctlForbidden: forbidden",
			}},
		},
		"only the shadow preempts it": {
			in:   sides{shadow: pod(terminating, v1.PodFailed, reasonPreempting, ""), running: running()},
			want: []found{{key: "evict", action: Evict, shadow: "end it: Preempting", running: "run it"}},
		},
		"only the shadow ends it": {
			in:   sides{shadow: pod(terminating, v1.PodRunning, "", ""), running: running()},
			want: []found{{key: "end", action: EndPod, shadow: "end it, because no source names it", running: "run it"}},
		},
		"only the shadow has it": {
			in:   sides{shadow: running()},
			want: []found{{key: "end", action: EndPod, shadow: "run it", running: "does not have it"}},
		},
		"it has ended with another phase": {
			in:   sides{shadow: pod(terminated, v1.PodSucceeded, "", ""), running: pod(terminated, v1.PodFailed, "", "")},
			want: []found{{key: "status", action: Status, shadow: "phase=Succeeded", running: "phase=Failed"}},
		},
		"a sandbox that the shadow would not create": {
			in: sides{shadow: running(), running: running(), observed: observed(), existing: seen(nil, observed())},
			want: []found{{
				key: "sandbox//", action: CreateSandbox, shadow: "create no sandbox", running: "has created a sandbox, attempt 0",
			}},
		},
		"a sandbox that both create": {
			in: sides{
				shadow: running(), running: running(), observed: observed(), existing: seen(nil, observed()),
				plan: planned(intent{action: CreateSandbox}),
			},
		},
		"a sandbox of before": {
			in: sides{shadow: running(), running: running(), observed: observed(), existing: seen(observed())},
		},
		"a restart that the shadow would not make": {
			in: sides{
				shadow: running(), running: running(), observed: observed(second, first),
				existing: seen(observed(first), observed(second, first)),
			},
			want: []found{{
				key: "start/main/a/b", action: StartContainer, shadow: "not start main yet, or not at all",
				running: "has started it, attempt 1",
			}},
		},
		"a restart whose cause nobody has seen": {
			in: sides{
				shadow: running(), running: running(), observed: observed(second, first),
				existing: seen(observed(container("a", 0, runs)), observed(second, first)),
			},
		},
		"a restart that both make": {
			in: sides{
				shadow: running(), running: running(), observed: observed(second, first), plan: planned(start("a")),
				existing: seen(observed(first), observed(second, first)),
			},
		},
		"a restart for which the other waits longer": {
			in: sides{
				shadow: running(), running: waits(reasonCrashLoop), observed: observed(first), plan: planned(start("a")),
				existing: seen(observed(first)),
			},
			want: []found{{
				key: "start/main/a", action: StartContainer, shadow: "start main, restart count 1",
				running: "waits: CrashLoopBackOff",
			}},
		},
		"a pod that has come back with its UID after nothing was left of it": {
			in: sides{
				shadow: running(), running: running(), observed: observed(second), plan: planned(start("")),
				existing: seen(observed(first), observed(), observed(second)),
			},
		},
		"a start whose image is being pulled": {
			in: sides{
				shadow: waits("ContainerCreating"), running: waits("ContainerCreating"), observed: observed(),
				plan: planned(start("")), existing: seen(observed()),
			},
		},
		"a container that only the shadow kills": {
			in: sides{
				shadow: running(), running: running(), observed: observed(second), existing: seen(observed(second)),
				plan: planned(intent{action: KillContainer, name: "main", object: "b", text: "kill: changed"}),
			},
			want: []found{{key: "kill/main/b", action: KillContainer, shadow: "kill: changed", running: "keeps main"}},
		},
		"a container in its grace period": {
			in: sides{
				shadow: running(), running: running(), observed: observed(second), existing: seen(observed(second)),
				plan:  planned(intent{action: KillContainer, name: "main", object: "b", text: "kill: changed"}),
				kills: map[string]string{"main": "Container main definition changed, will be restarted"},
			},
		},
		"a container that only the other kills": {
			in: sides{
				shadow: running(), running: running(), observed: observed(second), existing: seen(observed(second)),
				kills: map[string]string{"main": "Container main definition changed, will be restarted"},
			},
			want: []found{{
				key: "told/main/Container main definition changed, will be restarted", action: KillContainer, shadow: "keep main",
				running: "kills: Container main definition changed, will be restarted",
			}},
		},
		"another status": {
			in: sides{shadow: running(), running: waits(reasonCrashLoop)},
			want: []found{{
				key: "status/main=,phase=Running/main=CrashLoopBackOff restarts 0,phase=Pending", action: Status,
				shadow: "main=, phase=Running", running: "main=CrashLoopBackOff restarts 0, phase=Pending",
			}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if c.in.existing == nil {
				c.in.existing = newExisting()
			}
			if diff := cmp.Diff(c.want, differ(c.in), cmp.AllowUnexported(found{})); diff != "" {
				t.Errorf("differences (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTheProbesAreThoseOfTheStatuses(t *testing.T) {
	a := newAnswers()
	p := &v1.Pod{Status: v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{
		{ContainerID: "containerd://x", Ready: true, Started: ptr.To(true)}, {ContainerID: "containerd://y"},
	}}}
	p.UID = "u"
	a.learn(p)
	if !a.Ready("x") || !a.Started("x") || a.Ready("y") || a.Started("y") || a.Ready("z") {
		t.Error("the results are not those of the status")
	}
	a.drop("u")
	if a.Ready("x") {
		t.Error("a container of a pod that is gone is ready")
	}
}

func TestOnlyDecisionsThatTheShadowCouldMakeAreOwn(t *testing.T) {
	for message, want := range map[string]bool{
		"Container main definition changed, will be restarted": true,
		"Container main failed liveness probe":                 false,
		"Stopping container main":                              false,
		"FailedPostStartHook":                                  false,
	} {
		if got := isOwnDecision(message); got != want {
			t.Errorf("%q: %t, want %t", message, got, want)
		}
	}
	if got := containerOf("spec.containers{main}"); got != "main" {
		t.Errorf("the container is %q, want main", got)
	}
}
