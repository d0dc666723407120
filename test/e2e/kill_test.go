package e2e

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/layout"
)

// TestNoPodNoticesAKill kills each process, then all four at once, then the runtime, while ten pods run.
func TestNoPodNoticesAKill(t *testing.T) {
	const count = 10
	name := func(i int) string { return fmt.Sprintf("steady%d", i) }
	before := map[string]string{}
	for i := range count {
		place(t, name(i)+".yaml", manifest(name(i), 1, "sleep"))
	}
	for i := range count {
		before[name(i)] = fmt.Sprint(containerIDs(await(t, name(i), "Ready", ready)))
	}
	var all []string
	for _, s := range layout.Services() {
		all = append(all, string(s))
	}
	victims := map[string][]string{"all four": all, "containerd": {"containerd"}}
	for _, s := range all {
		victims[s] = []string{s}
	}
	for title, names := range victims {
		t.Run(title, func(t *testing.T) {
			watch := watchReady(t, "steady", count)
			old := map[string]int{}
			for _, n := range names {
				old[n] = pid(t, n)
			}
			kill(t, names...)
			// A change while the process is down is applied when it returns.
			file := "meanwhile.yaml"
			pod := "meanwhile-" + strings.ReplaceAll(title, " ", "-")
			place(t, file, manifest(pod, 1, "sleep"))
			for _, n := range names {
				awaitNewPID(t, n, old[n])
			}
			await(t, pod, "Ready", ready)
			takeAway(t, file)
			awaitGone(t, pod)
			for _, problem := range watch() {
				t.Error(problem)
			}
			for i := range count {
				p := await(t, name(i), "Ready", ready)
				if got := fmt.Sprint(containerIDs(p)); got != before[name(i)] {
					t.Errorf("pod %s: containers went from %s to %s", name(i), before[name(i)], got)
				}
				if restarts := p.Status.ContainerStatuses[0].RestartCount; restarts != 0 {
					t.Errorf("pod %s counts %d restarts, want 0", name(i), restarts)
				}
			}
		})
	}
}

// watchReady inspects the pods whose names have a prefix until the returned function is called. It returns the errors:
// a pod that was not Ready, or that was missing in an answer. A missing answer is no error, because syncloop may be
// down.
func watchReady(t *testing.T, prefix string, count int) func() []string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	problems := map[string]bool{}
	var done sync.WaitGroup
	done.Go(func() {
		for ctx.Err() == nil {
			items, err := node.Pods(ctx)
			if err == nil {
				check(items, prefix, count, problems)
			}
			select {
			case <-ctx.Done():
			case <-time.After(interval):
			}
		}
	})
	return func() []string {
		cancel()
		done.Wait()
		var list []string
		for p := range maps.Keys(problems) {
			list = append(list, p)
		}
		return list
	}
}

func check(items []v1.Pod, prefix string, count int, problems map[string]bool) {
	seen := 0
	for i := range items {
		if !strings.HasPrefix(items[i].Name, prefix) {
			continue
		}
		seen++
		if !ready(&items[i]) {
			problems[fmt.Sprintf("pod %s was not Ready for a moment: %s", items[i].Name, describe(&items[i]))] = true
		}
	}
	if seen != count {
		problems[fmt.Sprintf("an answer had %d of %d pods", seen, count)] = true
	}
}

// awaitRestart waits until a killed process has been replaced.
func awaitRestart(t *testing.T, name string) {
	t.Helper()
	awaitThat(t, name+" is back", func() bool {
		_, err := node.Pods(t.Context())
		return err == nil
	})
}

func awaitNewPID(t *testing.T, name string, old int) {
	t.Helper()
	awaitThat(t, "a new process "+name, func() bool {
		id, err := node.PID(name)
		return err == nil && id != old
	})
}

// TestAPodHasTheRestOfItsGracePeriodAfterAKill: a program that ignores SIGTERM has its whole grace period, once,
// although syncloop is killed during it.
func TestAPodHasTheRestOfItsGracePeriodAfterAKill(t *testing.T) {
	const grace, half = 14, 7 * time.Second
	place(t, "stubborn.yaml", manifest("stubborn", grace, "sleep", "-ignore-term"))
	await(t, "stubborn", "Ready", ready)
	begun := time.Now()
	takeAway(t, "stubborn.yaml")
	awaitThat(t, "half of the grace period has passed", func() bool { return time.Since(begun) > half })
	kill(t, "syncloop")
	awaitGone(t, "stubborn")
	// A second grace period would make it 21 s, and the termination of an unknown pod 8 s.
	if took := time.Since(begun).Round(time.Second); took < grace*time.Second || took >= grace*time.Second+half {
		t.Errorf("the pod was gone after %v, want %d s", took, grace)
	}
}

// TestAPodThatComesBackWhileItEndsContinuesItsRestartCount removes a manifest and puts it back while the pod ends, and
// kills syncloop meanwhile.
func TestAPodThatComesBackWhileItEndsContinuesItsRestartCount(t *testing.T) {
	pod := manifest("returning", 8, "sleep", "-ignore-term")
	place(t, "returning.yaml", pod)
	first := await(t, "returning", "Ready", ready)
	takeAway(t, "returning.yaml")
	place(t, "returning.yaml", pod)
	awaitThat(t, "it ends, and its next life waits", func() bool {
		w := workerOf(t, "returning")
		return w.TerminateBy != nil && w.Pending
	})
	old := pid(t, "syncloop")
	kill(t, "syncloop")
	awaitNewPID(t, "syncloop", old)
	next := await(t, "returning", "Ready in another container", func(p *v1.Pod) bool {
		return p != nil && ready(p) && bare(p) != bare(first)
	})
	if status := next.Status.ContainerStatuses[0]; next.UID != first.UID || status.RestartCount != 1 ||
		status.LastTerminationState.Terminated == nil || status.LastTerminationState.Terminated.ExitCode != 137 {
		t.Errorf("the pod that came back:\n%s\nwant the same UID, restart count 1 and a last state with exit code 137", describe(next))
	}
	takeAway(t, "returning.yaml")
	awaitGone(t, "returning")
}
