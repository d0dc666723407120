package e2e

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// TestFieldsOfProbes tests the fields of a probe besides its handler, each in a pod of its own.
func TestFieldsOfProbes(t *testing.T) {
	tests := map[string]func(*testing.T){}
	for name, test := range map[string]func(t *testing.T, name string){
		"probe-request":   requestIsAsTheManifestSays,
		"probe-host":      anotherHostIsAsked,
		"probe-redirect":  redirectsAreFollowedOnTheSameHost,
		"probe-counts":    thresholdsCount,
		"probe-delay":     initialDelayIsWaitedFor,
		"probe-grace":     failedLivenessHasTheGracePeriodOfItsProbe,
		"probe-startless": failedStartupRestarts,
		"probe-never":     failedLivenessEndsAPodThatIsNotRestarted,
		"probe-sidecar":   sidecarsAreProbed,
		"probe-hung":      hangingProbesDelayNoOther,
		"probes":          theExampleDoesWhatItSays,
		"probe-deleted":   podsThatEndAreNotProbedForLiveness,
	} {
		tests[name] = func(t *testing.T) { test(t, name) }
	}
	together(t, tests)
}

func requestIsAsTheManifestSays(t *testing.T, name string) {
	state := newChecks(t, name)
	c := state.server("main", 8000)
	c.ReadinessProbe = every(v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{
		Path: "/named?why=probe", Port: intstr.FromString("main-web"),
		HTTPHeaders: []v1.HTTPHeader{{Name: "Host", Value: "shop.example"}, {Name: "X-Probe", Value: "one"}},
	}})
	c.LivenessProbe = every(byHTTP("plain", 8000))
	placePod(t, state.pod(name, c))
	p := await(t, name, "Ready", ready)
	for check, want := range map[string][]string{
		"named": {"http /named?why=probe ", `host="shop.example"`, `agent="kube-probe/`, `accept="*/*"`, `x-probe="one"`},
		"plain": {"http /plain ", fmt.Sprintf("host=%q", net.JoinHostPort(p.Status.PodIP, "8000")), `agent="kube-probe/`},
	} {
		text := state.first(t, check).text
		for _, part := range want {
			if !strings.Contains(text, part) {
				t.Errorf("the call of check %s is %s, without %s", check, text, part)
			}
		}
	}
}

func anotherHostIsAsked(t *testing.T, name string) {
	state := newChecks(t, name)
	var calls atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { calls.Add(1) }))
	t.Cleanup(server.Close)
	host, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	c := state.server("main", 8000)
	c.ReadinessProbe = every(byHTTP("elsewhere", number))
	c.ReadinessProbe.HTTPGet.Host = host
	c.LivenessProbe = every(v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Host: host,
		Port: intstr.FromInt32(int32(number))}})
	placePod(t, state.pod(name, c))
	await(t, name, "Ready", ready)
	if calls.Load() == 0 || len(state.calls(t, "elsewhere")) != 0 {
		t.Error("it is Ready, and the host that its probe names was not asked")
	}
}

func redirectsAreFollowedOnTheSameHost(t *testing.T, name string) {
	state := newChecks(t, name)
	c := state.server("main", 8000)
	c.ReadinessProbe = every(byHTTP("here", 8000))
	other := state.server("other", 8010)
	other.ReadinessProbe = every(byHTTP("away", 8010))
	state.set(t, "redirect /there", "here")
	state.set(t, "redirect http://198.51.100.7/", "away")
	state.set(t, "fail", "there")
	placePod(t, state.pod(name, c, other))
	// A redirect to another host is a success with a warning. It is not followed: the request would fail.
	awaitEach(t, name, "ready in the container whose probe is sent away", []string{"other"}, func(c v1.ContainerStatus) bool { return c.Ready })
	awaitEvent(t, name, "other", "ProbeWarning", "Readiness probe warning: Probe terminated redirects, Response body:")
	awaitEvent(t, name, "main", "Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 503")
	state.awaitCalls(t, "there", 1, time.Time{})
	state.set(t, "ok", "there")
	await(t, name, "Ready, for what it is redirected to is well", ready)
}

