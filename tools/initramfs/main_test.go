package main

import (
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/u-root/u-root/pkg/cpio"
)

// contents returns the files of an archive.
func contents(t *testing.T, path string) *cpio.Archive {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	archive, err := cpio.ArchiveFromReader(cpio.Newc.Reader(file))
	if err != nil {
		t.Fatal(err)
	}
	return archive
}

func TestTheArchiveHasTheFilesAndTheirDirectories(t *testing.T) {
	dir := t.TempDir()
	source, out := filepath.Join(dir, "source"), filepath.Join(dir, "out")
	if err := os.WriteFile(source, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run([]string{"-out", out, "-file", source + "=/init", "-file", source + "=/a/b/c"}, io.Discard); err != nil {
		t.Fatal(err)
	}
	archive := contents(t, out)
	for _, name := range []string{"init", "a/b/c"} {
		record, found := archive.Files[name]
		if !found || record.Mode&0o777 != programMode || record.FileSize != uint64(len("content")) {
			t.Errorf("%s is %+v", name, record)
		}
	}
	if _, found := archive.Files["a/b"]; !found {
		t.Errorf("there are %v", archive.Order)
	}
}

func TestADirectoryHasTheFiles(t *testing.T) {
	source, dir := filepath.Join(t.TempDir(), "source"), t.TempDir()
	if err := os.WriteFile(source, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run([]string{"-dir", dir, "-file", source + "=/a/b/c"}, io.Discard); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(dir, "a", "b", "c"))
	if err != nil || string(content) != "content" {
		t.Errorf("the file has %q, %v", content, err)
	}
}

func TestAProgramHasItsLibraries(t *testing.T) {
	program, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	if err := addProgram(files, program); err != nil {
		t.Fatal(err)
	}
	isLoader := func(place string) bool { return strings.Contains(filepath.Base(place), "ld-") }
	if files[program] != program || len(files) < 2 || !slices.ContainsFunc(slices.Collect(maps.Keys(files)), isLoader) {
		t.Errorf("there are %v", files)
	}
}

func TestWrongFlagsAreRefused(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	for _, args := range [][]string{
		{}, {"-out", out}, {"-file", "a=/b"}, {"-out", out, "-file", "a"}, {"-out", out, "-file", "a=b"},
		{"-out", out, "-program", "sh"}, {"-out", out, "-file", "/no/such/file=/a"}, {"-out", out, "-file", "/dev/null=/a", "more"},
		{"-out", out, "-dir", out, "-file", "/dev/null=/a"}, {"-dir", out}, {"-dir", out, "-file", "/no/such/file=/a"},
	} {
		if err := run(args, io.Discard); err == nil {
			t.Errorf("%v: it was accepted", args)
		}
	}
}
