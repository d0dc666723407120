package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/quartet-node/quartet/test/eventually"
)

// beMain makes the test binary behave as quartet, so that a copy of it beside other binaries is a whole installation.
const beMain = "QUARTET_TEST_BE_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(beMain) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

var services = []string{"configmux", "pleg", "syncloop", "nodestatus"}

// obedient prints its arguments and ends on SIGTERM, leaving a file that records it.
const obedient = `#!/bin/sh
name=$(basename "$0"); dir=$(dirname "$0")
trap 'echo bye > "$dir/$name.bye"; exit 0' TERM
echo "up with $*"
while :; do sleep 0.02; done
`

// install creates a directory with quartet and a script for each service.
func install(t *testing.T, script string) string {
	t.Helper()
	dir := t.TempDir()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "quartet"), content, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range services {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// quartet returns a command of the installation in a directory, with its output in a file there.
func quartet(t *testing.T, dir string, args ...string) *exec.Cmd {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	})
	cmd := exec.Command(filepath.Join(dir, "quartet"), args...)
	cmd.Env = append(os.Environ(), beMain+"=1")
	cmd.Stdout, cmd.Stderr = log, log
	return cmd
}

// startNode starts quartet node and waits until all four services have reported that they are up.
func startNode(t *testing.T, dir string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := quartet(t, dir, append([]string{"node", "--state-dir", filepath.Join(dir, "state")}, args...)...)
	run(t, dir, cmd)
	return cmd
}

// run starts a command that runs a node, and waits until all four services have reported that they are up.
func run(t *testing.T, dir string, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
			_ = cmd.Wait()                          // the result does not matter any more
		}
	})
	awaitIn(t, dir, "all four are up", func() bool { return strings.Count(logOf(t, dir), "up with") >= len(services) })
}

func logOf(t *testing.T, dir string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func awaitIn(t *testing.T, dir, what string, holds func() bool) {
	t.Helper()
	eventually.Wait{State: func() string { return "the log:\n" + logOf(t, dir) }}.That(t, what, holds)
}

func pidOf(dir, name string) int {
	content, err := os.ReadFile(filepath.Join(dir, "state", "run", name+".pid"))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(content)))
	if err != nil {
		return 0
	}
	return pid
}

func TestNodePassesTheAddressesOfTheServices(t *testing.T) {
	dir := install(t, obedient)
	startNode(t, dir, "--hostname-override", "n1", "--node-labels", "a=b", "--v", "4")
	log := logOf(t, dir)
	for _, want := range []string{
		"pleg       | up with", "syncloop   | up with",
		"--configmux-address=unix://", "--nodestatus-address=unix://", "--hostname-override=n1", "--node-labels=a=b", "--v=4",
		"--state-dir=" + filepath.Join(dir, "state"),
	} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %q:\n%s", want, log)
		}
	}
}

func TestNodeStopsAllFourOnSIGTERM(t *testing.T) {
	dir := install(t, obedient)
	cmd := startNode(t, dir)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it did not end well: %v", err)
	}
	for _, name := range services {
		if _, err := os.Stat(filepath.Join(dir, name+".bye")); err != nil {
			t.Errorf("%s was not asked to end: %v", name, err)
		}
	}
	left, err := filepath.Glob(filepath.Join(dir, "state", "run", "*.pid"))
	if err != nil || len(left) > 0 {
		t.Errorf("pid files are left: %v %v", left, err)
	}
}

func TestServicesEndWithAKilledNode(t *testing.T) {
	dir := install(t, obedient)
	cmd := startNode(t, dir)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for _, name := range services {
		awaitIn(t, dir, name+" ends with its parent", func() bool {
			_, err := os.Stat(filepath.Join(dir, name+".bye"))
			return err == nil
		})
	}
}

func TestNodeStartsAKilledServiceAgain(t *testing.T) {
	dir := install(t, obedient)
	startNode(t, dir)
	awaitIn(t, dir, "pleg has a pid file", func() bool { return pidOf(dir, "pleg") != 0 })
	first := pidOf(dir, "pleg")
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	awaitIn(t, dir, "pleg runs again", func() bool { pid := pidOf(dir, "pleg"); return pid != 0 && pid != first })
	awaitIn(
		t,
		dir,
		"the log says why it ended",
		func() bool { return strings.Contains(logOf(t, dir), "signal: killed") },
	)
}

func TestSecondNodeNamesTheFirst(t *testing.T) {
	dir := install(t, obedient)
	first := startNode(t, dir)
	out := expectFailure(t, dir, "node", "--state-dir", filepath.Join(dir, "state"))
	if !strings.Contains(out, "pid "+strconv.Itoa(first.Process.Pid)) {
		t.Errorf("the error does not name the holder %d: %s", first.Process.Pid, out)
	}
}

