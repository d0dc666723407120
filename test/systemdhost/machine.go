package systemdhost

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quartet-node/quartet/test/require"
)

const (
	// AdminUnits is the directory of a Machine's units that an administrator writes.
	AdminUnits = "/etc/systemd/system"
	// hostname is the variable with the host name for the script.
	hostname = "QUARTET_SYSTEMD_HOSTNAME"
	// bootTimeout is the time limit until systemd answers. It takes less than a second on an idle machine.
	bootTimeout = time.Minute
	// cgroupsTimeout is the time limit for the removal of a machine's cgroups.
	cgroupsTimeout = 2 * time.Minute
	// poll is the time between two checks whether it answers.
	poll = 20 * time.Millisecond
	// link is the network interface that Connect gives a machine.
	link = "eth0"
)

// Machine is a systemd that runs until the test ends. The test drives it from outside, as an administrator would, by
// commands and files. Several machines can be connected. Its files are this machine's, with these exceptions: /var is
// empty, and on this machine's disk; /etc, /opt, /root, /tmp and /usr are writable; /etc/systemd/system has no unit.
// Its host name, processes, mounts, network and cgroups are its own. The output of a unit is in Log.
type Machine struct {
	// Name is the host name.
	Name string

	host   *host
	leader int
}

// Boot starts a machine.
func Boot(t testing.TB, name string) *Machine {
	t.Helper()
	require.Root(t, "systemd in namespaces of its own")
	require.NoError(t, missing())
	for _, command := range []string{"nsenter", "ip"} {
		if _, err := exec.LookPath(command); err != nil {
			require.NoError(t, fmt.Errorf("%w: apt-get install util-linux iproute2", err))
		}
	}
	// not t.TempDir: the path has to be short, because it contains sockets
	dir, err := os.MkdirTemp("", "quartet-machine-")
	if err != nil {
		t.Fatal(err)
	}
	h := &host{dir: dir, name: fmt.Sprintf("quartet-systemd-%d-%s", os.Getpid(), name)}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("systemdhost: %v", err)
		}
	})
	h.fill(t)
	h.writeUnits(t, targets())
	t.Cleanup(func() { h.removeCgroups(t) })
	h.makeCgroups(t)

	m := &Machine{Name: name, host: h}
	ctx, stop := context.WithCancel(context.Background())
	ended, outcome := make(chan struct{}), error(nil)
	go func() {
		defer close(ended)
		outcome = h.boot(ctx, name)
	}()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("systemdhost: the log of systemd of %s:\n%s", name, h.log())
		}
		stop()
		<-ended
	})
	deadline := time.Now().Add(bootTimeout)
	for {
		if m.leader = h.leader(); m.leader != 0 && m.answers(t) {
			break
		}
		select {
		case <-ended:
			t.Fatalf("systemdhost: %s has ended: %v", name, outcome)
		case <-time.After(poll):
		}
		if time.Now().After(deadline) {
			t.Fatalf("systemdhost: %s is not up after %v", name, bootTimeout)
		}
	}
	m.Run(t, "ip", "link", "set", "lo", "up")
	return m
}

// boot runs systemd until ctx ends.
func (h *host) boot(ctx context.Context, name string) error {
	args := append([]string{"-euc", enter, "enter", h.name, h.dir, "unit=multi-user.target\n" + inside + machine + become}, h.hierarchies...)
	cmd := exec.CommandContext(ctx, "sh", args...)
	cmd.Env = append(os.Environ(), variable+"=", hostname+"="+name, "container=quartet",
		"SYSTEMD_UNIT_PATH=/run/systemd/system.control:/run/systemd/transient:"+AdminUnits+":"+Units,
		"SYSTEMD_GENERATOR_PATH=/run/systemd/none", "SYSTEMD_LOG_TARGET=kmsg", "SYSTEMD_LOG_LEVEL=info")
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.WaitDelay = 5 * time.Second // after this time its output is closed
	// A test that is killed takes it along: Pdeathsig refers to the thread that has started the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("systemd: %w\n%s", err, output.String())
	}
	return nil
}

