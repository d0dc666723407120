package podcgroups_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podtest"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/podcgroups"
	"github.com/quartet-node/quartet/test/harness"
)

const mounted = "/sys/fs/cgroup"

// machine is the machine's cgroups below a root of the test, which is removed at its end.
type machine struct {
	*podcgroups.Machine
	t     *testing.T
	names podcgroups.Names
	root  string
	v2    bool
}

// newMachine skips the test where cgroups cannot be created, except in CI, where it fails.
func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{t: t, Machine: podcgroups.NewMachine("cgroupfs", clock.RealClock{})}
	var stat unix.Statfs_t
	m.v2 = unix.Statfs(mounted, &stat) == nil && stat.Type == unix.CGROUP2_SUPER_MAGIC
	if os.Geteuid() != 0 {
		harness.Require(t, errors.New("cgroups are root's to make: run the test as root"))
	}
	m.root = fmt.Sprintf("/quartet-podcgroups-%d-%s", os.Getpid(), t.Name())
	for _, dir := range m.hierarchies() {
		err := os.Mkdir(filepath.Join(dir, m.root), 0o755)
		if err != nil {
			err = fmt.Errorf("the cgroups of this machine cannot be written: %w", err)
		}
		harness.Require(t, err)
	}
	m.names = podcgroups.NewNames("cgroupfs", m.root)
	t.Cleanup(func() {
		for _, dir := range m.everywhere() {
			if err := cgroups.RemovePath(filepath.Join(dir, m.root)); err != nil {
				t.Error(err)
			}
		}
	})
	return m
}

// hierarchies returns the directories of the cpu and memory hierarchies.
func (m *machine) hierarchies() []string {
	if m.v2 {
		return []string{mounted}
	}
	return []string{mounted + "/cpu", mounted + "/memory"}
}

// everywhere returns the directories of all hierarchies.
func (m *machine) everywhere() []string {
	if m.v2 {
		return []string{mounted}
	}
	dirs, err := filepath.Glob(mounted + "/*")
	if err != nil {
		m.t.Fatal(err)
	}
	return dirs
}

// read reads a file of a cgroup: v1File in the directory of the controller, v2File in the only directory.
func (m *machine) read(name, v1File, v2File string) string {
	m.t.Helper()
	controller, _, _ := strings.Cut(v1File, ".")
	path := filepath.Join(mounted, controller, name, v1File)
	if m.v2 {
		path = filepath.Join(mounted, name, v2File)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		m.t.Fatal(err)
	}
	return strings.TrimSpace(string(content))
}

func (m *machine) want(name, v1File, v1Value, v2File, v2Value string) {
	m.t.Helper()
	want := v1Value
	if m.v2 {
		want = v2Value
	}
	if got := m.read(name, v1File, v2File); got != want {
		m.t.Errorf("%s: %s or %s is %q, want %q", name, v1File, v2File, got, want)
	}
}

// left returns the remaining directories of a cgroup.
func (m *machine) left(name string) []string {
	var left []string
	for _, dir := range m.everywhere() {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			left = append(left, dir)
		}
	}
	return left
}

func (m *machine) set(name string, r resources.Resources) {
	m.t.Helper()
	if err := m.Set(name, r); err != nil {
		m.t.Fatal(err)
	}
}

