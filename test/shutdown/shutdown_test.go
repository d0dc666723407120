// Package shutdown tests with a real logind that pods are ended before the machine goes down.
package shutdown

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/bundle"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/livenode"
	"github.com/quartet-node/quartet/test/require"
	"github.com/quartet-node/quartet/test/systemdhost"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	// config has long periods, so that only the pod for this case ends because its time is over.
	config = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
shutdownGracePeriodByPodPriority:
- {priority: 0, shutdownGracePeriodSeconds: 60}
- {priority: 2000000000, shutdownGracePeriodSeconds: 50}
`
	// patience is the time limit of a wait.
	patience = time.Minute
	bootID   = "/proc/sys/kernel/random/boot_id"
)

// pod returns a manifest; with ignore the pod ignores SIGTERM and ends when its grace period is over.
func pod(name string, priority, grace int, ignore bool) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  hostNetwork: true
  priority: %d
  terminationGracePeriodSeconds: %d
  containers:
  - {name: main, image: %q, args: [sleep, --ignore-term=%v]}
`, name, priority, grace, bundle.HelloImage, ignore)
}

// machine is a node inside.
type machine struct {
	*livenode.Node
	t *testing.T
}

func (m *machine) up() {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	if err := m.Up(ctx); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) place(name string, priority, grace int, ignore bool) {
	m.t.Helper()
	if err := m.Place(name+".yaml", pod(name, priority, grace, ignore)); err != nil {
		m.t.Fatal(err)
	}
}

// pod returns a pod as the node lists it; nil when it does not.
func (m *machine) pod(name string) *v1.Pod {
	pods, err := m.Pods(m.t.Context())
	if err != nil {
		return nil
	}
	for i := range pods {
		if strings.HasPrefix(pods[i].Name, name+"-") {
			return &pods[i]
		}
	}
	return nil
}

// endInOrder reports whether dns is running as long as web is.
func (m *machine) endInOrder() bool {
	pods, err := m.Pods(m.t.Context())
	if err != nil {
		return true // the node does not answer at this moment
	}
	runs := map[string]bool{}
	for i := range pods {
		for _, c := range pods[i].Status.ContainerStatuses {
			name, _, _ := strings.Cut(pods[i].Name, "-")
			runs[name] = c.State.Running != nil
		}
	}
	return !runs["web"] || runs["dns"]
}

// awaitInOrder is await, and fails when dns ends before web has.
func (m *machine) awaitInOrder(what string, holds func() bool) {
	m.t.Helper()
	inOrder := true
	m.await(what, func() bool {
		inOrder = inOrder && m.endInOrder()
		return holds()
	})
	if !inOrder {
		m.t.Error("dns was ended while web still ran")
	}
}

func (m *machine) await(what string, holds func() bool) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	eventually.In(ctx, m.t, what, holds)
}

func (m *machine) awaitReady(names ...string) {
	m.t.Helper()
	for _, name := range names {
		m.await(name+" is Ready", func() bool { p := m.pod(name); return p != nil && livenode.Ready(p) })
	}
}

func (m *machine) failedFor(name, reason string) bool {
	p := m.pod(name)
	return p != nil && p.Status.Phase == v1.PodFailed && p.Status.Reason == reason
}

