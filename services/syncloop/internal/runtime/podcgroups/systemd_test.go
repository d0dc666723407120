package podcgroups_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/cgroups/systemd"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podtest"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/podcgroups"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/harness"
	"github.com/quartet-node/quartet/test/systemdhost"
)

// newSlices is newMachine with the driver systemd, for a test on a machine with systemd.
func newSlices(t *testing.T) *machine {
	t.Helper()
	if os.Geteuid() != 0 {
		harness.Require(t, errors.New("slices are root's to make: run the test as root"))
	}
	root := fmt.Sprintf("/quartettest%d", os.Getpid())
	m := &machine{
		t: t, Machine: podcgroups.NewMachine("systemd", clock.RealClock{}),
		names: podcgroups.NewNames("systemd", root), root: root + ".slice",
	}
	var stat unix.Statfs_t
	m.v2 = unix.Statfs(mounted, &stat) == nil && stat.Type == unix.CGROUP2_SUPER_MAGIC
	t.Cleanup(func() {
		if err := m.Remove(context.Background(), m.root); err != nil { // the context of the test has ended
			t.Error(err)
		}
	})
	return m
}

// property returns a property of a slice in systemd.
func property(t *testing.T, cgroup, name string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "systemctl", "show", "--property="+name, "--value", path.Base(cgroup)).CombinedOutput()
	if err != nil {
		t.Fatalf("systemctl show %s: %v\n%s", cgroup, err, out)
	}
	return strings.TrimSpace(string(out))
}

// TestWithSystemd repeats the tests of the other driver with a real systemd: the machine's, or one that the test
// starts.
func TestWithSystemd(t *testing.T) {
	if !systemd.IsRunningSystemd() {
		err := podcgroups.NewMachine("systemd", clock.RealClock{}).Set("/kubepods.slice", resources.Resources{CPUShares: 2})
		if err == nil || !strings.Contains(err.Error(), "cgroupDriver is systemd, but systemd does not run here") {
			t.Errorf("without systemd: %v", err)
		}
		systemdhost.Run(t)
		return
	}
	t.Run("a pod has its limits and loses them", slicesHaveLimits)
	t.Run("a pod below a class of its own", slicesBelowAClass)
	t.Run("what runs in a pod is killed", slicesAreEmptied)
}

func slicesHaveLimits(t *testing.T) {
	m := newSlices(t)
	pod := podtest.Pod("u-1", podtest.Container(podtest.List("cpu", "500m"), podtest.List("cpu", "1", "memory", "64Mi")))
	name, err := m.names.Pod(pod)
	if err != nil {
		t.Fatal(err)
	}
	if m.Has(name) {
		t.Error("the slice exists before its creation")
	}
	m.set(name, resources.ForPod(pod, resources.Limits{CPUQuota: true, PIDs: 50}))
	if !m.Has(name) {
		t.Error("the slice does not exist")
	}
	limits := func() {
		t.Helper()
		m.want(name, "cpu.shares", "512", "cpu.weight", "20")
		m.want(name, "cpu.cfs_quota_us", "100000", "cpu.max", "100000 100000")
		m.want(name, "memory.limit_in_bytes", strconv.Itoa(64<<20), "memory.max", strconv.Itoa(64<<20))
		m.want(name, "pids.max", "50", "pids.max", "50")
	}
	limits()
	// systemd knows the values, too: it writes them again whenever it reloads its units.
	if state, tasks := property(t, name, "ActiveState"), property(t, name, "TasksMax"); state != "active" || tasks != "50" {
		t.Errorf("for systemd the slice is %s, with %s tasks, want %q and %q", state, tasks, "active", "50")
	}
	if out, err := exec.CommandContext(t.Context(), "systemctl", "daemon-reload").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	limits()

	pod.Spec.Containers[0].Resources.Limits = v1.ResourceList{}
	m.set(name, resources.ForPod(pod, resources.Limits{CPUQuota: true}))
	m.want(name, "cpu.cfs_quota_us", "-1", "cpu.max", "max 100000")
	if got := m.read(name, "memory.limit_in_bytes", "memory.max"); got == strconv.Itoa(64<<20) {
		t.Errorf("the limit of memory is still %s", got)
	}
	for range 2 {
		if err := m.Remove(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	if left, state := m.left(name), property(t, name, "ActiveState"); len(left) > 0 || state != "inactive" {
		t.Errorf("the slice is still in %v, and for systemd it is %s", left, state)
	}
}

// slicesBelowAClass checks that the slices of classes are created before any pod, and that their shares change with the
// pods.
func slicesBelowAClass(t *testing.T) {
	m := newSlices(t)
	class := m.names.Class(v1.PodQOSBurstable)
	m.set(m.names.Pods(), resources.Resources{CPUShares: 2048, Memory: 1 << 30})
	m.set(class, resources.Resources{CPUShares: 2})
	name := m.names.Places("u-1")[1]
	m.set(name, resources.Resources{CPUShares: 256})
	m.set(class, resources.Resources{CPUShares: 512})
	m.want(class, "cpu.shares", "512", "cpu.weight", "20")
	m.want(name, "cpu.shares", "256", "cpu.weight", "10")
	m.want(m.names.Pods(), "memory.limit_in_bytes", strconv.Itoa(1<<30), "memory.max", strconv.Itoa(1<<30))
	if err := m.Remove(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	if left := m.left(name); len(left) > 0 || !m.Has(class) {
		t.Errorf("the slice is still in %v, or that of its class is not there", left)
	}
	m.want(class, "cpu.shares", "512", "cpu.weight", "20")
}

// slicesAreEmptied covers containers whose scope systemd knows, as after a kill of the runtime.
func slicesAreEmptied(t *testing.T) {
	m := newSlices(t)
	name := m.names.Places("u-1")[0]
	m.set(name, resources.Resources{CPUShares: 2})
	cmd := exec.CommandContext(t.Context(), "systemd-run", "--scope", "--slice="+path.Base(name), "sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	eventually.In(ctx, t, "the scope runs", func() bool {
		comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", cmd.Process.Pid))
		return err == nil && string(comm) == "sleep\n"
	})
	if err := m.Remove(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		if !strings.Contains(fmt.Sprint(err), "killed") && !strings.Contains(fmt.Sprint(err), "terminated") {
			t.Errorf("the process ended with %v", err)
		}
	case <-ctx.Done():
		t.Fatal("a process in the slice runs on")
	}
	if left := m.left(name); len(left) > 0 {
		t.Errorf("the slice is still in %v", left)
	}
}
