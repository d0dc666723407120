package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func TestArchiveRunsItsProgram(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "prog")
	if err := os.WriteFile(program, []byte("#!content"), 0o700); err != nil {
		t.Fatal(err)
	}
	var archives [][]byte
	for _, out := range []string{"a.tar", "b.tar"} {
		if err := run(program, "quartet.local/prog:1", filepath.Join(dir, out)); err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(filepath.Join(dir, out))
		if err != nil {
			t.Fatal(err)
		}
		archives = append(archives, content)
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("the same program gives two archives")
	}
	tag, err := name.NewTag("quartet.local/prog:1")
	if err != nil {
		t.Fatal(err)
	}
	img, err := tarball.ImageFromPath(filepath.Join(dir, "a.tar"), &tag)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(config.Config.Entrypoint, " "); got != "/prog" || config.OS != "linux" {
		t.Errorf("it runs %q on %q", got, config.OS)
	}
}

func TestANameWithoutATagIsRefused(t *testing.T) {
	if err := run("/bin/true", "prog", filepath.Join(t.TempDir(), "a.tar")); err == nil {
		t.Error("it was taken")
	}
}
