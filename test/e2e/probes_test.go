package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// checks is the directory with the results of a pod's probes, which the example program reads: a file for each check,
// and one with its calls.
type checks string

// newChecks returns a directory for the checks of a pod, which is removed with the node.
func newChecks(t *testing.T, pod string) checks {
	t.Helper()
	all := filepath.Join(node.Layout.StateDir(), "checks")
	if err := os.MkdirAll(all, 0o700); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(all, pod+"-")
	if err != nil {
		t.Fatal(err)
	}
	return checks(dir)
}

// say sets the result of checks: ok, fail, hang or redirect URL.
func (c checks) set(t *testing.T, what string, names ...string) {
	t.Helper()
	for _, name := range names {
		aside := filepath.Join(string(c), "."+name)
		if err := os.WriteFile(aside, []byte(what), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(aside, filepath.Join(string(c), name)); err != nil {
			t.Fatal(err)
		}
	}
}

// call is a call of a check: its time and its caller.
type call struct {
	at   time.Time
	text string
}

// calls returns the calls of a check so far.
func (c checks) calls(t *testing.T, name string) []call {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(string(c), name+".calls"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var all []call
	for line := range strings.Lines(string(content)) {
		if !strings.HasSuffix(line, "\n") {
			break // the line is being written
		}
		moment, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		at, err := time.Parse(time.RFC3339Nano, moment)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, call{at: at, text: text})
	}
	return all
}

// since returns the calls of a check from a time on.
func (c checks) since(t *testing.T, name string, from time.Time) []call {
	t.Helper()
	return slices.DeleteFunc(c.calls(t, name), func(one call) bool { return one.at.Before(from) })
}

// awaitCalls waits until a check has had a number of calls from a time on.
func (c checks) awaitCalls(t *testing.T, name string, count int, from time.Time) {
	t.Helper()
	awaitThat(t, fmt.Sprintf("%d calls of check %s", count, name), func() bool { return len(c.since(t, name, from)) >= count })
}

// first waits for the first call of a check and returns it.
func (c checks) first(t *testing.T, name string) call {
	t.Helper()
	c.awaitCalls(t, name, 1, time.Time{})
	return c.calls(t, name)[0]
}

// server returns a container that answers checks, on ports from base on: HTTP, HTTPS, gRPC and TCP.
func (c checks) server(name string, base int, args ...string) v1.Container {
	return v1.Container{
		Name: name, Image: image, VolumeMounts: []v1.VolumeMount{{Name: "checks", MountPath: "/checks"}},
		Args: append([]string{
			"serve", "-dir", "/checks", "-addr", fmt.Sprintf(":%d", base), "-https", fmt.Sprintf(":%d", base+1),
			"-grpc", fmt.Sprintf(":%d", base+2), "-tcp", fmt.Sprintf(":%d", base+3),
		}, args...),
		Ports: []v1.ContainerPort{{Name: name + "-web", ContainerPort: int32(base)}},
	}
}

// pod returns a pod with containers that use the checks, with a grace period of 1 s.
func (c checks) pod(name string, containers ...v1.Container) *v1.Pod {
	grace := int64(1)
	return &v1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "e2e"},
		Spec: v1.PodSpec{
			TerminationGracePeriodSeconds: &grace, Containers: containers,
			Volumes: []v1.Volume{{Name: "checks", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: string(c)}}}},
		},
	}
}

// placePod places the manifest of a pod until the test ends.
func placePod(t *testing.T, p *v1.Pod) {
	t.Helper()
	content, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	place(t, p.Name+".yaml", string(content))
}

// every returns a probe with a period of a second, a threshold of one, and, for a busy machine, a long timeout and a
// delay. change may change it.
func every(action v1.ProbeHandler, change ...func(*v1.Probe)) *v1.Probe {
	p := &v1.Probe{
		ProbeHandler: action, PeriodSeconds: 1, TimeoutSeconds: 60, FailureThreshold: 1,
		InitialDelaySeconds: 3, // on a slow machine a server listens a second or two after its start
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func byExec(check string) v1.ProbeHandler {
	return v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"/hello", "check", "-dir", "/checks", check}}}
}

func byHTTP(check string, port int) v1.ProbeHandler {
	return v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: "/" + check, Port: intstr.FromInt32(int32(port))}}
}

// handlers returns a probe handler of each type, named like its check, for a server with ports from base on.
func handlers(base int) map[string]v1.ProbeHandler {
	service := "grpc"
	secure := byHTTP("https", base+1)
	secure.HTTPGet.Scheme = v1.URISchemeHTTPS
	return map[string]v1.ProbeHandler{
		"exec": byExec("exec"), "http": byHTTP("http", base), "https": secure,
		"grpc": {GRPC: &v1.GRPCAction{Port: int32(base + 2), Service: &service}},
		"tcp":  {TCPSocket: &v1.TCPSocketAction{Port: intstr.FromInt32(int32(base + 3))}},
	}
}

// statuses returns the statuses of all containers of a pod by name.
func statuses(p *v1.Pod) map[string]v1.ContainerStatus {
	all := map[string]v1.ContainerStatus{}
	if p != nil {
		for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
			all[c.Name] = c
		}
	}
	return all
}

// awaitEach waits until a condition holds for each named container of a pod.
func awaitEach(t *testing.T, pod, what string, names []string, ok func(v1.ContainerStatus) bool) *v1.Pod {
	t.Helper()
	return await(t, pod, what, func(p *v1.Pod) bool {
		all := statuses(p)
		return !slices.ContainsFunc(names, func(name string) bool {
			c, known := all[name]
			return !known || !ok(c)
		})
	})
}