func TestTheKernelHasWhatAPodIsGiven(t *testing.T) {
	m := newMachine(t)
	pod := podtest.Pod("u1", podtest.Container(podtest.List("cpu", "500m"), podtest.List("cpu", "1", "memory", "64Mi")))
	name, err := m.names.Pod(pod)
	if err != nil {
		t.Fatal(err)
	}
	if m.Has(name) {
		t.Error("the cgroup exists before its creation")
	}
	m.set(name, resources.ForPod(pod, resources.Limits{CPUQuota: true, PIDs: 50}))
	if !m.Has(name) {
		t.Error("the cgroup does not exist")
	}
	m.want(name, "cpu.shares", "512", "cpu.weight", "20")
	m.want(name, "cpu.cfs_quota_us", "100000", "cpu.max", "100000 100000")
	m.want(name, "memory.limit_in_bytes", strconv.Itoa(64<<20), "memory.max", strconv.Itoa(64<<20))
	m.want(name, "pids.max", "50", "pids.max", "50")

	// Its limits are removed.
	pod.Spec.Containers[0].Resources.Limits = v1.ResourceList{}
	m.set(name, resources.ForPod(pod, resources.Limits{CPUQuota: true}))
	m.want(name, "cpu.cfs_quota_us", "-1", "cpu.max", "max 100000")
	if got := m.read(name, "memory.limit_in_bytes", "memory.max"); got == strconv.Itoa(64<<20) {
		t.Errorf("the limit of memory is still %s", got)
	}
	if err := m.Remove(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	if err := m.Remove(t.Context(), name); err != nil {
		t.Errorf("a second time: %v", err)
	}
	if left := m.left(name); len(left) > 0 || !m.Has(m.names.Class(v1.PodQOSBurstable)) {
		t.Errorf("the pod's cgroup is still in %v, or that of its class is not there", left)
	}
}

// TestWhatRunsInAPodsCgroupIsKilled also covers processes in cgroups below, as after a kill of the runtime.
func TestWhatRunsInAPodsCgroupIsKilled(t *testing.T) {
	m := newMachine(t)
	name := m.names.Places("u1")[1]
	m.set(name, resources.Resources{CPUShares: 2})
	var ended []<-chan error
	for _, cgroup := range []string{name, name + "/container"} {
		m.set(cgroup, resources.Resources{CPUShares: 2})
		if m.v2 && cgroup == name {
			continue // only leaf cgroups have processes
		}
		cmd := exec.Command("sleep", "600")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- cmd.Wait() }()
		ended = append(ended, done)
		for _, dir := range m.everywhere() {
			if _, err := os.Stat(filepath.Join(dir, cgroup)); err != nil {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, cgroup, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := m.Remove(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	for _, done := range ended {
		select {
		case err := <-done:
			if !strings.Contains(fmt.Sprint(err), "killed") {
				t.Errorf("the process ended with %v, want text with %q", err, "killed")
			}
		case <-time.After(60 * time.Second):
			t.Fatal("a process in the cgroup runs on")
		}
	}
	if left := m.left(name); len(left) > 0 {
		t.Errorf("the cgroup is still in %v", left)
	}
}

// TestAnErrorNamesTheControllerAndThePath uses a limit that the kernel rejects because the parent cgroup has a lower
// one.
func TestAnErrorNamesTheControllerAndThePath(t *testing.T) {
	m := newMachine(t)
	if m.v2 {
		t.Skip("cgroup v2 takes limits that are above those of the cgroup above")
	}
	m.set(m.names.Pods(), resources.Resources{CPUQuota: 1000, CPUPeriod: 100000})
	name := m.names.Places("u1")[0]
	err := m.Set(name, resources.Resources{CPUQuota: 50000, CPUPeriod: 100000})
	for _, want := range []string{"cgroup " + name, "controller cpu", mounted + "/cpu" + name + "/cpu.cfs_quota_us", "invalid argument"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
}

func TestARuntimesCgroupInTheUnifiedHierarchyGoesWithThePods(t *testing.T) {
	m := newMachine(t)
	var stat unix.Statfs_t
	if err := unix.Statfs(mounted+"/unified", &stat); err != nil || stat.Type != unix.CGROUP2_SUPER_MAGIC {
		t.Skip("this machine has one hierarchy, or several without that of version 2 beside them")
	}
	name := m.names.Places("u1")[0]
	m.set(name, resources.Resources{CPUShares: 2})
	if err := os.MkdirAll(filepath.Join(mounted, "unified", name, "container"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := m.Remove(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	if left := m.left(name); len(left) > 0 {
		t.Errorf("the cgroup is still in %v", left)
	}
}
