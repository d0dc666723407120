package statedir

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/test/require"
)

const longID = "3f2a9c0d1e4b5a69788796a5b4c3d2e1f00112233445566778899aabbccddeef"

func TestTheContainerOfAProcessIsFound(t *testing.T) {
	for name, tc := range map[string]struct{ mountinfo, cgroups, want string }{
		"docker":                      {mountinfo: "1410 1401 254:1 /var/lib/docker/containers/" + longID + "/hostname /etc/hostname rw,relatime - ext4 /dev/vda1 rw\n", want: "3f2a9c0d1e4b"},
		"docker on a disk of its own": {mountinfo: "1410 1401 254:1 /containers/" + longID + "/resolv.conf /etc/resolv.conf rw - ext4 /dev/vdb rw\n", want: "3f2a9c0d1e4b"},
		"podman":                      {mountinfo: "9 8 0:5 /storage/overlay-containers/" + longID + "/userdata/hosts /etc/hosts rw - tmpfs tmpfs rw\n", want: "3f2a9c0d1e4b"},
		"a machine with containers": {
			mountinfo: "77 30 0:60 / /var/lib/docker/containers/" + longID + "/mounts/shm rw - tmpfs shm rw\n1 1 8:1 /etc/hosts /etc/hosts rw - ext4 /dev/sda rw\n",
			cgroups:   "0::/system.slice/docker.service\n",
		},
		"cgroups of version 1": {cgroups: "12:memory:/docker/" + longID + "\n1:name=systemd:/docker/" + longID + "\n", want: "3f2a9c0d1e4b"},
		"cgroups of systemd":   {cgroups: "0::/system.slice/docker-" + longID + ".scope\n", want: "3f2a9c0d1e4b"},
		"nothing":              {mountinfo: "short\n", cgroups: "0::/\n"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			must(t, os.Mkdir(filepath.Join(dir, "7"), 0o755))
			must(t, os.WriteFile(filepath.Join(dir, "7/mountinfo"), []byte(tc.mountinfo), 0o600))
			must(t, os.WriteFile(filepath.Join(dir, "7/cgroup"), []byte(tc.cgroups), 0o600))
			proc, err := procfs.NewFS(dir)
			must(t, err)
			process, err := proc.Proc(7)
			must(t, err)
			if got := containerID(process, true); got != tc.want {
				t.Errorf("container %q, want %q", got, tc.want)
			}
		})
	}
}

// TestAHeldLockNamesItsHolderAndTheRemedy checks the messages for users of containers, who see one of two.
func TestAHeldLockNamesItsHolderAndTheRemedy(t *testing.T) {
	dir := t.TempDir()
	held, err := Lock(dir, "syncloop")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := held.Release(); err != nil {
			t.Error(err)
		}
	}()
	path := filepath.Join(dir, "syncloop.lock")
	for name, tc := range map[string]struct{ file, want string }{
		"in a container": {
			`{"service":"syncloop","pid":1,"host":"node-1","container":"3f2a9c0d1e4b","since":"2026-03-01T10:00:00Z"}`,
			"is locked by syncloop with pid 1 on node-1 in container 3f2a9c0d1e4b since 2026-03-01T10:00:00Z: stop that container (docker stop 3f2a9c0d1e4b), or use another --state-dir",
		},
		"of an older version":     {`{"service":"syncloop","pid":4711}`, "is locked by syncloop with pid 4711: stop that process, or use another --state-dir"},
		"that is no file of ours": {"not json", fmt.Sprintf("is locked by syncloop with pid %d: stop that process, or use another --state-dir", os.Getpid())},
		"that a stranger wrote": {
			`{"service":"sync\u001b[31mloop","pid":1,"container":"; rm -rf"}`, "is locked by sync[31mloop with pid 1: stop that process, or",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(path, []byte(tc.file), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := Lock(dir, "syncloop"); err == nil || !strings.Contains(err.Error(), path+" "+tc.want) {
				t.Errorf("got %v\nwant %q in it", err, tc.want)
			}
		})
	}
}

func TestTheLastHolderIsKnownWithoutTakingTheLock(t *testing.T) {
	dir := t.TempDir()
	if holder, err := LastHolder(dir, "pleg"); err != nil || holder != (Holder{}) {
		t.Errorf("before anyone: %+v, %v", holder, err)
	}
	held, err := Lock(dir, "pleg")
	if err != nil {
		t.Fatal(err)
	}
	if err := held.Release(); err != nil {
		t.Fatal(err)
	}
	if holder, err := LastHolder(
		dir,
		"pleg",
	); err != nil || holder.PID != os.Getpid() ||
		time.Since(holder.Since) > time.Hour {
		t.Errorf("LastHolder(pleg) = %+v, %v, want PID %v and Since at most %v", holder, err, os.Getpid(), time.Hour)
	}
}

// TestAStateDirectoryThatCannotBeWrittenSaysWhatToDo runs the test binary as another user.
func TestAStateDirectoryThatCannotBeWrittenSaysWhatToDo(t *testing.T) {
	if dir := os.Getenv("STATEDIR_TEST_LOCK"); dir != "" {
		if _, err := Lock(dir, "pleg"); err != nil {
			t.Fatal(err)
		}
		return
	}
	require.Root(t, "becoming another user, and mounting,")
	// The binary must be reachable for the other user, too.
	root, err := os.MkdirTemp("/tmp", "statedir")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { must(t, os.RemoveAll(root)) })
	must(t, os.Chmod(root, 0o755))
	binary := filepath.Join(root, "test")
	content, err := os.ReadFile(os.Args[0])
	must(t, err)
	must(t, os.WriteFile(binary, content, 0o755))
	of := func(name string) string { return filepath.Join(root, name) }
	must(t, os.Mkdir(of("roots"), 0o755))
	must(t, os.Mkdir(of("left"), 0o777))
	must(t, os.Chmod(of("left"), 0o777))
	must(t, os.WriteFile(of("left/pleg.lock"), nil, 0o600))
	must(t, os.Mkdir(of("readonly"), 0o777))
	must(t, unix.Mount("none", of("readonly"), "tmpfs", unix.MS_RDONLY, "size=4k,mode=777"))
	t.Cleanup(func() { must(t, unix.Unmount(of("readonly"), 0)) })
	for dir, want := range map[string]string{
		of("roots"):     "permission denied: user 10241 may not write in it: chown 10241 " + of("roots"),
		of("roots/new"): "permission denied: user 10241 may not make it: make it as root (install -d -m 0700 -o 10241 " + of("roots/new") + ")",
		of("left"):      "permission denied: user 10241 may not write what another user left: chown 10241 " + of("left/pleg.lock"),
		of("readonly"):  "read-only file system: it is on a read-only file system: mount it writable, or name another with --state-dir",
	} {
		cmd := exec.Command(binary, "-test.run=^TestAStateDirectoryThatCannotBeWrittenSaysWhatToDo$")
		cmd.Env = append(os.Environ(), "STATEDIR_TEST_LOCK="+dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 10241, Gid: 10240}}
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "the state directory "+dir+" cannot be used") ||
			!strings.Contains(string(out), want) {
			t.Errorf("%s: %v, %s\nwant %q", dir, err, out, want)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
