package machine

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/fsnotify/fsnotify"
)

// tcp returns a line of /proc/net/tcp.
func tcp(address string, port int, state string, inode int) string {
	return fmt.Sprintf(
		"   0: %s:%04X 00000000:0000 %s 00000000:00000000 00:00000000 00000000     0        0 %d 1 0000 100 0 0 10 0\n",
		address,
		port,
		state,
		inode,
	)
}

func TestPort(t *testing.T) {
	const head = "  sl  local_address rem_address   st\n"
	processes := []Process{
		{PID: 1, Name: "systemd", Sockets: []uint64{80, 10, 71}}, {PID: 6, Name: "quartet", Sockets: []uint64{80}},
		{PID: 7, Name: "kubelet", Sockets: []uint64{70, 71}}, {PID: 8, Name: "syncloop", Sockets: []uint64{80}},
	}
	check := func(m Machine) Finding {
		return m.Port(10255, "the read-only API", "set readOnlyPort", processes, func(p Process) bool { return p.PID == 8 })
	}
	listening := func(line string) files { return files{"proc/net/tcp": head + line} }
	run(t, check, []fileCase{
		{"free", listening(tcp("0100007F", 10250, "0A", 70)), OK, []string{"free"}},
		{"connected and not listening", listening(tcp("0100007F", 10255, "01", 70)), OK, []string{"free"}},
		{"on another address", listening(tcp("0200000A", 10255, "0A", 70)), OK, []string{"free"}},
		{"held by who it is for", listening(tcp("0100007F", 10255, "0A", 80)), OK, []string{"syncloop, pid 8"}},
		{
			"held by another",
			listening(tcp("00000000", 10255, "0A", 71)),
			Fault,
			[]string{"kubelet, pid 7", "end pid 7, or set readOnlyPort"},
		},
		{
			"kept for one that is away",
			listening(tcp("00000000", 10255, "0A", 10)),
			Fault,
			[]string{"systemd, pid 1, holds it", "systemctl status", "or set readOnlyPort"},
		},
		{
			"held by nobody that may be seen",
			listening(tcp("0100007F", 10255, "0A", 90)),
			Fault,
			[]string{"ss -ltnp sport = :10255"},
		},
		{
			"held on all addresses of IPv6",
			listening("").and(files{"proc/net/tcp6": head + tcp(strings.Repeat("0", 32), 10255, "0A", 70)}),
			Fault,
			[]string{"kubelet"},
		},
		{"no proc", files{}, Warning, []string{"cannot be determined"}},
	})
}

func closeAtEnd(t *testing.T, c io.Closer) {
	t.Helper()
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// This process itself: its name, user, listening socket and inotify instance are found in the real /proc.
func TestProcessesOfThisMachine(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, listener)
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, watcher)
	if err := watcher.Add(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	m := This()
	processes, err := m.Processes()
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	expect(
		t,
		m.Port(port, "the test", "nothing", processes, func(p Process) bool { return p.PID == os.Getpid() }),
		OK,
		strconv.Itoa(os.Getpid()),
	)
	expect(
		t,
		m.Port(port, "the test", "nothing", processes, func(Process) bool { return false }),
		Fault,
		"end pid "+strconv.Itoa(os.Getpid()),
	)
	for _, p := range processes {
		if p.PID != os.Getpid() {
			continue
		}
		if p.UID != uint32(os.Geteuid()) || p.Inotify < 1 || p.Watches < 1 || p.Args[0] != os.Args[0] {
			t.Errorf("this process is read as %+v", p)
		}
		return
	}
	t.Error("this process is not found")
}

func TestKubelet(t *testing.T) {
	const ours = "unix:///run/containerd/containerd.sock"
	kubelet := func(args ...string) []Process {
		return []Process{
			{PID: 1, Args: []string{"/sbin/init"}},
			{PID: 9, Args: append([]string{"/usr/bin/kubelet"}, args...)},
			{PID: 10},
		}
	}
	// Two runtimes, as the kubelet with pid 9 sees them.
	machine := func(t *testing.T) Machine {
		m := files{
			"run/containerd/containerd.sock": "", "run/crio/crio.sock": "", "proc/9/comm": "kubelet",
			"proc/9/root/etc/kubelet.yaml": "containerRuntimeEndpoint: unix:///run/crio/crio.sock\n",
			"proc/9/cwd/kubelet.yaml":      "maxPods: 3\n",
		}.in(t)
		for _, socket := range []string{"run/containerd/containerd.sock", "run/crio/crio.sock"} {
			seen := m.path("proc/9/root", socket)
			if err := os.MkdirAll(filepath.Dir(seen), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Link(m.path(socket), seen); err != nil {
				t.Fatal(err)
			}
		}
		return m
	}
	for name, c := range map[string]struct {
		processes []Process
		endpoint  string
		level     Level
		words     []string
	}{
		"none":                         {[]Process{{PID: 1, Args: []string{"/sbin/init"}}}, ours, OK, []string{"none"}},
		"by default the same":          {kubelet(), ours, Fault, []string{"pid 9", "systemctl disable --now kubelet"}},
		"the same by its flag":         {kubelet("--container-runtime-endpoint=unix:///run/crio/crio.sock"), "unix:///run/crio/crio.sock", Fault, nil},
		"the same by a path":           {kubelet("--container-runtime-endpoint=/run/crio/crio.sock"), "unix:///run/crio/crio.sock", Fault, nil},
		"another by its flag":          {kubelet("--container-runtime-endpoint", "unix:///run/crio/crio.sock"), ours, OK, []string{"/run/crio/crio.sock"}},
		"another by its file":          {kubelet("--config=/etc/kubelet.yaml"), ours, OK, []string{"/run/crio/crio.sock"}},
		"the same, its file is silent": {kubelet("-config", "kubelet.yaml"), ours, Fault, nil},
		"the same, no file":            {kubelet("--config", "/nowhere"), ours, Fault, nil},
		"we have no runtime yet":       {kubelet(), "", OK, nil},
		"ours is not there":            {kubelet(), "unix:///run/none.sock", OK, nil},
	} {
		t.Run(name, func(t *testing.T) { expect(t, machine(t).Kubelet(c.endpoint, c.processes), c.level, c.words...) })
	}
}

// A program called kubelet with a socket of this machine is found in the real /proc.
func TestKubeletOfThisMachine(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "cri.sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, listener)
	// It is a waiting shell with a kubelet's arguments.
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("needs sh")
	}
	cmd := exec.Command(shell)
	cmd.Args = []string{"/usr/bin/kubelet", "-c", "echo up; read x", "--container-runtime-endpoint=unix://" + path}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait() // it ends with its input
	})
	if _, err := stdout.Read(make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	m := This()
	processes, err := m.Processes()
	if err != nil {
		t.Fatal(err)
	}
	expect(t, m.Kubelet("unix://"+path, processes), Fault, fmt.Sprintf("pid %d", cmd.Process.Pid), path)
	expect(t, m.Kubelet("unix://"+filepath.Join(dir, "other.sock"), processes), OK)
}