// leader returns the process id of systemd on this machine; 0 when it has not started yet.
func (h *host) leader() int {
	content, err := os.ReadFile(filepath.Join(h.dir, "leader"))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		return 0
	}
	comm, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "comm"))
	if err != nil || string(comm) != "systemd\n" { // it is still the script
		return 0
	}
	return pid
}

// answers reports whether systemd accepts commands and has completed its start.
func (m *Machine) answers(t testing.TB) bool {
	return m.Command(t.Context(), "systemctl", "is-active", "--quiet", "multi-user.target").Run() == nil
}

// Command returns a command in the machine, run by root at its root directory, with this process's environment.
func (m *Machine) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--target", strconv.Itoa(m.leader),
		"--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root", "--wd=/", "--", name}, args...)...)
	cmd.Env = append(os.Environ(), "SYSTEMD_UNIT_PATH=", "TMPDIR=/tmp")
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// Run runs a command, which must succeed, and returns its standard output.
func (m *Machine) Run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := m.Try(t, name, args...)
	if err != nil {
		t.Fatalf("%s: %s %s: %v\n%s", m.Name, name, strings.Join(args, " "), err, out)
	}
	return out
}

// Try runs a command and returns its standard output. The error includes its standard error.
func (m *Machine) Try(t testing.TB, name string, args ...string) (string, error) {
	t.Helper()
	cmd := m.Command(t.Context(), name, args...)
	var output bytes.Buffer
	cmd.Stderr = &output
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, output.String())
	}
	return strings.TrimSpace(string(out)), err
}

// Path returns the path of a file of the machine as seen from outside. An absolute symbolic link in it leads elsewhere.
func (m *Machine) Path(file string) string {
	return filepath.Join("/proc", strconv.Itoa(m.leader), "root", file)
}

// WriteFile writes a file of the machine, and creates its directory.
func (m *Machine) WriteFile(t testing.TB, file, content string) {
	t.Helper()
	at := m.Path(file)
	if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(content), 0o644)); err != nil {
		t.Fatalf("systemdhost: %s: %v", m.Name, err)
	}
}

// Log returns the end of the output of a unit.
func (m *Machine) Log(unit string) string {
	log, err := os.ReadFile(filepath.Join(m.host.dir, "logs", unit+".log"))
	if err != nil {
		return err.Error()
	}
	return string(log[max(0, len(log)-unitLogTail):])
}

// CopyFrom copies a file of this machine to the machine, with its mode.
func (m *Machine) CopyFrom(t testing.TB, source, file string) {
	t.Helper()
	if err := copyFile(source, m.Path(file)); err != nil {
		t.Fatalf("systemdhost: %s: %v", m.Name, err)
	}
}

func copyFile(source, target string) (err error) {
	in, err := os.Open(filepath.Clean(source))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	out, err := os.OpenFile(filepath.Clean(target), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// Connect connects two machines by a virtual cable. Each then has the interface eth0 with its address, and a default
// route to the other one. The network of this machine is not involved.
func Connect(t testing.TB, a *Machine, addressOfA netip.Prefix, b *Machine, addressOfB netip.Prefix) {
	t.Helper()
	a.Run(t, "ip", "link", "add", link, "type", "veth", "peer", "name", "peer0")
	// ip resolves the process id in its own PID namespace, and that of machine a has no process of machine b. So the
	// command runs outside, with only the network of a.
	out, err := exec.CommandContext(t.Context(), "nsenter", "--target", strconv.Itoa(a.leader), "--net", "--",
		"ip", "link", "set", "peer0", "netns", strconv.Itoa(b.leader), "name", link).CombinedOutput()
	if err != nil {
		t.Fatalf("systemdhost: connect %s and %s: %v\n%s", a.Name, b.Name, err, out)
	}
	a.address(t, addressOfA, addressOfB.Addr())
	b.address(t, addressOfB, addressOfA.Addr())
}

func (m *Machine) address(t testing.TB, own netip.Prefix, gateway netip.Addr) {
	t.Helper()
	m.Run(t, "ip", "address", "add", own.String(), "dev", link)
	m.Run(t, "ip", "link", "set", link, "up")
	m.Run(t, "ip", "route", "add", "default", "via", gateway.String())
}
