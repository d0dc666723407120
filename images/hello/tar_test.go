package main

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestWhatIsPackedIsUnpacked uses the command lines of "kubectl cp".
func TestWhatIsPackedIsUnpacked(t *testing.T) {
	from, to := filepath.Join(t.TempDir(), "data"), t.TempDir()
	if err := os.MkdirAll(filepath.Join(from, "deep"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(from, "deep", "file"), []byte("content"), 0o640); err != nil {
		t.Fatal(err)
	}
	var packed, output bytes.Buffer
	if code := archive([]string{"cf", "-", from}, nil, &packed, &output); code != 0 {
		t.Fatalf("archive() = %d: %s, want 0", code, &output)
	}
	if code := archive([]string{"--no-same-owner", "-xmf", "-", "-C", to}, &packed, nil, &output); code != 0 {
		t.Fatalf("archive() = %d: %s, want 0", code, &output)
	}
	got, err := os.ReadFile(filepath.Join(to, from, "deep", "file"))
	if err != nil || string(got) != "content" {
		t.Errorf("ReadFile() = %q, %v, want %q", got, err, "content")
	}
	if code := archive([]string{"cf", "-", filepath.Join(from, "none")}, nil, &packed, &output); code == 0 {
		t.Error("what is not there was packed")
	}
	if code := archive([]string{"tf", "-"}, nil, &packed, &output); code != usageCode {
		t.Errorf("a command line that makes no sense ends with %d", code)
	}
}

func TestNothingIsMadeOutsideOfTheDirectory(t *testing.T) {
	var evil, output bytes.Buffer
	w := tar.NewWriter(&evil)
	if err := w.WriteHeader(&tar.Header{Name: "../out", Typeflag: tar.TypeReg, Mode: 0o600}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "in")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if code := archive([]string{"-xmf", "-", "-C", dir}, &evil, nil, &output); code == 0 {
		t.Error("it was unpacked")
	}
	if _, err := os.Stat(filepath.Join(dir, "..", "out")); err == nil {
		t.Error("there is a file outside")
	}
}
