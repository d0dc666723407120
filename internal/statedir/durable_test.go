package statedir

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMakeDirAndRemoveFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	for range 2 {
		if err := MakeDir(dir); err != nil {
			t.Fatalf("making it, and again: %v", err)
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != dirMode {
		t.Errorf("the directory is %v, %v; want one of its owner alone", info, err)
	}
	if err := MakeDir(filepath.Join(dir, "a", "b")); err == nil {
		t.Error("a directory was made in one that is not there")
	}
	file := filepath.Join(dir, "file")
	if err := WriteFileAtomic(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := RemoveFile(file); err != nil {
			t.Fatalf("removing it, and again: %v", err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("%d files are left, %v", len(left), err)
	}
}

func TestAFileIsReplacedWhole(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	for _, want := range []string{"old and long", "new"} {
		if err := ReplaceFile(file, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != want {
			t.Errorf("the file has %q, %v; want %q", got, err, want)
		}
	}
	if left, err := os.ReadDir(filepath.Dir(file)); err != nil || len(left) != 1 {
		t.Errorf("there are %d files, %v; want one", len(left), err)
	}
	if err := ReplaceFile(filepath.Join(file, "below"), nil, 0o600); err == nil {
		t.Error("a file was written below a file")
	}
}