func thresholdsCount(t *testing.T, name string) {
	state := newChecks(t, name)
	c := state.server("main", 8000)
	c.ReadinessProbe = every(byHTTP("ready", 8000), func(p *v1.Probe) { p.SuccessThreshold, p.FailureThreshold = 2, 3 })
	placePod(t, state.pod(name, c))
	at := func(from time.Time, want bool) {
		t.Helper()
		p := await(t, name, fmt.Sprintf("Ready=%v", want), func(p *v1.Pod) bool { return p != nil && ready(p) == want })
		became := p.Status.Conditions[slices.IndexFunc(p.Status.Conditions, func(c v1.PodCondition) bool {
			return c.Type == v1.PodReady
		})].LastTransitionTime
		count := 0
		for _, one := range state.since(t, "ready", from) {
			if one.at.Before(became.Add(time.Second)) { // the time has whole seconds
				count++
			}
		}
		least := map[bool]int{true: 2, false: 3}[want]
		if count < least || count > least+2 {
			t.Errorf("it is Ready=%v after %d calls, want %d", want, count, least)
		}
	}
	at(time.Time{}, true)
	from := time.Now()
	state.set(t, "fail", "ready")
	at(from, false)
	from = time.Now()
	state.set(t, "ok", "ready")
	at(from, true)
}

func initialDelayIsWaitedFor(t *testing.T, name string) {
	state := newChecks(t, name)
	c := state.server("main", 8000)
	const delay = 8 * time.Second
	c.ReadinessProbe = every(byHTTP("ready", 8000), func(p *v1.Probe) { p.InitialDelaySeconds = int32(delay / time.Second) })
	c.LivenessProbe = every(byHTTP("live", 8000), func(p *v1.Probe) { p.InitialDelaySeconds, p.FailureThreshold = 0, 30 })
	placePod(t, state.pod(name, c))
	p := await(t, name, "Ready", ready)
	began := statuses(p)["main"].State.Running.StartedAt.Time // in whole seconds
	if first := state.first(t, "ready").at.Sub(began); first < delay {
		t.Errorf("the first call comes %v after the start, want %v at least", first, delay)
	}
	if early := state.first(t, "live").at.Sub(began); early > delay {
		t.Errorf("the probe without a delay is called %v after the start", early)
	}
}

func failedLivenessHasTheGracePeriodOfItsProbe(t *testing.T, name string) {
	state := newChecks(t, name)
	const grace, podGrace = 2, 20
	short, long := int64(grace), int64(podGrace)
	c := state.server("main", 8000, "-ignore-term")
	c.LivenessProbe = every(byHTTP("live", 8000), func(p *v1.Probe) { p.TerminationGracePeriodSeconds = &short })
	p := state.pod(name, c)
	p.Spec.TerminationGracePeriodSeconds = &long
	placePod(t, p)
	await(t, name, "Ready", ready)
	state.set(t, "fail", "live")
	killed := awaitEvent(t, name, "main", "Killing", "Container main failed liveness probe, will be restarted").Time
	state.set(t, "ok", "live")
	restarted := awaitEach(t, name, "restarted", []string{"main"}, func(c v1.ContainerStatus) bool { return c.RestartCount == 1 && c.Ready })
	last := statuses(restarted)["main"].LastTerminationState.Terminated
	if last == nil || last.ExitCode != 137 {
		t.Fatalf("the container has ended with %+v, want SIGKILL", last)
	}
	// From the event to the end, not to the next start, which a busy machine delays. Both times have whole seconds.
	if took := last.FinishedAt.Sub(killed); took < (grace-1)*time.Second || took >= (podGrace-1)*time.Second {
		t.Errorf("a program that ignores SIGTERM was ended after %v, want %d s", took, grace)
	}
}