// awaitEvent waits for an event of a container of a pod whose message has a prefix; events of an earlier pod of the
// name do not count. It polls slowly, because each check starts a program.
func awaitEvent(t *testing.T, pod, container, reason, message string) seen {
	t.Helper()
	uid := string(await(t, pod, "listed", func(p *v1.Pod) bool { return p != nil }).UID)
	for end := time.Now().Add(patience); ; <-time.After(5 * interval) {
		all := events(t, pod)
		for _, e := range all {
			if e.PodUID == uid && e.Container == container && e.Reason == reason && strings.HasPrefix(e.Message, message) {
				return e
			}
		}
		if time.Now().After(end) {
			t.Fatalf("no event %s %q of container %s of pod %s after %v, but %+v", reason, message, container, pod, patience, all)
		}
	}
}

// together runs tests in parallel, more than go test would, because they mostly wait.
func together(t *testing.T, tests map[string]func(*testing.T)) {
	t.Helper()
	var all sync.WaitGroup
	for name, test := range tests {
		all.Go(func() { t.Run(name, test) })
	}
	all.Wait()
}

// TestEachKindOfProbeByEachKindOfCall has a pod for each of the fifteen combinations.
func TestEachKindOfProbeByEachKindOfCall(t *testing.T) {
	tests := map[string]func(*testing.T){}
	for by, action := range handlers(8000) {
		tests["readiness by "+by] = func(t *testing.T) { readinessBy(t, by, action) }
		tests["liveness by "+by] = func(t *testing.T) { livenessBy(t, by, action) }
		tests["startup by "+by] = func(t *testing.T) { startupBy(t, by, action) }
	}
	together(t, tests)
}

// said has the prefix of the event message for a check with the result "fail on purpose".
var outputs = map[string]string{
	"exec": "exec: fail on purpose", "grpc": `service unhealthy (responded with "NOT_SERVING")`,
	"http": "HTTP probe failed with statuscode: 503", "https": "HTTP probe failed with statuscode: 503", "tcp": "dial tcp ",
}

func readinessBy(t *testing.T, by string, action v1.ProbeHandler) {
	name := "readiness-by-" + by
	state := newChecks(t, name)
	c := state.server("main", 8000)
	c.ReadinessProbe = every(action)
	placePod(t, state.pod(name, c))
	first := await(t, name, "Ready", ready)
	state.set(t, "fail on purpose", by)
	p := await(t, name, "not Ready", func(p *v1.Pod) bool { return p != nil && !ready(p) })
	if statuses(p)["main"].Ready {
		t.Error("the container is ready, and the pod is not")
	}
	state.set(t, "ok", by)
	p = await(t, name, "Ready again", ready)
	if before, now := fmt.Sprint(containerIDs(first)), fmt.Sprint(containerIDs(p)); before != now {
		t.Errorf("containers went from %s to %s", before, now)
	}
	if e := awaitEvent(t, name, "main", "Unhealthy", "Readiness probe failed: "+outputs[by]); e.Type != v1.EventTypeWarning {
		t.Errorf("the event is %+v, want Type %v", e, v1.EventTypeWarning)
	}
}

func livenessBy(t *testing.T, by string, action v1.ProbeHandler) {
	name := "liveness-by-" + by
	state := newChecks(t, name)
	c := state.server("main", 8000)
	c.LivenessProbe = every(action)
	placePod(t, state.pod(name, c))
	first := await(t, name, "Ready", ready)
	state.set(t, "fail on purpose", by)
	awaitEvent(t, name, "main", "Unhealthy", "Liveness probe failed: "+outputs[by])
	awaitEvent(t, name, "main", "Killing", "Container main failed liveness probe, will be restarted")
	state.set(t, "ok", by)
	awaitEvent(t, name, "main", "Started", "Container started again: liveness probe failed")
	await(t, name, "Ready with a new container", func(p *v1.Pod) bool {
		c := statuses(p)["main"]
		return ready(p) && c.RestartCount > 0 && c.ContainerID != containerIDs(first)["main"]
	})
	awaitEvent(t, name, "main", "Started", "Container started again: liveness probe failed")
}

func startupBy(t *testing.T, by string, action v1.ProbeHandler) {
	const live, serving = "live", "ready"
	name := "startup-by-" + by
	state := newChecks(t, name)
	c := state.server("main", 8000)
	c.StartupProbe = every(action, func(p *v1.Probe) { p.FailureThreshold = 1000 })
	c.LivenessProbe, c.ReadinessProbe = every(byHTTP(live, 8000)), every(byHTTP(serving, 8000))
	state.set(t, "fail on purpose", by, live)
	placePod(t, state.pod(name, c))
	awaitEvent(t, name, "main", "Unhealthy", "Startup probe failed: "+outputs[by])
	if by != "tcp" { // a closed port records no calls
		state.awaitCalls(t, by, 3, time.Time{})
	}
	p := await(t, name, "running", func(p *v1.Pod) bool { return statuses(p)["main"].State.Running != nil })
	if c := statuses(p)["main"]; c.Started == nil || *c.Started || c.Ready || c.RestartCount != 0 {
		t.Errorf("before its startup probe has succeeded the container is %+v", c)
	}
	if n := len(state.calls(t, live)) + len(state.calls(t, serving)); n != 0 {
		t.Errorf("the other probes were called %d times before the container had started", n)
	}
	state.set(t, "ok", by, live)
	p = await(t, name, "Ready", ready)
	if c := statuses(p)["main"]; c.Started == nil || !*c.Started || c.RestartCount != 0 {
		t.Errorf("after its startup probe has succeeded the container is %+v", c)
	}
	was := len(state.calls(t, by))
	state.awaitCalls(t, live, 2, time.Time{})
	if now := len(state.calls(t, by)); now != was {
		t.Errorf("the startup probe was called %d times more after it had succeeded", now-was)
	}
}
