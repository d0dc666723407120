package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/quartet-node/quartet/test/livenode"
	"github.com/quartet-node/quartet/test/require"
)

// TestMain is also the command that does a run in namespaces of its own. TestSlice starts it from this program.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == inside {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// slice has specs for each area in which a node can fail: environment, volumes, probes, hooks, init containers, exit
// and restart, security, exec and logs, status at the API server. Those that wait for minutes are left out.
const slice = `Kubelet when scheduling a busybox command in a pod should print the output to logs` +
	`|Kubelet when scheduling a read only busybox container` +
	`|KubeletManagedEtcHosts` +
	`|Container Lifecycle Hook when create a pod with lifecycle hook should execute (poststart|prestop) (exec|http) hook` +
	`|InitContainer should (invoke init containers on a RestartNever pod|not start app containers and fail the pod)` +
	`|Probing container should be restarted with a (/healthz http liveness probe|exec "cat /tmp/health" liveness probe)` +
	`|Pods should (be submitted and removed|get a host IP|contain environment variables for services|support remote command execution over websockets|support retrieving logs)` +
	`|Container Runtime blackbox test on terminated container should report termination message (from log output|as empty)` +
	`|Container Runtime blackbox test when starting a container that exits should run with the expected status` +
	`|Security Context When creating a (container with runAsUser|pod with readOnlyRootFilesystem|pod with privileged)` +
	`|Variable Expansion should (allow substituting values in a container's command|succeed in writing subpaths)` +
	`|Downward API should provide (pod name|host IP|container's limits)` +
	`|Downward API volume should update (labels|annotations) on modification` +
	`|Projected combined` +
	`|Projected (secret|configMap) optional updates should be reflected` +
	`|EmptyDir volumes (should support .root,0644,tmpfs.|pod should support shared volumes)` +
	`|Secrets should be consumable from pods in volume with mappings` +
	`|Ephemeral Containers .*will start an ephemeral container` +
	`|Networking Granular Checks: Pods should function for intra-pod communication: (http|udp)` +
	`|RuntimeClass should (reject|schedule)`

// TestSlice runs upstream's own specs with Quartet, as many as five minutes allow.
func TestSlice(t *testing.T) {
	parts := filepath.Join(livenode.Bin(), "conformance")
	opts, err := parse([]string{"-bin", livenode.Bin(), "-parts", parts, "-out", t.TempDir(), "-runs", nodeQuartet, "-focus", slice})
	if err != nil {
		t.Fatal(err)
	}
	require.NoError(t, cannotRun(opts))
	result, err := runNode(t.Context(), opts, nodeQuartet)
	if err != nil {
		t.Fatalf("%v\n%s", err, tail(filepath.Join(opts.out, nodeQuartet, "ginkgo.log")))
	}
	const atLeast = 30 // one spec that upstream renames may be missing, many may not
	if len(result) < atLeast {
		t.Errorf("%d specs have run, want at least %d: do their names still match?", len(result), atLeast)
	}
	for _, name := range result.failed() {
		t.Errorf("%s: %s", name, result[name].Why)
	}
	if t.Failed() {
		t.Logf("the end of the kubelet's log:\n%s", tail(filepath.Join(opts.out, nodeQuartet, "kubelet.log")))
	}
}

// tail returns the end of a log.
func tail(path string) string {
	const most = 32 << 10
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(content[max(0, len(content)-most):])
}

const junit = `<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="5">
  <testsuite name="E2eNode Suite">
    <testcase name="[SynchronizedBeforeSuite]" status="passed" time="9.5"></testcase>
    <testcase name="[It] [sig-node] Pods should run [Conformance] [sig-node, Conformance]" status="passed" time="1.5"></testcase>
    <testcase name="[It] [sig-node] Pods should stop" status="failed" time="2"><failure message="timed out&#xA;after 2 s" type="failed">at x.go</failure></testcase>
    <testcase name="[It] [sig-node] Pods should sing" status="panicked" time="2"><error message="boom" type="panicked"></error></testcase>
    <testcase name="[It] [sig-node] Windows" status="skipped" time="0"><skipped message="skipped"></skipped></testcase>
  </testsuite>
</testsuites>`

func TestReportIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "junit.xml")
	if err := os.WriteFile(path, []byte(junit), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := readJUnit(path)
	if err != nil {
		t.Fatal(err)
	}
	want := outcomes{
		"[sig-node] Pods should run [Conformance]": {Passed: true, Seconds: 1.5},
		"[sig-node] Pods should stop":              {Seconds: 2, Why: "timed out"},
		"[sig-node] Pods should sing":              {Seconds: 2, Why: "boom"},
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	broken := strings.Replace(junit, `BeforeSuite]" status="passed"`, `BeforeSuite]" status="failed"`, 1)
	if err := os.WriteFile(path, []byte(broken), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := readJUnit(path); err != nil || !slices.Contains(got.failed(), "[SynchronizedBeforeSuite]") {
		t.Errorf("a suite that could not begin is not among the failures: %v, %v", got.failed(), err)
	}
}

func TestComparison(t *testing.T) {
	passes, fails := outcome{Passed: true}, outcome{Why: "because"}
	cases := map[string]struct {
		runs    string
		results map[string]outcomes
		fails   bool
		output  string
	}{
		"equal":                    {"kubelet,quartet", map[string]outcomes{nodeKubelet: {"a": passes}, nodeQuartet: {"a": passes}}, false, "quartet  1 of 1"},
		"both fail":                {"kubelet,quartet", map[string]outcomes{nodeKubelet: {"a": fails}, nodeQuartet: {"a": fails}}, false, "failed with kubelet"},
		"only the kubelet passes":  {"kubelet,quartet", map[string]outcomes{nodeKubelet: {"a": passes}, nodeQuartet: {"a": fails}}, true, "passed with the kubelet and not with quartet"},
		"one that has not run":     {"kubelet,quartet", map[string]outcomes{nodeKubelet: {"a": passes, "b": passes}, nodeQuartet: {"a": passes}}, true, "  b\n"},
		"only Quartet passes":      {"kubelet,quartet", map[string]outcomes{nodeKubelet: {"a": fails}, nodeQuartet: {"a": passes}}, false, "0 of 1"},
		"failing among kills":      {"kubelet,quartet,killed", map[string]outcomes{nodeKubelet: {"a": passes}, nodeQuartet: {"a": passes}, nodeKilled: {"a": fails}}, true, "not with killed"},
		"a failure of one run":     {"quartet", map[string]outcomes{nodeQuartet: {"a": fails}}, true, "because"},
		"no failure of one run":    {"quartet", map[string]outcomes{nodeQuartet: {"a": passes}}, false, "1 of 1"},
		"the kubelet alone failed": {"kubelet", map[string]outcomes{nodeKubelet: {"a": fails}}, false, "because"},
	}
	for what, c := range cases {
		t.Run(what, func(t *testing.T) {
			var out bytes.Buffer
			err := compare(&out, options{runs: strings.Split(c.runs, ",")}, c.results)
			if (err != nil) != c.fails || !strings.Contains(out.String(), c.output) {
				t.Errorf("error %v, want one: %t; output\n%s\nwant text with %q", err, c.fails, out.String(), c.output)
			}
		})
	}
}

func TestProgressIsALineForEachSpec(t *testing.T) {
	const printed = `Running Suite: E2eNode Suite - /tmp/work
------------------------------
[SynchronizedBeforeSuite] PASSED [9.001 seconds]
[SynchronizedBeforeSuite]
k8s.io/kubernetes/test/e2e_node/e2e_node_suite_test.go:245
------------------------------
• [1.500 seconds]
[sig-node] Pods should run [Conformance] [sig-node, Conformance]
k8s.io/kubernetes/test/e2e/common/node/pods.go:1
------------------------------
• [SLOW TEST] [20.250 seconds]
[sig-node] Pods should wait
------------------------------
• [FAILED] [3.000 seconds]
[sig-node] Pods [It] should stop
------------------------------
S [SKIPPED] [0.010 seconds]
[sig-node] Windows
`
	var log, progress strings.Builder
	if err := follow(strings.NewReader(printed), &log, &progress); err != nil {
		t.Fatal(err)
	}
	if log.String() != printed {
		t.Errorf("the log has %q, want %q", log.String(), printed)
	}
	want := `    1 passed    1.500 s  [sig-node] Pods should run [Conformance]
    2 passed   20.250 s  [sig-node] Pods should wait
    3 failed    3.000 s  [sig-node] Pods should stop
    4 skipped   0.010 s  [sig-node] Windows
`
	if progress.String() != want {
		t.Errorf("got\n%s\nwant\n%s", progress.String(), want)
	}
}

func TestMistakesOfTheCommandLineAreNamed(t *testing.T) {
	for _, args := range [][]string{{"-runs", "quartet,other"}, {"-procs", "many"}, {"-unknown"}} {
		if _, err := parse(args); err == nil {
			t.Errorf("%q is no error", args)
		}
	}
}

// The command of a run gets its description as JSON.
func TestDescriptionOfARunSurvives(t *testing.T) {
	want := suite{Node: nodeKilled, Bin: "/b", Parts: "/p", Dir: "/d", Out: "/o", Procs: 3, Labels: "A && !B", Focus: `a "b"`}
	content, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got suite
	if err := json.Unmarshal(content, &got); err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

func TestImagesCanBePulled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "image.tar")
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for name, content := range map[string]string{
		"manifest.json": `[{"Config":"sha256:c","RepoTags":["registry.k8s.io/e2e-test-images/kitten:1.8"],"Layers":["l.tar.gz"]}]`,
		"sha256:c":      "config", "l.tar.gz": "layer",
	} {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), os.WriteFile(path, archive.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
	r := registry{manifests: map[string][]byte{}, blobs: map[string][]byte{}}
	if err := r.add(path); err != nil {
		t.Fatal(err)
	}
	get := func(path string) (int, string, http.Header) {
		answer := httptest.NewRecorder()
		r.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, http.NoBody))
		return answer.Code, answer.Body.String(), answer.Header()
	}
	_, manifest, header := get("/v2/e2e-test-images/kitten/manifests/1.8")
	if header.Get("Content-Type") != manifestType || header.Get("Docker-Content-Digest") != digest([]byte(manifest)) {
		t.Errorf("the manifest has the headers %v", header)
	}
	if _, again, _ := get("/v2/e2e-test-images/kitten/manifests/" + digest([]byte(manifest))); again != manifest {
		t.Errorf("by its digest the manifest is %q, want %q", again, manifest)
	}
	for _, content := range []string{"config", "layer"} {
		if !strings.Contains(manifest, digest([]byte(content))) {
			t.Errorf("the manifest does not name the %s: %s", content, manifest)
		}
		if _, blob, _ := get("/v2/e2e-test-images/kitten/blobs/" + digest([]byte(content))); blob != content {
			t.Errorf("the blob of the %s is %q", content, blob)
		}
	}
	for _, path := range []string{"/v2/e2e-test-images/kitten/manifests/2", "/v2/e2e-test-images/kitten/blobs/sha256:0", "/v1/"} {
		if code, _, _ := get(path); code != http.StatusNotFound {
			t.Errorf("%s: get() = %d, want %d", path, code, http.StatusNotFound)
		}
	}
	if code, _, _ := get("/v2/"); code != http.StatusOK {
		t.Errorf("/v2/: %d, want %d", code, http.StatusOK)
	}
}

func TestTheHandlerOfTheSuiteIsTheUsualOneUnderAnotherName(t *testing.T) {
	const config = `version = 3

[plugins.x.containerd]
  default_runtime_name = 'runc'

[plugins.x.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'

[plugins.x.containerd.runtimes.runc.options]
  SystemdCgroup = false
[plugins.y]
  z = true
`
	got, err := withHandler(config)
	if err != nil {
		t.Fatal(err)
	}
	const added = `
[plugins.x.containerd.runtimes.test-handler]
  runtime_type = 'io.containerd.runc.v2'

[plugins.x.containerd.runtimes.test-handler.options]
  SystemdCgroup = false
`
	if got != config+added {
		t.Errorf("withHandler() =\n%s\nwant %s", got, config+added)
	}
	if _, err := withHandler("version = 3\n"); err == nil {
		t.Error("a configuration without a handler is no error")
	}
}

func TestOwnProcessIsFoundByItsProgram(t *testing.T) {
	if !slices.Contains(processesOf(filepath.Base(os.Args[0])), os.Getpid()) {
		t.Errorf("%s is not found", os.Args[0])
	}
	if pids := processesOf("no-such-program"); len(pids) > 0 {
		t.Errorf("processes %v of a program that is not there", pids)
	}
}
