package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/test/livenode"
)

// TestResultsOfProbesOutliveAKill kills syncloop, all four, and the runtime, which runs the commands of probes, under pods whose
// probes have come to something: no pod's Ready changes that its probe has not changed, and what has started has started.
func TestResultsOfProbesOutliveAKill(t *testing.T) {
	const steady, unready, starting = "outlives-steady", "outlives-unready", "outlives-starting"
	state := newChecks(t, steady)
	placeOutliving(t, state, steady, unready, starting)
	before := await(t, steady, "Ready", ready)
	state.awaitCalls(t, "unready", 2, time.Time{})
	state.awaitCalls(t, "starting", 2, time.Time{})
	started := map[string]int{"start-exec": len(state.calls(t, "start-exec")), "start-http": len(state.calls(t, "start-http"))}

	var all []string
	for _, s := range layout.Services() {
		all = append(all, string(s))
	}
	for _, c := range []struct {
		title string
		names []string
	}{{"syncloop", []string{"syncloop"}}, {"all four", all}, {"containerd", []string{"containerd"}}} {
		t.Run(c.title, func(t *testing.T) {
			stream := watchStream(t)
			answers := watchReady(t, steady, 1)
			old := map[string]int{}
			for _, n := range c.names {
				old[n] = pid(t, n)
			}
			killed := time.Now()
			kill(t, c.names...)
			for _, n := range c.names {
				awaitNewPID(t, n, old[n])
			}
			for _, check := range []string{"ready-exec", "ready-http", "live-exec", "live-http", "unready"} {
				state.awaitCalls(t, check, 3, killed)
			}
			for _, problem := range answers() {
				t.Error(problem)
			}
			seen := stream()
			if len(seen[steady]) == 0 || len(seen[unready]) == 0 || len(seen[starting]) == 0 {
				t.Errorf("the stream had not every pod: %v", seen)
			}
			for _, wrong := range []struct {
				pod   string
				ready bool
			}{{steady, false}, {unready, true}, {starting, true}} {
				if seen[wrong.pod][wrong.ready] {
					t.Errorf("the stream had pod %s with Ready=%v for a moment", wrong.pod, wrong.ready)
				}
			}
			for check, count := range started {
				if now := len(state.calls(t, check)); now != count {
					t.Errorf("startup probe %s, which had passed, was called %d times more", check, now-count)
				}
			}
		})
	}
	after := await(t, steady, "Ready", ready)
	if was, is := fmt.Sprint(containerIDs(before)), fmt.Sprint(containerIDs(after)); was != is {
		t.Errorf("containers went from %s to %s", was, is)
	}
	if n := len(state.calls(t, "held-back")); n != 0 {
		t.Errorf("a probe was called %d times before its container had started", n)
	}

	// What changes while syncloop is dead is seen when it is back.
	kill(t, "syncloop")
	state.say(t, "fail", "ready-exec")
	state.say(t, "ok", "unready", "starting")
	await(t, steady, "not Ready, for its probe has failed meanwhile", func(p *v1.Pod) bool { return p != nil && !ready(p) })
	await(t, unready, "Ready, for its probe has passed meanwhile", ready)
	await(t, starting, "Ready, for its probe has passed meanwhile", ready)
}

// placeOutliving starts a pod that is Ready by all probes of two kinds of calls, one whose readiness probe fails, and one whose
// startup probe has not passed.
func placeOutliving(t *testing.T, state checks, steady, unready, starting string) {
	t.Helper()
	command, web := state.server("command", 8000), state.server("web", 8010)
	command.StartupProbe, web.StartupProbe = every(byExec("start-exec")), every(byHTTP("start-http", 8010))
	command.LivenessProbe, web.LivenessProbe = every(byExec("live-exec")), every(byHTTP("live-http", 8010))
	command.ReadinessProbe, web.ReadinessProbe = every(byExec("ready-exec")), every(byHTTP("ready-http", 8010))
	placePod(t, state.pod(steady, command, web))

	failing := state.server("main", 8000)
	failing.ReadinessProbe = every(byHTTP("unready", 8000))
	state.say(t, "fail", "unready", "starting")
	placePod(t, state.pod(unready, failing))

	slow := state.server("main", 8000)
	slow.StartupProbe = every(byHTTP("starting", 8000), func(p *v1.Probe) { p.FailureThreshold = 1000 })
	slow.LivenessProbe = every(byHTTP("held-back", 8000))
	placePod(t, state.pod(starting, slow))
}

// watchStream follows every change of every pod, through restarts of syncloop, until the returned function is called, which
// gives by the name in a pod's manifest what its Ready was at any moment.
func watchStream(t *testing.T) func() map[string]map[bool]bool {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, filepath.Join(livenode.Bin(), "quartet"), "get", "pods", "-n", "e2e", "-w", "-o", "json",
		"--state-dir", node.Layout.StateDir())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	seen := map[string]map[bool]bool{}
	begun, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		decoder := json.NewDecoder(out)
		for begun := sync.OnceFunc(func() { close(begun) }); ; begun() {
			var p v1.Pod
			if decoder.Decode(&p) != nil {
				return // it was stopped
			}
			name := strings.TrimSuffix(p.Name, "-"+p.Spec.NodeName)
			if seen[name] == nil {
				seen[name] = map[bool]bool{}
			}
			seen[name][ready(&p)] = true
		}
	}()
	select {
	case <-begun:
	case <-ended:
	}
	return func() map[string]map[bool]bool {
		cancel()
		<-ended
		_ = cmd.Wait() // it was stopped
		return seen
	}
}
