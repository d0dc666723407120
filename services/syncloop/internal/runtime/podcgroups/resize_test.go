package podcgroups_test

import (
	"errors"
	"io/fs"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podtest"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
)

func TestAPodsCgroupIsChangedInParts(t *testing.T) {
	r := newTree(t)
	pod := podtest.Pod("u1", podtest.Container(podtest.List("cpu", "500m"), podtest.List("cpu", "1", "memory", "64Mi")))
	if _, there := r.Name(pod); there {
		t.Error("the cgroup exists before its creation")
	}
	if _, _, err := r.Given(pod); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("for a missing cgroup the error is %v", err)
	}
	r.ensure(pod, "/kubepods/burstable/podu1")
	bigger := pod.DeepCopy()
	bigger.Spec.Containers[0].Resources.Limits = podtest.List("cpu", "2", "memory", "128Mi")
	has, wants, err := r.Given(bigger)
	if err != nil || has.Memory != 64<<20 || has.CPUQuota != 100000 || wants.Memory != 128<<20 ||
		wants.CPUQuota != 200000 {
		t.Errorf("it has %+v and wants %+v; error %v", has, wants, err)
	}
	if err := r.Limit(bigger, resources.Resources{Memory: wants.Memory}); err != nil {
		t.Fatal(err)
	}
	if has, _, _ := r.Given(bigger); has.Memory != 128<<20 || has.CPUQuota != 100000 {
		t.Errorf("after a partial change the cgroup has %+v", has)
	}
	r.ensure(pod, "/kubepods/burstable/podu1") // which this process has set before
	if has, wants, _ := r.Given(pod); !cmp.Equal(has, wants, cmpopts.IgnoreFields(resources.Resources{}, "HugePages")) {
		t.Errorf("it has %+v, and is to have %+v again", has, wants)
	}
	r.cgroups.uses["/kubepods/burstable/podu1"] = 32 << 20
	if usage, err := r.MemoryUsage(pod); err != nil || usage != 32<<20 {
		t.Errorf("it uses %d; error %v, want %d", usage, err, 32<<20)
	}
	if err := r.Limit(pod, resources.Resources{Memory: 16 << 20}); err == nil {
		t.Error("the limit is below the usage")
	}
}

// TestWhatTheKernelHasIsRead uses the machine's version of cgroups.
func TestWhatTheKernelHasIsRead(t *testing.T) {
	m := newMachine(t)
	pod := podtest.Pod("u1", podtest.Container(podtest.List("cpu", "500m"), podtest.List("cpu", "1", "memory", "64Mi")))
	name, err := m.names.Pod(pod)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Given(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("for a missing cgroup the error is %v", err)
	}
	want := resources.ForPod(pod, resources.Limits{CPUQuota: true})
	m.set(name, want)
	check := func() {
		t.Helper()
		got, err := m.Given(name)
		if err != nil {
			t.Fatal(err)
		}
		if resources.Weight(got.CPUShares)+1 < resources.Weight(want.CPUShares) || got.CPUQuota != want.CPUQuota ||
			got.Memory != want.Memory {
			t.Errorf("it has %+v, want %+v", got, want)
		}
	}
	check()
	want.CPUQuota, want.Memory = resources.NoLimit, resources.NoLimit
	if err := m.Limit(name, resources.Resources{
		CPUQuota: resources.NoLimit, CPUPeriod: 100000, Memory: resources.NoLimit,
	}); err != nil {
		t.Fatal(err)
	}
	check()
}
