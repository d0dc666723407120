package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// runDoctor runs the real command on this machine and returns what it printed and its exit code.
func runDoctor(t *testing.T, dir string, args ...string) (out string, code int) {
	t.Helper()
	cmd := quartet(t, dir, append([]string{"doctor"}, args...)...)
	var printed strings.Builder
	cmd.Stdout = &printed
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return printed.String(), cmd.ProcessState.ExitCode()
}

// Whatever the state of the test's machine is: the exit code matches the table, and every fault has a fix.
func TestDoctorOnThisMachine(t *testing.T) {
	dir := install(t, obedient)
	out, code := runDoctor(t, dir, "--state-dir", filepath.Join(dir, "state"))
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) < 20 || strings.Join(strings.Fields(lines[0]), " ") != "CHECK RESULT DETAIL" {
		t.Fatalf("it printed\n%s", out)
	}
	results := map[string]int{}
	column := strings.Index(lines[0], "RESULT")
	for i, line := range lines[1:] {
		if len(line) <= column || strings.HasPrefix(line, " ") || strings.HasPrefix(line, "This machine can run") {
			continue
		}
		result, _, _ := strings.Cut(line[column:], " ")
		results[result]++
		if hasFix := i+2 < len(lines) &&
			strings.HasPrefix(strings.TrimSpace(lines[i+2]), "fix: "); hasFix != (result != "ok") {
			t.Errorf("the line has a fix below it: %v\n%s\nwant %v", hasFix, line, result != "ok")
		}
	}
	if results["ok"] == 0 || len(results) > 3 {
		t.Errorf("the results are %v", results)
	}
	if want := min(results["fault"], 1); code != want {
		t.Errorf("it ends with %d, and the table has %d faults:\n%s", code, results["fault"], out)
	}
	if !strings.Contains(out, "none in "+filepath.Join(dir, "state")) {
		t.Errorf("there is no node, and it does not say so:\n%s", out)
	}

	asJSON, jsonCode := runDoctor(t, dir, "--state-dir", filepath.Join(dir, "state"), "-o", "json")
	var document struct {
		Findings []struct{ Check, Result string }
		Faults   int
	}
	if err := json.Unmarshal([]byte(asJSON), &document); err != nil {
		t.Fatalf("%v:\n%s", err, asJSON)
	}
	if jsonCode != min(document.Faults, 1) || len(document.Findings) < 20 {
		t.Errorf("it ends with %d and found\n%s", jsonCode, asJSON)
	}
}

func TestDoctorFindsWhatIsWrong(t *testing.T) {
	dir := install(t, obedient)
	config := filepath.Join(dir, "kubelet.yaml")
	if err := os.WriteFile(
		config,
		[]byte(
			"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncontainerRuntimeEndpoint: unix:///no/such/runtime.sock\n",
		),
		0o600,
	); err != nil {
		t.Fatal(err)
	}
	out, code := runDoctor(t, dir, "--state-dir", filepath.Join(dir, "state"), "--config", config)
	if code != 1 || !strings.Contains(out, "unix:///no/such/runtime.sock is not there") ||
		!strings.Contains(out, "containerRuntimeEndpoint in "+config) {
		t.Errorf("it ends with %d:\n%s\nwant 1, with %q and with %q",
			code, out, "unix:///no/such/runtime.sock is not there", "containerRuntimeEndpoint in "+config)
	}
}

func TestDoctorThatCannotRunEndsWith2(t *testing.T) {
	dir := install(t, obedient)
	for _, args := range []string{"--no-such-flag", "-o yaml", "--compose file.yaml", "--config /no/such/file"} {
		if out, code := runDoctor(t, dir, strings.Fields(args)...); code != 2 || out != "" {
			t.Errorf("quartet doctor %s: it ends with %d and prints %s, want 2 and an empty text", args, code, out)
		}
	}
}
