package e2e

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// seen is an event of quartet events.
type seen struct {
	Kind, Type, PodUID, Container, Reason, Message, TraceID string
	Count                                                   int32
	// Time is the time of the last occurrence, and FirstTime that of the first one of several.
	Time      time.Time
	FirstTime *time.Time
}

// events returns the events of a pod that quartet events prints.
func events(t *testing.T, name string, flags ...string) []seen {
	t.Helper()
	return shown(t, append([]string{"e2e/" + name}, flags...)...)
}

// shown returns the events that quartet events prints with some flags.
func shown(t *testing.T, flags ...string) []seen {
	t.Helper()
	var all []seen
	out := quartet(t, append([]string{"events", "-o", "json"}, flags...)...)
	for decoder := json.NewDecoder(strings.NewReader(out)); decoder.More(); {
		var e seen
		if err := decoder.Decode(&e); err != nil {
			t.Fatalf("%v in\n%s", err, out)
		}
		all = append(all, e)
	}
	return all
}

// worker is a worker of quartet get workers.
type worker struct {
	State, WaitsFor, LastError string
	Pending                    bool
	NextSyncAt, TerminateBy    *time.Time
	Phases                     []struct{ Phase, Container string }
}

func workerOf(t *testing.T, name string) worker {
	t.Helper()
	var list struct{ Workers []worker }
	out := quartet(t, "get", "workers", "e2e/"+name, "-o", "json")
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list.Workers) != 1 {
		t.Fatalf("%v, %d workers in\n%s\nwant 1", err, len(list.Workers), out)
	}
	return list.Workers[0]
}

// TestEventsOfTheNodeAreShown checks that the events of all services are shown in chronological order.
func TestEventsOfTheNodeAreShown(t *testing.T) {
	const ofNodeStatus, ofSyncLoop = "Starting", "NodeAllocatableEnforced"
	var all []seen
	awaitThat(t, "what nodestatus and syncloop tell of the node is shown", func() bool {
		all = shown(t, "--types", "Node")
		has := func(reason string) bool {
			return slices.ContainsFunc(all, func(e seen) bool { return e.Kind == "Node" && e.Reason == reason })
		}
		return has(ofNodeStatus) && has(ofSyncLoop)
	})
	if !slices.IsSortedFunc(all, func(x, y seen) int { return x.Time.Compare(y.Time) }) {
		t.Errorf("these are in no order: %+v", all)
	}
}

func TestThatACommandIsMissingIsInDescriptionAndEvents(t *testing.T) {
	place(t, "missing.yaml", strings.Replace(manifest("missing", 1), "args: null", "command: [/no/such/command]", 1))
	await(t, "missing", "known", func(p *v1.Pod) bool { return p != nil })
	var failed seen
	awaitThat(t, "an event says that the command is missing", func() bool {
		all := events(t, "missing", "--types", "Warning")
		at := slices.IndexFunc(all, func(e seen) bool { return e.Reason == "Failed" })
		if at >= 0 {
			failed = all[at]
		}
		return at >= 0
	})
	if failed.Kind != "Pod" || failed.Container != "main" || !strings.HasPrefix(failed.Message, "Error: ") ||
		!strings.Contains(failed.Message, "/no/such/command") || failed.TraceID == "" {
		t.Errorf("the event is %+v", failed)
	}
	out := quartet(t, "describe", "pod", "e2e/missing")
	for _, want := range []string{"/no/such/command", "Warning  Failed", "Normal   Created", "State:          Waiting"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in the description:\n%s", want, out)
		}
	}
}

func TestACrashLoopSaysWhenItIsTriedAgain(t *testing.T) {
	place(t, "looping.yaml", manifest("looping", 1, "crash", "-after", "0s", "-code", "3"))
	await(t, "looping", "in its back-off", func(p *v1.Pod) bool {
		return p != nil && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting != nil &&
			p.Status.ContainerStatuses[0].State.Waiting.Reason == "CrashLoopBackOff"
	})
	var w worker
	awaitThat(t, "the worker waits for the back-off", func() bool {
		w = workerOf(t, "looping")
		return w.WaitsFor == "main: CrashLoopBackOff" && w.NextSyncAt != nil
	})
	if left := time.Until(*w.NextSyncAt); left <= -30*time.Second || left > time.Minute || w.LastError != "" {
		t.Errorf("the next try is in %v, the worker is %+v", left, w)
	}
	if !slices.ContainsFunc(events(t, "looping"), func(e seen) bool {
		return e.Type == "Warning" && e.Reason == "BackOff" && strings.HasPrefix(e.Message, "Back-off restarting failed container main in pod looping-")
	}) {
		t.Errorf("no event says that the restart is held back: %+v", events(t, "looping"))
	}
	if !slices.ContainsFunc(events(t, "looping", "--types", "Lifecycle"), func(e seen) bool {
		return e.Kind == "Lifecycle" && e.Type == "ContainerDied" && e.Message == "exit code 3"
	}) {
		t.Error("no event has the exit code")
	}
	out := quartet(t, "describe", "pod", "e2e/looping")
	for _, want := range []string{"Reason:       CrashLoopBackOff", "Exit Code:    3", "Waits For:   main: CrashLoopBackOff", "Warning  BackOff"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in the description:\n%s", want, out)
		}
	}
}

func TestAWorkerHasThePhasesOfAStartAndTheDeadlineOfAnEnd(t *testing.T) {
	place(t, "stubborn.yaml", manifest("stubborn", 5, "sleep", "-ignore-term"))
	await(t, "stubborn", "Ready", ready)
	var phases []string
	for _, p := range workerOf(t, "stubborn").Phases {
		phases = append(phases, strings.TrimSuffix(p.Phase+"/"+p.Container, "/"))
	}
	slices.Sort(phases) // two may end at the same time
	want := []string{"create/main", "dispatch", "image/main", "observe", "ready", "sandbox", "start/main", "wait"}
	if !slices.Equal(phases, want) {
		t.Errorf("phases %v, want %v", phases, want)
	}
	ended := time.Now()
	takeAway(t, "stubborn.yaml")
	awaitThat(t, "it is being stopped", func() bool { return workerOf(t, "stubborn").TerminateBy != nil })
	w := workerOf(t, "stubborn")
	if w.State != "WORKER_STATE_TERMINATING" || w.TerminateBy == nil {
		t.Fatalf("the worker is %+v", w)
	}
	if given := w.TerminateBy.Sub(ended); given < 4*time.Second || given > 25*time.Second {
		t.Errorf("it has to stop %v after its manifest was taken away, want 5 s", given)
	}
	awaitGone(t, "stubborn")
}