func TestNodeSaysEverythingThatIsWrongBeforeItStarts(t *testing.T) {
	dir := install(t, obedient)
	config := filepath.Join(dir, "kubelet.yaml")
	err := os.WriteFile(
		config,
		[]byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nnoSuchField: 1\n"),
		0o600,
	)
	if err != nil {
		t.Fatal(err)
	}
	out := expectFailure(
		t,
		dir,
		"node",
		"--state-dir",
		filepath.Join(dir, "state"),
		"--config",
		config,
		"--node-ip",
		"nonsense",
	)
	for _, want := range []string{"noSuchField", "node-ip"} {
		if !strings.Contains(out, want) {
			t.Errorf("the error lacks %q: %s", want, out)
		}
	}
	if strings.Contains(out, "up with") {
		t.Errorf("a service was started: %s, want text without %q", out, "up with")
	}
}

func TestNodeNamesTheBinaryThatIsMissing(t *testing.T) {
	dir := install(t, obedient)
	if err := os.Remove(filepath.Join(dir, "syncloop")); err != nil {
		t.Fatal(err)
	}
	out := expectFailure(t, dir, "node", "--state-dir", filepath.Join(dir, "state"))
	if !strings.Contains(out, "syncloop") || !strings.Contains(out, "make build") {
		t.Errorf("the error does not say what to do: %s", out)
	}
}

func TestDownWithoutANodeSaysSo(t *testing.T) {
	dir := install(t, obedient)
	if err := quartet(t, dir, "down", "--state-dir", filepath.Join(dir, "none")).Run(); err != nil {
		t.Fatal(err)
	}
	if out := logOf(t, dir); !strings.Contains(out, "There is no node in") {
		t.Errorf("logOf() = %q, want text with %q", out, "There is no node in")
	}
}

func TestDownLeavesADirectoryOfSomethingElseAlone(t *testing.T) {
	dir := install(t, obedient)
	other := t.TempDir()
	if err := quartet(t, dir, "down", "--state-dir", other).Run(); err != nil {
		t.Fatal(err)
	}
	if out := logOf(t, dir); !strings.Contains(out, "There is no node in") {
		t.Errorf("logOf() = %q, want text with %q", out, "There is no node in")
	}
	if left, err := os.ReadDir(other); err != nil || len(left) > 0 {
		t.Errorf("it left %v there: %v", left, err)
	}
}

func TestAMistypedCommandLinePrintsAHint(t *testing.T) {
	dir := install(t, obedient)
	for _, test := range []struct{ args, want string }{
		{"dwon", `there is no command "dwon": 'quartet --help' lists them; did you mean down?`},
		{"frobnicate", `there is no command "frobnicate": 'quartet --help' lists them`},
		{"get pods --wathc", "unknown flag: --wathc: 'quartet get pods --help' lists the flags"},
		{"get pods -o xml", `invalid argument "xml" for "-o, --output" flag: must be wide, json, yaml or name`},
		{"get", "say what to show: quartet get pods, workers, volumes, sources, configmaps, secrets, pvc, pv, storageclasses, csidrivers, images or node"},
		{"describe", "say what to describe: quartet describe pod NAME, node, pvc NAME or storageclass NAME"},
		{"describe jobs", `there is no "jobs" to describe: quartet describe describes pods, the node, pvc and storageclasses`},
		{"get jobs", `there is no "jobs" to show: quartet get shows pods, workers, volumes, sources, configmaps, secrets, pvc, pv, storageclasses, csidrivers, images or node`},
	} {
		out := expectFailure(t, dir, strings.Fields(test.args)...)
		if !strings.HasPrefix(out, "quartet: "+test.want) {
			t.Errorf("quartet %s: got %q, want %q", test.args, out, test.want)
		}
	}
}

func TestUpNamesWhatIsMissing(t *testing.T) {
	dir := install(t, obedient)
	out := expectFailure(t, dir, "up", "--state-dir", filepath.Join(dir, "state"))
	if !strings.Contains(out, "containerd") || !strings.Contains(out, "make build") {
		t.Errorf("the error does not name the runtime: %s", out)
	}
}

// expectFailure runs a command that must fail, and returns its log.
func expectFailure(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := quartet(t, dir, args...)
	before := len(logOf(t, dir))
	if err := cmd.Run(); err == nil {
		t.Errorf("%v succeeded, want an error", args)
	}
	return logOf(t, dir)[before:]
}

func TestNodeEndsWhenAServiceRefusesItsConfiguration(t *testing.T) {
	dir := install(t, obedient)
	refusing := "#!/bin/sh\necho 'syncloop: /etc/kubelet.conf: is no kubeconfig' >&2\nexit 78\n"
	if err := os.WriteFile(filepath.Join(dir, "syncloop"), []byte(refusing), 0o755); err != nil {
		t.Fatal(err)
	}
	out := expectFailure(t, dir, "node", "--state-dir", filepath.Join(dir, "state"))
	if !strings.Contains(out, "\nquartet: syncloop: /etc/kubelet.conf: is no kubeconfig\n") {
		t.Errorf("expectFailure(node, --state-dir) = %s, want text with %q",
			out, "\nquartet: syncloop: /etc/kubelet.conf: is no kubeconfig\n")
	}
}
