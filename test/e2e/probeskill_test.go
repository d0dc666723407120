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

// The pods during the kills: one that is Ready by all probes of two handler types, one whose readiness probe fails, one
// whose startup probe has not succeeded, and one that is killed because of its liveness probe.
const steady, unready, starting, doomed = "outlives-steady", "outlives-unready", "outlives-starting", "outlives-doomed"

// TestResultsOfProbesOutliveAKill kills syncloop, all four processes, and the runtime, which runs the commands of
// probes, while probes have results: Ready changes only when the probe's result changes, and a started container stays
// started.
func TestResultsOfProbesOutliveAKill(t *testing.T) {
	state := newChecks(t, "outlives")
	placeOutliving(t, state)
	before := await(t, steady, "Ready", ready)
	state.awaitCalls(t, "unready", 2, time.Time{})
	state.awaitCalls(t, "starting", 2, time.Time{})
	var all []string
	for _, s := range layout.Services() {
		all = append(all, string(s))
	}
	t.Run("syncloop", func(t *testing.T) { killUnderProbes(t, state, "syncloop") })
	t.Run("all four", func(t *testing.T) { killUnderProbes(t, state, all...) })
	t.Run("containerd", func(t *testing.T) { killUnderProbes(t, state, "containerd") })
	after := await(t, steady, "Ready", ready)
	if was, is := fmt.Sprint(containerIDs(before)), fmt.Sprint(containerIDs(after)); was != is {
		t.Errorf("containers went from %s to %s", was, is)
	}
	if n := len(state.calls(t, "held-back")); n != 0 {
		t.Errorf("a probe was called %d times before its container had started", n)
	}

	// A kill that has begun is completed, and a change while syncloop is down is seen when it is back.
	state.set(t, "fail", "doomed")
	awaitEvent(t, doomed, "main", "Killing", "Container main failed liveness probe, will be restarted")
	kill(t, "syncloop")
	state.set(t, "fail", "ready-exec")
	state.set(t, "ok", "unready", "starting", "doomed")
	await(t, steady, "not Ready, for its probe has failed meanwhile", func(p *v1.Pod) bool { return p != nil && !ready(p) })
	await(t, unready, "Ready, for its probe has succeeded meanwhile", ready)
	await(t, starting, "Ready, for its probe has succeeded meanwhile", ready)
	awaitEvent(t, doomed, "main", "Started", "Container started again: liveness probe failed")
	if p := await(t, doomed, "Ready", ready); statuses(p)["main"].RestartCount != 1 {
		t.Errorf("it was not restarted once:\n%s", describe(p))
	}
}

// killUnderProbes kills processes, and watches the pods until their successors have made some calls of each probe.
func killUnderProbes(t *testing.T, state checks, names ...string) {
	t.Helper()
	startups := []string{"start-exec", "start-http"}
	was := map[string]int{}
	for _, check := range startups {
		was[check] = len(state.calls(t, check))
	}
	stream, answers := watchStream(t), watchReady(t, steady, 1)
	old := map[string]int{}
	for _, name := range names {
		old[name] = pid(t, name)
	}
	killed := time.Now()
	kill(t, names...)
	for _, name := range names {
		awaitNewPID(t, name, old[name])
	}
	for _, check := range []string{"ready-exec", "ready-http", "live-exec", "live-http", "unready"} {
		state.awaitCalls(t, check, 3, killed)
	}
	for _, problem := range answers() {
		t.Error(problem)
	}
	seen := stream()
	for pod, want := range map[string]bool{steady: true, unready: false, starting: false} {
		if !seen[pod][want] || seen[pod][!want] {
			t.Errorf("pod %s has Ready=%v throughout; the stream had %v", pod, want, seen[pod])
		}
	}
	for _, check := range startups {
		if now := len(state.calls(t, check)); now != was[check] || now == 0 {
			t.Errorf("startup probe %s, which had succeeded, was called %d times, and now %d", check, was[check], now)
		}
	}
}

func placeOutliving(t *testing.T, state checks) {
	t.Helper()
	command, web := state.server("command", 8000), state.server("web", 8010)
	command.StartupProbe, web.StartupProbe = every(byExec("start-exec")), every(byHTTP("start-http", 8010))
	command.LivenessProbe, web.LivenessProbe = every(byExec("live-exec")), every(byHTTP("live-http", 8010))
	command.ReadinessProbe, web.ReadinessProbe = every(byExec("ready-exec")), every(byHTTP("ready-http", 8010))
	placePod(t, state.pod(steady, command, web))

	failing := state.server("main", 8000)
	failing.ReadinessProbe = every(byHTTP("unready", 8000))
	state.set(t, "fail", "unready", "starting")
	placePod(t, state.pod(unready, failing))

	slow := state.server("main", 8000)
	slow.StartupProbe = every(byHTTP("starting", 8000), func(p *v1.Probe) { p.FailureThreshold = 1000 })
	slow.LivenessProbe = every(byHTTP("held-back", 8000))
	placePod(t, state.pod(starting, slow))

	grace := int64(2)
	stubborn := state.server("main", 8000, "-ignore-term")
	stubborn.LivenessProbe = every(byHTTP("doomed", 8000), func(p *v1.Probe) { p.TerminationGracePeriodSeconds = &grace })
	placePod(t, state.pod(doomed, stubborn))
}

// watchStream follows every change of every pod, through restarts of syncloop, until the returned function is called.
// That returns all seen values of Ready by the name in a pod's manifest.
func watchStream(t *testing.T) func() map[string]map[bool]bool {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, filepath.Join(livenode.Bin(), "quartet"), "get", "pods", "-n", "e2e", "-w", "-o",
		"json",
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
