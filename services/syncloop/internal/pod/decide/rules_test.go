package decide_test

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/decide"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podviewtest"
)

// world is a fake runtime with one pod. It executes actions and generates random events.
type world struct {
	t      *rapid.T
	pod    *v1.Pod
	status *lifecyclev1.PodStatus
	now    time.Time
	made   int
}

func newWorld(t *rapid.T) *world {
	containers := ""
	for i := range rapid.IntRange(0, 3).Draw(t, "inits") {
		containers += fmt.Sprintf(" %s:i%d", rapid.SampledFrom([]string{"init", "sidecar"}).Draw(t, "kind"), i)
	}
	for i := range rapid.IntRange(1, 3).Draw(t, "ordinary") {
		containers += fmt.Sprintf(" c%d", i)
	}
	policy := rapid.SampledFrom([]v1.RestartPolicy{
		v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever,
	}).Draw(t, "policy")
	pod := podviewtest.Pod(policy, containers)
	if own := rapid.SampledFrom([]v1.ContainerRestartPolicy{"", v1.ContainerRestartPolicyNever, v1.ContainerRestartPolicyOnFailure}).Draw(t, "own"); own != "" {
		pod.Spec.Containers[0].RestartPolicy = &own
		pod.Spec.Containers[0].RestartPolicyRules = []v1.ContainerRestartRule{
			rule(rapid.SampledFrom([]string{"restart in 1", "all in 1"}).Draw(t, "rule")),
		}
	}
	return &world{t: t, pod: pod, status: &lifecyclev1.PodStatus{Uid: "u"}, now: now}
}

func (w *world) decide() decide.Actions {
	return decide.Pod(w.pod, w.status, decide.Facts{Now: w.now})
}

// act executes actions and checks each start against the rules.
func (w *world) act(a decide.Actions) {
	if a.StopAll {
		for _, c := range w.status.Containers {
			w.end(c, 137)
		}
		for _, s := range w.status.Sandboxes {
			s.State = lifecyclev1.SandboxState_SANDBOX_STATE_NOT_READY
		}
	}
	for _, k := range a.Kill {
		for _, c := range w.status.Containers {
			if c.Id == k.ContainerID {
				w.end(c, 137)
			}
		}
	}
	w.status.Containers = slices.DeleteFunc(w.status.Containers, func(c *lifecyclev1.Container) bool {
		if slices.Contains(a.Reset, c.Id) && podview.Alive(c) {
			w.t.Fatalf("%s is removed while it runs", c.Name)
		}
		return slices.Contains(a.Reset, c.Id)
	})
	sandbox := a.SandboxID
	if a.CreateSandbox {
		w.made++
		sandbox = fmt.Sprintf("s%d", w.made)
		w.status.Sandboxes = slices.Insert(w.status.Sandboxes, 0, &lifecyclev1.Sandbox{
			Id: sandbox, Attempt: a.Attempt, State: lifecyclev1.SandboxState_SANDBOX_STATE_READY,
			CreatedAt: timestamppb.New(w.now),
			Ips:       []string{"10.0.0.9"},
		})
	}
	for _, s := range a.Start {
		w.checkStart(s, sandbox, a.Kill)
		_, annotations, err := podlabels.Container(w.pod, s.Container, s.Restart, "")
		if err != nil {
			w.t.Fatal(err)
		}
		w.made++
		w.status.Containers = slices.Insert(w.status.Containers, 0, &lifecyclev1.Container{
			Id: fmt.Sprintf("c%d", w.made), SandboxId: sandbox, Name: s.Container.Name, Attempt: uint32(s.Restart.Count),
			State: lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING, Annotations: annotations,
			CreatedAt: timestamppb.New(w.now), StartedAt: timestamppb.New(w.now),
		})
	}
}

func (w *world) checkStart(s decide.Start, sandbox string, killed []decide.Kill) {
	before := podview.Latest(w.status, s.Container.Name)
	if s.Restart.Cause == "" || before != nil && s.Restart.Cause == decide.CauseFirst {
		w.t.Fatalf("%s is started with the cause %q, and there was %v", s.Container.Name, s.Restart.Cause, before)
	}
	if podview.Running(before) {
		w.t.Fatalf("%s is started beside itself", s.Container.Name)
	}
	if before != nil && s.Restart.Count != podlabels.RestartOf(before.Annotations, 0).Count+1 {
		w.t.Fatalf("%s: restart count %d after %v", s.Container.Name, s.Restart.Count, before.Annotations)
	}
	changed := slices.ContainsFunc(killed, func(k decide.Kill) bool {
		return k.Name == s.Container.Name && k.Why == decide.SpecChanged
	})
	if s.Kind == decide.Ordinary && podview.Exited(before) && !changed &&
		!decide.Restarts(w.pod, s.Container, decide.Ending{Code: before.ExitCode}) &&
		!podlabels.Changed(s.Container, before.Annotations) {
		w.t.Fatalf("%s is restarted after exit code %d under policy %s", s.Container.Name, before.ExitCode, w.pod.Spec.RestartPolicy)
	}
	// All earlier init containers have completed in this sandbox.
	for i := range w.pod.Spec.InitContainers {
		c := &w.pod.Spec.InitContainers[i]
		if c.Name == s.Container.Name {
			return
		}
		got := podview.LatestIn(w.status, c.Name, sandbox)
		// A sidecar may have exited after its start.
		if got == nil || (!podset.IsSidecar(c) && (!podview.Exited(got) || got.ExitCode != 0)) {
			w.t.Fatalf("%s starts before %s is done: %v", s.Container.Name, c.Name, got)
		}
	}
}

