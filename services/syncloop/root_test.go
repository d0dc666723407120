package syncloop

import (
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	machineinfo "github.com/quartet-node/quartet/internal/machine"
	"github.com/quartet-node/quartet/test/require"
)

// insideEnv is set in the child process of a test that changes the root or the user of its process, which cannot be
// undone.
const insideEnv = "QUARTET_TEST_ROOT"

// TestPathsAreThoseOfTheMachineBelowTheHostRoot checks that absolute symbolic links of the machine are resolved below
// the host root.
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

// TestTheRootDirectoryIsASharedMountWhileThereArePods checks that the root directory becomes a shared mount of its own
// if the machine's mounts are private, that the mount stays as long as a pod has a directory, and that the end of a
// process without pods removes it. A mount of somebody else stays.
func TestTheRootDirectoryIsASharedMountWhileThereArePods(t *testing.T) {
	require.Root(t, "a mount namespace")
	base := t.TempDir()
	root := rootMount{dir: filepath.Join(base, "root"), file: filepath.Join(base, "mark"), boot: "b1", logger: slog.New(slog.DiscardHandler)}
	shared := func(want bool, when string) {
		at, err := machineinfo.This().MountOf(root.dir)
		if err != nil || machineinfo.IsShared(at) != want || (at.Mountpoint == root.dir) != want {
			t.Errorf("%s: the root directory lies on %+v (%v)", when, at, err)
		}
	}
	check := func(err error) {
		if err != nil {
			t.Error(err)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // It is never unlocked, so that the thread ends with the goroutine.
		check(unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS))
		check(unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""))
		check(root.share())
		shared(true, "after the start")
		pod := filepath.Join(root.dir, "pods", "uid")
		check(os.MkdirAll(pod, 0o700))
		check(root.unshare())
		shared(true, "after an end with a pod")
		check(root.share()) // the next process
		check(os.Remove(pod))
		check(root.unshare())
		shared(false, "after an end without pods")

		check(root.share())
		check(os.Remove(root.file))
		check(root.unshare())
		shared(true, "after an end beside a mount of somebody else's")
		check(os.WriteFile(root.file, []byte(rootMount{dir: root.dir, boot: "b0"}.mark()), 0o600))
		check(root.unshare())
		shared(true, "after an end beside a mount that was made since the last boot")
	}()
	<-done
}

// TestARootDirectoryThatCannotBeSharedIsNoFailure checks that a process without the right to mount runs without the
// mount and logs the missing capability.
func TestARootDirectoryThatCannotBeSharedIsNoFailure(t *testing.T) {
	if dir := os.Getenv(insideEnv); dir != "" {
		var log strings.Builder
		noError(t, rootMount{dir: dir, logger: slog.New(slog.NewTextHandler(&log, nil))}.share())
		if !strings.Contains(log.String(), "CAP_SYS_ADMIN") {
			t.Errorf("the log is %q, want text with %q", log.String(), "CAP_SYS_ADMIN")
		}
		return
	}
	require.Root(t, "changing the user of a process")
	dir := t.TempDir()
	for d := dir; d != os.TempDir(); d = filepath.Dir(d) {
		noError(t, os.Chmod(d, 0o777))
	}
	at, err := machineinfo.This().MountOf(dir)
	noError(t, err)
	if machineinfo.IsShared(at) {
		t.Skip("the mounts of this machine are shared")
	}
	exe := filepath.Join(dir, "test")
	self, err := os.Executable()
	noError(t, err)
	content, err := os.ReadFile(self)
	noError(t, err)
	noError(t, os.WriteFile(exe, content, 0o755))
	cmd := exec.Command(exe, "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), insideEnv+"="+dir)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