// run runs a command and returns its output.
func (m *machine) run(name string, args ...string) string {
	m.t.Helper()
	out, err := exec.CommandContext(m.t.Context(), name, args...).CombinedOutput()
	if err != nil {
		m.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// node returns the command line's output about the node.
func (m *machine) node() string {
	out, err := m.Command(m.t.Context(), "get", "node", "-o", "yaml")
	if err != nil {
		return ""
	}
	return out
}

func (m *machine) holdsALock() bool {
	return strings.Contains(m.run("systemd-inhibit", "--list"), "quartet")
}

func (m *machine) inhibitDelay() time.Duration {
	m.t.Helper()
	out := m.run("busctl", "get-property", "org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager", "InhibitDelayMaxUSec")
	n, err := strconv.ParseInt(strings.TrimPrefix(strings.TrimSpace(out), "t "), 10, 64)
	if err != nil {
		m.t.Fatal(err)
	}
	return time.Duration(n) * time.Microsecond
}

func hasEnded(p *v1.Pod) bool {
	return p != nil && p.Status.Phase == v1.PodFailed && len(p.Status.ContainerStatuses) == 1 &&
		p.Status.ContainerStatuses[0].State.Terminated != nil
}

// endedAt returns the time of the exit of a pod's container.
func endedAt(t *testing.T, p *v1.Pod) time.Time {
	t.Helper()
	if !hasEnded(p) {
		t.Fatalf("the container has not ended: %v", p)
	}
	return p.Status.ContainerStatuses[0].State.Terminated.FinishedAt.Time
}

func (m *machine) showLog() {
	log, err := os.ReadFile(filepath.Join(m.Layout.Logs(), "node.log"))
	if err == nil && m.t.Failed() {
		m.t.Logf("%s", log[max(0, len(log)-24<<10):])
	}
}

func TestPodsEndBeforeTheMachineGoesDown(t *testing.T) {
	if !systemdhost.Inside() {
		require.NoError(t, livenode.CannotRun(livenode.Bin()))
		require.NoError(t, systemdhost.MissingLogind())
		systemdhost.Run(t)
		return
	}
	systemdhost.StartLogind(t)
	node, err := livenode.New(livenode.Bin(), "shutdown")
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{Node: node, t: t}
	t.Cleanup(func() {
		m.showLog()
		if err := node.Remove(context.Background()); err != nil {
			t.Error(err)
		}
	})
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	if err := os.WriteFile(file, []byte(config+livenode.AnyMachine), 0o600); err != nil {
		t.Fatal(err)
	}
	node.Flags = []string{"--config", file}
	m.up()
	m.place("web", 0, 5, true)
	m.place("dns", 2000001000, 30, false)
	m.awaitReady("web", "dns")
	m.await("logind waits for the node", m.holdsALock)
	if delay := m.inhibitDelay(); delay != 110*time.Second {
		t.Errorf("logind waits %v, the pods may take 110s, want %v", delay, 110*time.Second)
	}

	m.run("systemctl", "poweroff")
	m.await("the Node is not ready", func() bool { return strings.Contains(m.node(), "node is shutting down") })
	m.await("the end of web has begun", func() bool { return m.failedFor("web", "Terminated") })
	m.place("late", 0, 5, false)
	kill(t, m, "syncloop") // its successor continues the shutdown
	m.awaitInOrder("the machine goes down", systemdhost.WentDown)
	for _, name := range []string{"web", "dns"} {
		m.await(name+" is Failed", func() bool { return m.failedFor(name, "Terminated") })
	}
	web, dns := m.pod("web"), m.pod("dns")
	if endedAt(t, web).After(endedAt(t, dns)) {
		t.Errorf("web ended at %v, dns, whose turn was after it, at %v", endedAt(t, web), endedAt(t, dns))
	}
	m.await("what was new is refused", func() bool { return m.failedFor("late", "NodeShutdown") })
	if m.holdsALock() {
		t.Error("logind would go on waiting")
	}

	// The shutdown is called off. Ended pods stay so in this boot, and run in the next.
	systemdhost.CallOff(t)
	m.await("logind waits for the node again", m.holdsALock)
	m.await("the Node is ready again", func() bool { return !strings.Contains(m.node(), "node is shutting down") })
	reboot(t, m)
	m.awaitReady("web", "dns", "late")

	// nodestatus is killed during the next shutdown, and its successor continues, because another program delays logind.
	other := systemdhost.Inhibit(t)
	m.run("systemctl", "poweroff")
	m.await("the end of web has begun", func() bool { return m.failedFor("web", "Terminated") })
	kill(t, m, "nodestatus")
	m.awaitInOrder("the pods have ended", func() bool { return hasEnded(m.pod("web")) && hasEnded(m.pod("dns")) })
	if !strings.Contains(m.node(), "node is shutting down") || systemdhost.WentDown() {
		t.Errorf("the machine went down: %v; the Node is\n%s", systemdhost.WentDown(), m.node())
	}
	other()
	m.await("the machine goes down", systemdhost.WentDown)
}

// kill ends a process of the node by SIGKILL; its supervisor replaces it.
func kill(t *testing.T, m *machine, name string) {
	t.Helper()
	pid, err := m.PID(name)
	if err == nil {
		err = syscall.Kill(pid, syscall.SIGKILL)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// reboot stops the node and its pods, and starts it with another boot id.
func reboot(t *testing.T, m *machine) {
	t.Helper()
	if _, err := m.Command(t.Context(), "down"); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "boot_id")
	if err := os.WriteFile(file, []byte("5f3759df-0000-4000-8000-000000000001\n"), 0o444); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(file, bootID, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(bootID, 0); err != nil {
			t.Error(err)
		}
	})
	m.up()
}