func failedStartupRestarts(t *testing.T, name string) {
	state := newChecks(t, name)
	c := state.server("main", 8000)
	c.StartupProbe = every(byHTTP("start", 8000), func(p *v1.Probe) { p.FailureThreshold = 2 })
	c.LivenessProbe = every(byHTTP("live", 8000))
	state.set(t, "fail", "start")
	placePod(t, state.pod(name, c))
	e := awaitEvent(t, name, "main", "Killing", "Container main failed startup probe, will be restarted")
	killed := e.Time
	if e.FirstTime != nil {
		killed = *e.FirstTime
	}
	// the time has whole seconds
	calls := slices.DeleteFunc(state.calls(t, "start"), func(one call) bool { return !one.at.Before(killed.Add(time.Second)) })
	// Calls of the first period do not count.
	if n := len(calls); n < 2 || n > 5 {
		t.Errorf("it is restarted after %d calls, want 3", n)
	}
	if len(state.calls(t, "live")) != 0 {
		t.Error("the liveness probe was called")
	}
	state.set(t, "ok", "start")
	p := await(t, name, "Ready", ready)
	if restarts := statuses(p)["main"].RestartCount; restarts != 1 {
		t.Errorf("%d restarts, want 1", restarts)
	}
	awaitEvent(t, name, "main", "Started", "Container started again: startup probe failed")
}

func failedLivenessEndsAPodThatIsNotRestarted(t *testing.T, name string) {
	state := newChecks(t, name)
	c := state.server("main", 8000)
	c.LivenessProbe = every(byHTTP("live", 8000))
	p := state.pod(name, c)
	p.Spec.RestartPolicy = v1.RestartPolicyNever
	placePod(t, p)
	await(t, name, "Ready", ready)
	state.set(t, "fail", "live")
	awaitEvent(t, name, "main", "Killing", "")
	// The program exits with code 0 on SIGTERM.
	done := await(t, name, "at its end", func(p *v1.Pod) bool {
		return p != nil && (p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed)
	})
	if c := statuses(done)["main"]; c.RestartCount != 0 || c.State.Terminated == nil {
		t.Errorf("the container is %+v", c)
	}
}

func sidecarsAreProbed(t *testing.T, name string) {
	state := newChecks(t, name)
	always := v1.ContainerRestartPolicyAlways
	side := state.server("side", 8010)
	side.RestartPolicy = &always
	side.StartupProbe = every(byHTTP("side-start", 8010), func(p *v1.Probe) { p.FailureThreshold = 1000 })
	side.ReadinessProbe = every(byHTTP("side-ready", 8010))
	side.LivenessProbe = every(byHTTP("side-live", 8010))
	p := state.pod(name, state.server("main", 8000))
	p.Spec.InitContainers = []v1.Container{side}
	state.set(t, "fail", "side-start", "side-ready")
	placePod(t, p)
	state.awaitCalls(t, "side-start", 2, time.Time{})
	if p := await(t, name, "listed", func(p *v1.Pod) bool { return p != nil }); statuses(p)["main"].State.Running != nil {
		t.Error("a container runs before the sidecar's startup probe has passed")
	}
	state.set(t, "ok", "side-start")
	p = awaitEach(t, name, "running", []string{"main"}, func(c v1.ContainerStatus) bool { return c.Ready })
	state.awaitCalls(t, "side-ready", 1, time.Time{})
	if ready(p) {
		t.Error("the pod is Ready, and its sidecar is not")
	}
	state.set(t, "ok", "side-ready")
	first := await(t, name, "Ready", ready)
	state.set(t, "fail", "side-live")
	awaitEvent(t, name, "side", "Killing", "Container side failed liveness probe, will be restarted")
	state.set(t, "ok", "side-live")
	p = await(t, name, "Ready with a new sidecar", func(p *v1.Pod) bool { return ready(p) && statuses(p)["side"].RestartCount == 1 })
	if statuses(p)["main"].ContainerID != statuses(first)["main"].ContainerID {
		t.Error("the container beside the sidecar was restarted")
	}
}

