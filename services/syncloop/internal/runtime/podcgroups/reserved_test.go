package podcgroups_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podtest"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/podcgroups"
	"github.com/quartet-node/quartet/test/eventually"
)

func TestExistingName(t *testing.T) {
	for _, test := range []struct{ driver, name, want string }{
		{"cgroupfs", "/system", "/system"},
		{"cgroupfs", "kube/runtime/", "/kube/runtime"},
		{"systemd", "/system.slice", "/system.slice"},
		{"systemd", "system", "/system.slice"},
		{"systemd", "/kube.slice/kube-runtime.slice", "/kube.slice/kube-runtime.slice"},
		{"systemd", "kube-runtime.slice", "/kube.slice/kube-runtime.slice"},
	} {
		if got := podcgroups.ExistingName(test.driver, test.name); got != test.want {
			t.Errorf("%s of %s: got %s, want %s", test.name, test.driver, got, test.want)
		}
	}
}

func TestForReservation(t *testing.T) {
	reserved := podtest.List("cpu", "500m", "memory", "1Gi", "pid", "1000", "ephemeral-storage", "1Gi")
	want := resources.Resources{CPUShares: 512, Memory: 1 << 30, PIDs: 1000, HugePages: map[int64]int64{}}
	if diff := cmp.Diff(want, resources.ForReservation(reserved, false, resources.MemoryQoS{})); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	want.Unified = map[string]string{"memory.min": "1073741824"}
	protect := resources.MemoryQoS{Enabled: true}
	if diff := cmp.Diff(want, resources.ForReservation(reserved, false, protect)); diff != "" {
		t.Errorf("with MemoryQoS: -want +got\n%s", diff)
	}
	want = resources.Resources{CPUShares: 512}
	if diff := cmp.Diff(want, resources.ForReservation(reserved, true, protect)); diff != "" {
		t.Errorf("compressible: -want +got\n%s", diff)
	}
}

// TestCgroupsOfDaemonsAreLimited checks that they are limited as soon as they exist, with one event.
func TestCgroupsOfDaemonsAreLimited(t *testing.T) {
	limits := resources.Resources{CPUShares: 512, Memory: 1 << 30}
	r := newTree(t, func(cfg *podcgroups.Config) {
		cfg.Existing = []podcgroups.Existing{{Purpose: "system", Name: "/system", Resources: limits}, {Purpose: "kube", Name: "/kube", Resources: limits}}
	})
	if err := r.cgroups.Set("/system", resources.Resources{}); err != nil {
		t.Fatal(err)
	}
	r.run()
	if diff := cmp.Diff(limits, r.cgroups.get("/system")); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if r.cgroups.Has("/kube") {
		t.Error("a missing cgroup of daemons was created")
	}
	if why := r.waits(); !strings.Contains(why, "kubeReservedCgroup: the cgroup /kube does not exist") {
		t.Errorf("the health says %q, want text with %q", why, "kubeReservedCgroup: the cgroup /kube does not exist")
	}
	if err := r.cgroups.Set("/kube", resources.Resources{}); err != nil {
		t.Fatal(err)
	}
	r.clock.Step(5 * time.Second)
	eventually.That(t, "the cgroup that has come is limited", func() bool { return cmp.Equal(limits, r.cgroups.get("/kube")) && r.waits() == "" })
	r.turned()
	r.cgroups.fail("/system", errors.New("invalid argument"))
	r.clock.Step(time.Minute)
	eventually.That(t, "a failure is told", func() bool { return r.clock.HasWaiters() && len(r.recorded()) == 4 })
	want := []string{
		"Normal NodeAllocatableEnforced Updated limits on system reserved cgroup /system",
		`Warning FailedNodeAllocatableEnforcement Failed to enforce Kube Reserved Cgroup Limits on "/kube": kubeReservedCgroup: the cgroup /kube does not exist in every hierarchy: ` +
			"create it before the node starts, or leave kube-reserved out of enforceNodeAllocatable",
		"Normal NodeAllocatableEnforced Updated limits on kube reserved cgroup /kube",
		`Warning FailedNodeAllocatableEnforcement Failed to enforce System Reserved Cgroup Limits on "/system": systemReservedCgroup: invalid argument`,
	}
	if diff := cmp.Diff(want, r.recorded()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// TestMemoryThatBetterPodsRequestIsKeptForThem checks the kubelet's formula for half of the requests.
func TestMemoryThatBetterPodsRequestIsKeptForThem(t *testing.T) {
	r := newTree(t, func(cfg *podcgroups.Config) { cfg.MemoryPercent, cfg.NotForPods = 50, cfg.Reserved })
	guaranteed := podtest.Container(nil, podtest.List("cpu", "1", "memory", "512Mi"))
	guaranteed.Resources.Requests = guaranteed.Resources.Limits
	ended := podtest.Pod("u3", guaranteed)
	ended.Status.Phase = v1.PodSucceeded
	r.want(podtest.Pod("u1", guaranteed), podtest.Pod("u2", podtest.Container(podtest.List("memory", "1Gi"), nil)), ended)
	r.setNode(&v1.Node{Status: v1.NodeStatus{Capacity: podtest.List("cpu", "2", "memory", "4Gi")}})
	r.run()
	wantMemory := func(what string, burstable, bestEffort int64) {
		t.Helper()
		if got := r.cgroups.get("/kubepods/burstable").Memory; got != burstable {
			t.Errorf("%s: burstable pods may use %d bytes, want %d", what, got, burstable)
		}
		if got := r.cgroups.get("/kubepods/besteffort").Memory; got != bestEffort {
			t.Errorf("%s: best-effort pods may use %d bytes, want %d", what, got, bestEffort)
		}
	}
	// 4 GiB minus 1 GiB reserved, minus 256 MiB, minus 512 MiB.
	wantMemory("at first", 2816<<20, 2304<<20)

	r.cgroups.mu.Lock()
	r.cgroups.uses["/kubepods/besteffort"] = 2 << 30
	r.cgroups.mu.Unlock()
	r.want(podtest.Pod("u2", podtest.Container(podtest.List("memory", "4Gi"), nil)))
	r.clock.Step(time.Minute)
	r.turned()
	wantMemory("while best-effort pods use more than they may", 3<<30, 2<<30)
}

// TestACgroupOfDaemonsOfThisMachine checks that its other settings stay.
func TestACgroupOfDaemonsOfThisMachine(t *testing.T) {
	m := newMachine(t)
	name := m.root + "/daemons"
	if err := m.Set(name, resources.Resources{}); err != nil {
		t.Fatal(err)
	}
	reservation := resources.ForReservation(podtest.List("cpu", "500m", "memory", "64Mi"), false, resources.MemoryQoS{})
	if err := m.Limit(name, reservation); err != nil {
		t.Fatal(err)
	}
	file := "memory/" + name + "/memory.limit_in_bytes"
	if m.v2 {
		file = name + "/memory.max"
	}
	got, err := os.ReadFile(filepath.Join(mounted, file))
	if err != nil || strings.TrimSpace(string(got)) != "67108864" {
		t.Errorf("the limit of memory is %s, %v, want %q", got, err, "67108864")
	}
	if err := m.Limit(m.root+"/none", resources.Resources{Memory: 1 << 20}); err == nil {
		t.Error("Limit of a missing cgroup succeeds")
	}
}
