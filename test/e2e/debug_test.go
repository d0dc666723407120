package e2e

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/layout"
)

// TestEachPartIsLookedIntoWhileItRuns uses every command of quartet debug on the real processes.
func TestEachPartIsLookedIntoWhileItRuns(t *testing.T) {
	for _, service := range layout.Services() {
		part := string(service)
		if out := quartet(t, "debug", part, "log-level", "4", "--for", "10m"); !strings.HasPrefix(out, "4 for another ") {
			t.Errorf("%s: the log level is %s", part, out)
		}
		if out := quartet(t, "debug", part, "log-level", "configured"); out != "0, as configured\n" {
			t.Errorf("%s: the log level is %s", part, out)
		}
		file := filepath.Join(t.TempDir(), "profile")
		for _, kind := range []string{"cpu", "heap", "mutex", "trace"} {
			args := []string{"debug", part, "profile", kind, "-o", file}
			if kind != "heap" {
				args = append(args, "--seconds", "1")
			}
			if out := quartet(t, args...); !strings.Contains(out, "go tool ") {
				t.Errorf("%s: %s", part, out)
			}
			if info, err := os.Stat(file); err != nil || info.Size() == 0 {
				t.Errorf("%s: no profile %s: %v", part, kind, err)
			}
		}
		if out := quartet(t, "debug", part, "goroutines"); !strings.Contains(out, "quartet/internal/debugapi") {
			t.Errorf("%s: its goroutines are %s", part, out)
		}
		if out := quartet(t, "debug", part, "gc"); !strings.HasPrefix(out, "heap ") {
			t.Errorf("%s: %s", part, out)
		}
	}
	if out := quartet(t, "debug", "pleg", "relist"); !strings.HasPrefix(out, "The runtime was listed at ") {
		t.Errorf("relist: %s", out)
	}
	if out := quartet(t, "get", "images"); !strings.Contains(out, image) {
		t.Errorf("the images are %s", out)
	}
}

// TestAnAdministratorEvictsAPod: it has ended, and does not start again.
func TestAnAdministratorEvictsAPod(t *testing.T) {
	place(t, "evicted.yaml", manifest("evicted", 1, "sleep"))
	await(t, "evicted", "running", func(p *v1.Pod) bool { return p != nil && p.Status.Phase == v1.PodRunning })
	quartet(t, "evict", "e2e/evicted", "--reason", "DiskReplaced", "--message", "A new disk.")
	await(t, "evicted", "evicted", func(p *v1.Pod) bool {
		return p != nil && p.Status.Phase == v1.PodFailed && p.Status.Reason == "DiskReplaced" &&
			p.Status.Message == "A new disk."
	})
}

// TestASupportBundleOfANode has something of each part, and not the environment of a pod.
func TestASupportBundleOfANode(t *testing.T) {
	const secret = "tr0ub4dor-and-3"
	place(t, "bundled.yaml", strings.Replace(manifest("bundled", 1, "sleep"),
		"name: main,", "name: main, env: [{name: LOGIN, value: "+secret+"}],", 1))
	await(t, "bundled", "running", func(p *v1.Pod) bool { return p != nil && p.Status.Phase == v1.PodRunning })
	path := filepath.Join(t.TempDir(), "bundle.tar.gz")
	quartet(t, "support-bundle", "-o", path)
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // it was only read
	plain, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for archive := tar.NewReader(plain); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(content), secret) {
			t.Errorf("%s has the environment of a pod:\n%s", header.Name, content)
		}
		files[strings.TrimPrefix(header.Name, "quartet-support/")] = string(content)
	}
	want := map[string]string{
		"status/pods.txt": "bundled", "status/node.txt": "Ready", "status/sources.txt": "file", "metrics.txt": "quartet_up",
		"configuration/kubelet.yaml": "staticPodPath", "logs/node.log": "serving", "doctor.txt": "kernel",
	}
	for _, service := range layout.Services() {
		want["processes/"+string(service)+"/goroutines.txt"] = "goroutine "
		want["processes/"+string(service)+"/process.txt"] = "--state-dir="
		want["processes/"+string(service)+"/log-level.txt"] = "as configured"
		want["processes/"+string(service)+"/health.txt"] = ""
	}
	for name, text := range want {
		if content, has := files[name]; !has || !strings.Contains(content, text) {
			t.Errorf("%s has not %q:\n%s", name, text, content)
		}
	}
}