func hangingProbesDelayNoOther(t *testing.T, name string) {
	state := newChecks(t, name)
	patient := func(p *v1.Probe) { p.FailureThreshold, p.TimeoutSeconds = 1000, 1 }
	command, web, well := state.server("command", 8000), state.server("web", 8010), state.server("well", 8020)
	command.LivenessProbe = every(byExec("hung-exec"), patient)
	web.ReadinessProbe = every(byHTTP("hung-http", 8010), patient)
	well.LivenessProbe = every(byExec("well-exec"))
	well.ReadinessProbe = every(byHTTP("well-http", 8020))
	state.set(t, "hang", "hung-exec", "hung-http")
	placePod(t, state.pod(name, command, web))
	beside := state.pod("probe-well", well)
	placePod(t, beside)
	awaitEvent(t, name, "command", "Unhealthy", "Liveness probe failed: ")
	awaitEvent(t, name, "web", "Unhealthy", "Readiness probe failed: ")
	await(t, beside.Name, "Ready", ready)
	from := time.Now()
	for _, check := range []string{"hung-exec", "hung-http"} {
		state.awaitCalls(t, check, 4, from)
	}
	for _, check := range []string{"well-exec", "well-http"} {
		before := from
		all := state.since(t, check, from)
		for _, one := range all {
			if gap := one.at.Sub(before); gap > 10*time.Second {
				t.Errorf("check %s was not called for %v, want one each second", check, gap)
			}
			before = one.at
		}
		if hung := len(state.since(t, "hung-exec", from)); len(all) < hung-1 {
			t.Errorf("check %s was called %d times beside %d calls that hang", check, len(all), hung)
		}
	}
	p := await(t, name, "listed", func(p *v1.Pod) bool { return p != nil })
	if c := statuses(p)["command"]; c.RestartCount != 0 || !c.Ready {
		t.Errorf("the container whose liveness probe hangs is %+v", c)
	}
	// The sandbox, two servers, and the current probes: a command that hangs is killed at its timeout.
	if n := processesIn(t, node.PodCgroup(p)); n > 6 {
		t.Errorf("%d processes run in the pod", n)
	}
}

func podsThatEndAreNotProbedForLiveness(t *testing.T, name string) {
	state := newChecks(t, name)
	const grace = 5
	long := int64(grace)
	c := state.server("main", 8000, "-ignore-term")
	c.LivenessProbe = every(byHTTP("live", 8000))
	p := state.pod(name, c)
	p.Spec.TerminationGracePeriodSeconds = &long
	placePod(t, p)
	uid := string(await(t, name, "Ready", ready).UID)
	state.awaitCalls(t, "live", 1, time.Time{})
	takeAway(t, name+".yaml")
	awaitThat(t, "it is being stopped", func() bool { return workerOf(t, name).TerminateBy != nil })
	ending := time.Now()
	state.set(t, "fail", "live")
	awaitGone(t, name)
	// One call may be in progress when the termination begins.
	if late := state.since(t, "live", ending); len(late) > 1 {
		t.Errorf("%d calls of the liveness probe after the end began, over %d s", len(late), grace)
	}
	for _, e := range events(t, name) {
		if e.PodUID == uid && e.Reason == "Unhealthy" {
			t.Errorf("an event says %s", e.Message)
		}
	}
}

// theExampleDoesWhatItSays follows the comment in examples/probes.yaml, with files of the test.
func theExampleDoesWhatItSays(t *testing.T, name string) {
	content, err := os.ReadFile(filepath.Join("..", "..", "examples", "probes.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	state := newChecks(t, name)
	place(t, name+".yaml", strings.NewReplacer("/tmp/quartet-probes", string(state), "namespace: default", "namespace: e2e").Replace(string(content)))
	p := await(t, name, "listed", func(p *v1.Pod) bool { return p != nil && len(p.Status.ContainerStatuses) > 0 })
	if ready(p) {
		t.Error("it is Ready before its slow start is over")
	}
	await(t, name, "Ready", ready)
	state.set(t, "fail", "ready")
	await(t, name, "not Ready", func(p *v1.Pod) bool { return p != nil && !ready(p) })
	state.set(t, "ok", "ready")
	await(t, name, "Ready again", ready)
}
