package e2e

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// TestDamagedStateHarmsNoPod damages each file of the state directory in one way after the other while the node is
// down. The node serves again each time, its pods run on in the same containers, a new pod starts, and a pod that has
// ended for good stays so as far as its record can be read.
func TestDamagedStateHarmsNoPod(t *testing.T) {
	place(t, "stays.yaml", withProbe(manifest("stays", 1, "sleep")))
	place(t, "late.yaml", strings.Replace(manifest("late", 1, "sleep"), "spec:\n", "spec:\n  activeDeadlineSeconds: 1\n", 1))
	before := containerIDs(await(t, "stays", "Ready", ready))
	await(t, "late", "overdue", overdue)
	for _, kind := range []struct {
		name   string
		damage func(content []byte) []byte
		// forgets is true if nothing can be read of the record of the overdue pod.
		forgets bool
	}{
		{"as it was", bytes.Clone, false},
		{"with a field of a later version", func(content []byte) []byte {
			return bytes.Replace(content, []byte("{"), []byte(`{"later-version": {"reason": ""}, `), 1)
		}, false},
		{"truncated", func(content []byte) []byte { return content[:len(content)-min(len(content), 3)] }, false},
		{"empty", func([]byte) []byte { return nil }, true},
		{"zeros", func(content []byte) []byte { return make([]byte, len(content)) }, true},
		{"garbage", func(content []byte) []byte { return bytes.Repeat([]byte("\xff}{\n"), 1+len(content)/4) }, true},
	} {
		// The processes of a node are found without the files that name them.
		damage(t, named(stateFiles(t), ".lock", ".pid"), kind.damage)
		quartet(t, "down", "--keep-pods")
		files := stateFiles(t)
		damage(t, files, kind.damage)
		if err := node.Up(t.Context()); err != nil {
			t.Fatalf("with all files %s, the node does not start: %v", kind.name, err)
		}
		t.Logf("started with %d files %s", len(files), kind.name)
		if after := containerIDs(await(t, "stays", "Ready", ready)); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("%s: the running pod was restarted: its containers went from %v to %v", kind.name, before, after)
		}
		name := "new-" + strings.ReplaceAll(kind.name, " ", "-")
		place(t, name+".yaml", manifest(name, 1, "sleep"))
		await(t, name, "Ready", ready)
		takeAway(t, name+".yaml")
		if !kind.forgets {
			p, err := pod(t.Context(), "late")
			if err != nil || p == nil || p.Status.Phase != v1.PodFailed {
				t.Errorf("%s: the overdue pod is %v, %v, want it %s", kind.name, p, err, v1.PodFailed)
			}
		}
		await(t, "late", "overdue", overdue) // also if it had to be started again
	}
}

func damage(t *testing.T, files []string, how func([]byte) []byte) {
	t.Helper()
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, how(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// named returns the files with one of the extensions.
func named(files []string, extensions ...string) []string {
	return slices.DeleteFunc(slices.Clone(files), func(file string) bool {
		return !slices.Contains(extensions, filepath.Ext(file))
	})
}

func overdue(p *v1.Pod) bool { return p.Status.Reason == "DeadlineExceeded" }

// withProbe adds a readiness probe, whose results syncloop keeps.
func withProbe(manifest string) string {
	return strings.Replace(manifest, `args: ["sleep"]`,
		`args: ["sleep"], readinessProbe: {exec: {command: ["/hello", "init"]}, periodSeconds: 1}`, 1)
}

// stateFiles returns the files in the state directory that the node writes for itself: not those of users, pods, the
// runtime and logs.
func stateFiles(t *testing.T) (files []string) {
	t.Helper()
	dir := node.Layout.StateDir()
	notOurs := []string{"applied", "claims", "logs", "manifests", "root", "runtime", "kubelet.yaml"}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name, _ := filepath.Rel(dir, path); slices.Contains(notOurs, name) {
			if entry.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		if entry.Type().IsRegular() && !strings.HasSuffix(path, ".damaged") {
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"evictions.json", "pleg-told", "nodestatus.json", "configmux-manifests.json"} {
		if !slices.Contains(files, filepath.Join(dir, name)) {
			t.Errorf("there is no %s among the files that are damaged: %v", name, files)
		}
	}
	return files
}
