package statedir

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/test/require"
)

func TestLockIsExclusivePerService(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	held, err := Lock(dir, "pleg")
	if err != nil {
		t.Fatal(err)
	}
	other, err := Lock(dir, "syncloop")
	if err != nil {
		t.Fatalf("another service is kept out: %v", err)
	}
	if err := other.Release(); err != nil {
		t.Fatal(err)
	}
	_, err = Lock(dir, "pleg")
	var heldErr *HeldError
	if !errors.As(err, &heldErr) {
		t.Fatalf("second lock: got %v, want a HeldError", err)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if h := heldErr.Holder; h.Service != "pleg" || h.PID != os.Getpid() || h.Host != host || h.Since.IsZero() {
		t.Errorf("holder = %+v, want pleg, pid %d, host %s and a time", h, os.Getpid(), host)
	}
	for _, want := range []string{"pleg with pid", " on " + host, " since 20", "pleg.lock", "stop that process", "--state-dir"} {
		if !strings.Contains(heldErr.Error(), want) {
			t.Errorf("error %q does not say %q", heldErr, want)
		}
	}
	if err := held.Release(); err != nil {
		t.Fatal(err)
	}
	again, err := Lock(dir, "pleg")
	if err != nil {
		t.Fatalf("after the release: %v", err)
	}
	if err := again.Release(); err != nil {
		t.Fatal(err)
	}
}

func TestLockSurvivesAFileThatSaysNothing(t *testing.T) {
	dir := t.TempDir()
	held, err := Lock(dir, "pleg")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := held.Release(); err != nil {
			t.Error(err)
		}
	}()
	if err := os.WriteFile(filepath.Join(dir, "pleg.lock"), []byte("not json"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Lock(dir, "pleg")
	want := fmt.Sprintf("pleg with pid %d:", os.Getpid())
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Fatalf("got %v, want an error with %q, which the kernel knows", err, want)
	}
}

// TestLockEndsWithItsProcess runs the test binary as a child that takes the lock and is killed.
func TestLockEndsWithItsProcess(t *testing.T) {
	if dir := os.Getenv("STATEDIR_TEST_HOLD"); dir != "" {
		if _, err := Lock(dir, "pleg"); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stdout.WriteString("locked\n"); err != nil {
			t.Fatal(err)
		}
		select {}
	}
	dir := t.TempDir()
	child := exec.Command(os.Args[0], "-test.run=^TestLockEndsWithItsProcess$")
	child.Env = append(os.Environ(), "STATEDIR_TEST_HOLD="+dir)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, len("locked\n"))
	if _, err := out.Read(buf); err != nil {
		t.Fatal(err)
	}
	_, err = Lock(dir, "pleg")
	var heldErr *HeldError
	if !errors.As(err, &heldErr) || heldErr.Holder.PID != child.Process.Pid {
		t.Errorf("while the child lives: got %v, want one that names pid %d", err, child.Process.Pid)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := child.Wait(); err == nil {
		t.Fatal("the child ended well, though killed")
	}
	held, err := Lock(dir, "pleg")
	if err != nil {
		t.Fatalf("after the child was killed: %v", err)
	}
	if err := held.Release(); err != nil {
		t.Fatal(err)
	}
}

func TestWriteFileAtomicReplacesWhole(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "checkpoint")
	for _, content := range []string{"first, and longer", "second"} {
		if err := WriteFileAtomic(path, []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != content {
			t.Errorf("content = %q, want %q", got, content)
		}
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != 0o640 {
		t.Errorf("mode = %v, want 0640", info.Mode())
	}
	onlyEntry(t, dir, "checkpoint")
}

func TestWriteFileAtomicLeavesNothingBehindWhenItFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "taken")
	if err := os.MkdirAll(filepath.Join(path, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	err := WriteFileAtomic(path, []byte("x"), 0o600)
	if err == nil || !strings.Contains(err.Error(), path) {
		t.Fatalf("got %v, want an error that names %s", err, path)
	}
	onlyEntry(t, dir, "taken")
}

func onlyEntry(t *testing.T, dir, name string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 1 || entries[0].Name() != name {
		t.Errorf("directory holds %v, want only %s", entries, name)
	}
}

// TestALockThatExistsIsTakenOnAReadOnlyDisk mounts a file system, whose errors have the kernel make it read-only in the
// field, and has it taken, held and found held as before.
func TestALockThatExistsIsTakenOnAReadOnlyDisk(t *testing.T) {
	require.Root(t, "a mount")
	dir := t.TempDir()
	require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	earlier := Self("pleg")
	earlier.PID, earlier.Started = 1, 1
	before, err := LockAs(dir, earlier)
	if err != nil {
		t.Fatal(err)
	}
	if err := before.Release(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	held, err := Lock(dir, "pleg")
	if err != nil {
		t.Fatalf("Lock() = %v, want the lock", err)
	}
	var other *HeldError
	if _, err := Lock(dir, "pleg"); !errors.As(err, &other) || other.Holder.PID != os.Getpid() {
		t.Errorf("a second Lock() = %v, want a HeldError with this process, which the kernel knows", err)
	}
	if err := held.Release(); err != nil {
		t.Error(err)
	}
	if _, err := Lock(dir, "syncloop"); err == nil || !strings.Contains(err.Error(), "mount it writable") {
		t.Errorf("Lock() of a service without a lock = %v, want an error with the remedy", err)
	}
}
