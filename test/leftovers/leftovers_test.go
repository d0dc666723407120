package leftovers_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/test/harness"
	"github.com/quartet-node/quartet/test/leftovers"
)

// name is in the name of everything that this test leaves behind on purpose.
const name = "quartet-left"

func requireRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		harness.Require(t, errors.New("mounts, cgroups and interfaces are root's to make: run the test as root"))
	}
}

// leave creates one object of each kind and returns the functions that remove them.
func leave(t *testing.T) map[string]func() error {
	t.Helper()
	undo := map[string]func() error{}
	mount := t.TempDir()
	if err := unix.Mount("tmpfs", mount, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	undo["mount "+mount+" (tmpfs)"] = func() error { return unix.Unmount(mount, 0) }

	if err := bridge(unix.SIOCBRADDBR); err != nil {
		t.Fatal(err)
	}
	undo["interface "+name] = func() error { return bridge(unix.SIOCBRDELBR) }

	parent := "/sys/fs/cgroup"
	if _, err := os.Stat(parent + "/cgroup.controllers"); err != nil {
		parent += "/memory"
	}
	cgroup := filepath.Join(parent, name)
	if err := os.Mkdir(cgroup, 0o700); err != nil {
		t.Fatal(err)
	}
	undo["cgroup "+strings.TrimPrefix(cgroup, "/sys/fs/cgroup")] = func() error { return os.Remove(cgroup) }

	cmd := exec.Command("sleep", "300")
	cmd.Args[0] = "/some/where/pleg"
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	undo["process pleg 300"] = func() error {
		if err := cmd.Process.Kill(); err != nil {
			return err
		}
		_, err := cmd.Process.Wait()
		return err
	}
	return undo
}

// bridge creates or removes a bridge with that name.
func bridge(request uintptr) error {
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(socket) }()
	text, err := unix.BytePtrFromString(name)
	if err != nil {
		return err
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), request, uintptr(unsafe.Pointer(text))); errno != 0 {
		return errno
	}
	return nil
}

func run(t *testing.T, program string, args ...string) {
	t.Helper()
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
}

// ours returns the lines of this test's objects, because other tests may create objects meanwhile.
func ours(lines []string) []string {
	return slices.DeleteFunc(lines, func(line string) bool {
		return !strings.Contains(line, name) && !strings.Contains(line, "/some/where/pleg") && !strings.Contains(line, "TestWhatIsLeft")
	})
}

func take(t *testing.T) leftovers.Snapshot {
	t.Helper()
	s, err := leftovers.Take()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestWhatIsLeftIsNamedAndWhatIsRemovedIsNot(t *testing.T) {
	requireRoot(t)
	before := take(t)
	undo := leave(t)
	left := ours(take(t).Since(before))
	if len(left) != len(undo) {
		t.Errorf("of %d things these are seen: %q", len(undo), left)
	}
	for what, remove := range undo {
		kind, rest, _ := strings.Cut(what, " ")
		if kind != "process" && !slices.Contains(left, kind+" "+rest) {
			t.Errorf("%s is not seen", what)
		}
		if err := remove(); err != nil {
			t.Errorf("removing %s: %v", what, err)
		}
	}
	if left := ours(take(t).Since(before)); len(left) != 0 {
		t.Errorf("after everything is removed there is still %q", left)
	}
}

func TestARuleOfThePacketFilterIsSeen(t *testing.T) {
	requireRoot(t)
	if _, err := exec.LookPath("iptables"); err != nil {
		harness.Require(t, errors.New("iptables is missing: apt-get install iptables"))
	}
	before := take(t)
	run(t, "iptables", "-w", "-t", "nat", "-N", name)
	left := ours(take(t).Since(before))
	run(t, "iptables", "-w", "-t", "nat", "-X", name)
	if want := []string{"rule nat: chain " + name + " -"}; !slices.Equal(left, want) {
		t.Errorf("got %q, want %q", left, want)
	}
}
