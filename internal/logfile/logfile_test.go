package logfile_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/quartet-node/quartet/internal/logfile"
)

func appendTo(t *testing.T, path, text string) {
	t.Helper()
	file, err := logfile.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString(text); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestASmallLogIsContinued(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	appendTo(t, path, "one\n")
	appendTo(t, path, "two\n")
	if got, err := os.ReadFile(path); err != nil || string(got) != "one\ntwo\n" {
		t.Errorf("ReadFile() = %q (%v), want %q", got, err, "one\ntwo\n")
	}
}

func TestALargeLogIsRotated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	appendTo(t, path, "old\n")
	if err := os.Truncate(path, logfile.MaxBytes); err != nil {
		t.Fatal(err)
	}
	appendTo(t, path, "new\n")
	if got, err := os.ReadFile(path); err != nil || string(got) != "new\n" {
		t.Errorf("ReadFile() = %q (%v), want %q", got, err, "new\n")
	}
	if info, err := os.Stat(path + ".1"); err != nil || info.Size() != logfile.MaxBytes {
		t.Errorf("the old log is gone: %v", err)
	}
}
