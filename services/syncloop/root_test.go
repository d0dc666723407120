package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quartet-node/quartet/test/require"
)

// insideEnv tells the test that it is the process whose root is changed: that cannot be undone, so it has one of its own.
const insideEnv = "QUARTET_TEST_ROOT"

// TestPathsAreThoseOfTheMachineBelowTheHostRoot: links that are absolute on the machine are followed as the machine does.
func TestPathsAreThoseOfTheMachineBelowTheHostRoot(t *testing.T) {
	if dir := os.Getenv(insideEnv); dir != "" {
		noError(t, enterRoot(dir))
		noError(t, os.WriteFile("/link/file", []byte("here"), 0o600))
		return
	}
	require.Root(t, "changing the root of a process")
	root := t.TempDir()
	noError(t, os.Mkdir(filepath.Join(root, "data"), 0o700))
	noError(t, os.Symlink("/data", filepath.Join(root, "link")))
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), insideEnv+"="+root)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got, err := os.ReadFile(filepath.Join(root, "data", "file")); err != nil || string(got) != "here" {
		t.Errorf("the file is not where the machine has it: %q, %v", got, err)
	}
}

func TestAHostRootThatIsNotThereSaysWhatToMount(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "host")
	if err := enterRoot(dir); err == nil || !strings.Contains(err.Error(), "--host-root "+dir) || !strings.Contains(err.Error(), "CAP_SYS_CHROOT") {
		t.Errorf("the error is %v", err)
	}
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
