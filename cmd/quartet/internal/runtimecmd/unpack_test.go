package runtimecmd

import (
	"os"
	"path/filepath"
	"testing"
)

// TestUnpackReplacesWhatIsThereAndNotWhatRuns: a running shim keeps its program.
func TestUnpackReplacesWhatIsThereAndNotWhatRuns(t *testing.T) {
	image, to := t.TempDir(), filepath.Join(t.TempDir(), "dist")
	write := func(content string) {
		t.Helper()
		for _, path := range []string{"quartet", "runtime/runc", "runtime/images/pause.tar"} {
			path = filepath.Join(image, path)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		files := map[string]string{filepath.Join(image, "quartet"): "quartet", filepath.Join(image, "runtime"): "."}
		if err := unpack(files, to); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	running, err := os.Open(filepath.Join(to, "runc"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = running.Close() })
	write("second")
	for _, path := range []string{"quartet", "runc", "images/pause.tar"} {
		info, err := os.Stat(filepath.Join(to, path))
		if err != nil {
			t.Fatal(err)
		}
		if content, err := os.ReadFile(filepath.Join(to, path)); err != nil || string(content) != "second" {
			t.Errorf("%s is %q, %v, want %q", path, content, err, "second")
		}
		if info.Mode().Perm() != 0o700 {
			t.Errorf("%s has mode %v, want Perm 0o700", path, info.Mode())
		}
	}
	old := make([]byte, 5)
	if _, err := running.Read(old); err != nil || string(old) != "first" {
		t.Errorf("what runs has become %q, %v, want %q", old, err, "first")
	}
	if left, err := filepath.Glob(filepath.Join(to, "*.new")); err != nil || len(left) > 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
}

func TestUnpackOfAnImageWithoutARuntimeFails(t *testing.T) {
	if err := unpack(map[string]string{filepath.Join(t.TempDir(), "runtime"): "."}, t.TempDir()); err == nil {
		t.Error("it goes well")
	}
}