func (w *world) end(c *lifecyclev1.Container, code int32) {
	if podview.Running(c) {
		c.State, c.ExitCode, c.FinishedAt = lifecyclev1.ContainerState_CONTAINER_STATE_EXITED, code, timestamppb.New(w.now)
	}
}

// happen generates one random event.
func (w *world) happen() {
	w.now = w.now.Add(time.Duration(rapid.IntRange(0, 900).Draw(w.t, "seconds")) * time.Second)
	switch rapid.SampledFrom([]string{"exit", "exit", "exit", "sandbox dies", "nothing", "spec"}).Draw(w.t, "event") {
	case "exit":
		if len(w.status.Containers) > 0 {
			w.end(rapid.SampledFrom(w.status.Containers).Draw(w.t, "container"), rapid.SampledFrom([]int32{0, 0, 1}).Draw(w.t, "code"))
		}
	case "sandbox dies":
		for _, s := range w.status.Sandboxes {
			s.State = lifecyclev1.SandboxState_SANDBOX_STATE_NOT_READY
		}
		for _, c := range w.status.Containers {
			w.end(c, 255)
		}
	case "spec":
		i := rapid.IntRange(0, len(w.pod.Spec.Containers)-1).Draw(w.t, "index")
		w.pod.Spec.Containers[i].Image += "x"
	}
}

func TestRulesHoldWhateverHappens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			before, beforePod := proto.Clone(w.status), w.pod.DeepCopy()
			actions := w.decide()
			again := decide.Pod(beforePod, w.status, decide.Facts{Now: w.now})
			if !proto.Equal(before, w.status) || format(actions) != format(again) {
				t.Fatal("the decision has changed its input, or is not the same twice")
			}
			w.act(actions)
			w.happen()
		}
	})
}

// TestALifeThatContinuesRunsAllItsContainers ends a pod with random records, and starts its next life with them.
func TestALifeThatContinuesRunsAllItsContainers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		for range rapid.IntRange(1, 10).Draw(t, "steps") {
			w.act(w.decide())
			w.happen()
		}
		w.act(decide.Actions{StopAll: true})
		if !decide.Continues(w.pod, w.status) {
			return
		}
		w.now = w.now.Add(decide.DefaultBackoffMax)
		for range 2 * (len(w.pod.Spec.InitContainers) + 1) {
			w.act(w.decide())
			for i := range w.pod.Spec.InitContainers {
				if c := &w.pod.Spec.InitContainers[i]; !podset.IsSidecar(c) {
					w.end(cmp.Or(podview.Latest(w.status, c.Name), &lifecyclev1.Container{}), 0)
				}
			}
		}
		for i := range w.pod.Spec.Containers {
			name := w.pod.Spec.Containers[i].Name
			if latest := podview.Latest(w.status, name); !podview.Running(latest) {
				t.Fatalf("%s does not run in the next life: %v", name, latest)
			}
		}
	})
}

func TestTheRuntimeComesToMatch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		for range rapid.IntRange(0, 10).Draw(t, "steps") {
			w.act(w.decide())
			w.happen()
		}
		// From here on, init containers succeed and nothing else happens. One turn per container is enough, and then no
		// action is left.
		for range 2 * (len(w.pod.Spec.InitContainers) + len(w.pod.Spec.Containers) + 2) {
			w.now = w.now.Add(10 * time.Minute)
			w.act(w.decide())
			for _, c := range w.status.Containers {
				if decide.KindOf(w.pod, c.Name) == decide.Init {
					w.end(c, 0)
				}
			}
		}
		if a := w.decide(); !a.Nothing() || len(a.Wait) > 0 {
			t.Fatalf("still to be done: %s", format(a))
		}
	})
}

func TestBackoffNeverShrinksWithinARow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		step := rapid.IntRange(-5, 1000).Draw(t, "step")
		longest := time.Duration(rapid.IntRange(1, 600).Draw(t, "longest")) * time.Second
		a, b := decide.Backoff(step, longest), decide.Backoff(step+1, longest)
		if a > b || b > longest || a < 0 {
			t.Fatalf("step %d: %s, then %s, of at most %s", step, a, b, longest)
		}
	})
}
