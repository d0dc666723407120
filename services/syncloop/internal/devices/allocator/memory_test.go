package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/allocator"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/cpus"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/memory"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/memorystate"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/numa"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podtest"
	"github.com/quartet-node/quartet/test/eventually"
)

// newWithMemory returns a rig of a machine with two NUMA nodes, the second of which has 100 MiB for containers and the
// first 99 MiB.
func newWithMemory(t *testing.T, topology string) *rig {
	t.Helper()
	r := newRig(t)
	must(t, os.Remove(filepath.Join(r.root, memorystate.File)))
	r.nodes, r.memory, r.topology = []int{2, 2}, memory.PolicyStatic, topology
	must(t, r.restart(cpus.PolicyStatic))
	r.Recover(nil, goesOn)
	return r
}

// sized returns a guaranteed pod without CPUs for itself.
func sized(uid, size string) *v1.Pod {
	p := pod(uid, "500m")
	has := podtest.List("cpu", "500m", "memory", size)
	p.Spec.Containers[0].Resources = v1.ResourceRequirements{Requests: has, Limits: has}
	return p
}

// nodesOf returns the NUMA nodes that a container is created with, and its annotation.
func (r *rig) nodesOf(p *v1.Pod, c *v1.Container) string {
	r.t.Helper()
	given, err := r.Give(r.t.Context(), p, c)
	must(r.t, err)
	return given.MemoryNodes + "/" + given.Annotations[podlabels.Memory]
}

func (r *rig) wantNodes(p *v1.Pod, want string) {
	r.t.Helper()
	if got := r.nodesOf(p, &p.Spec.Containers[0]); got != want {
		r.t.Errorf("pod %s is given %s, want %s", p.UID, got, want)
	}
}

const (
	first  = `0/{"nodes":[0],"sizes":{"memory":62914560}}`
	second = `1/{"nodes":[1],"sizes":{"memory":62914560}}`
)

// TestMemorySurvivesARestart checks that the memory is on disk when Allocate returns, that a container that is created
// again gets the same, and that it is given back.
func TestMemorySurvivesARestart(t *testing.T) {
	r := newWithMemory(t, numa.PolicyNone)
	own, burstable := sized("own", "60Mi"), sized("burstable", "60Mi")
	burstable.Spec.Containers[0].Resources.Limits = nil
	if !r.Needs(own) || r.Needs(burstable) {
		t.Error("a guaranteed pod needs no memory of NUMA nodes, or a burstable one does")
	}
	must(t, r.Allocate(t.Context(), own))
	must(t, r.restart(cpus.PolicyStatic))
	must(t, r.Allocate(t.Context(), sized("next", "60Mi")))
	if wait, err := r.Check(sized("late", "60Mi")); wait || err == nil || err.Error() != "[memorymanager] failed to get "+
		"the default NUMA affinity, no NUMA nodes with enough memory is available" {
		t.Errorf("another pod: %v, %v", wait, err)
	}
	r.wantNodes(own, first)
	r.wantNodes(sized("next", "60Mi"), second)
	r.wantNodes(burstable, "/")
	want := "[{memory 62914560 1}] [{memory 103809024 1} {memory 104857600 2}] [next own]"
	if got := fmt.Sprint(r.Memory("own", "main"), r.AllocatableMemory(), r.Pods()); got != want {
		t.Errorf("the pod-resources API shows %s", got)
	}
	r.Release("own")
	must(t, r.restart(cpus.PolicyStatic))
	if _, err := r.Check(sized("late", "60Mi")); err != nil {
		t.Errorf("the memory of a pod that is gone is not free: %v", err)
	}
}

// TestMemoryAndCPUsAreOfOneNode checks that both are aligned, and that a pod is refused if they cannot be.
func TestMemoryAndCPUsAreOfOneNode(t *testing.T) {
	r := newWithMemory(t, numa.PolicySingleNode)
	_, err := r.Check(sized("wide", "110Mi"))
	var affinity *numa.AffinityError
	if !errors.As(err, &affinity) {
		t.Errorf("a pod of both nodes: %v", err)
	}
	must(t, r.Allocate(t.Context(), sized("first", "60Mi")))
	both := pod("both", "1")
	both.Spec.Containers[0].Resources = sized("", "60Mi").Spec.Containers[0].Resources
	both.Spec.Containers[0].Resources.Requests["cpu"] = podtest.List("cpu", "1")["cpu"]
	must(t, r.Allocate(t.Context(), both))
	r.wantNodes(both, second)
	r.wantGiven(both, "2/2")
}

// TestInitContainersLeaveTheirMemory checks that a pod can have the memory of an init container when the next container
// is created, also after a restart.
func TestInitContainersLeaveTheirMemory(t *testing.T) {
	r := newWithMemory(t, numa.PolicyNone)
	own := sized("own", "10Mi")
	init := sized("", "90Mi").Spec.Containers[0]
	init.Name = "init"
	own.Spec.InitContainers = []v1.Container{init}
	must(t, r.Allocate(t.Context(), own))
	must(t, r.Allocate(t.Context(), sized("next", "60Mi")))
	r.wantNodes(sized("next", "60Mi"), second)
	if _, err := r.Check(sized("late", "60Mi")); err == nil {
		t.Error("another pod has the memory of an init container")
	}
	r.wantNodes(own, `0/{"nodes":[0],"sizes":{"memory":10485760}}`)
	must(t, r.restart(cpus.PolicyStatic))
	if _, err := r.Check(sized("late", "60Mi")); err != nil {
		t.Errorf("the memory of an init container that has ended is not free: %v", err)
	}
	if got := r.nodesOf(own, &own.Spec.InitContainers[0]); got != "/" {
		t.Errorf("an init container that runs again is given %s", got)
	}
}

// TestALostStateOfMemoryIsRebuiltFromWhatRuns checks a damaged state and a removed one, also while the container waits
// to be started again.
func TestALostStateOfMemoryIsRebuiltFromWhatRuns(t *testing.T) {
	const (
		running = lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING
		crashed = lifecyclev1.ContainerState_CONTAINER_STATE_EXITED
	)
	for name, tc := range map[string]struct {
		lose  func(path string) error
		state lifecyclev1.ContainerState
	}{
		"damaged": {func(path string) error { return os.WriteFile(path, []byte("{"), 0o600) }, running},
		"removed": {os.Remove, running},
		"crashed": {os.Remove, crashed},
	} {
		t.Run(name, func(t *testing.T) {
			r := newWithMemory(t, numa.PolicyNone)
			own, other := sized("own", "60Mi"), sized("other", "60Mi")
			must(t, r.Allocate(t.Context(), own))
			_, annotation, _ := strings.Cut(r.nodesOf(own, &own.Spec.Containers[0]), "/")
			runs := r.runs(own)
			runs[0].Containers[0].Annotations = map[string]string{podlabels.Memory: annotation}
			runs[0].Containers[0].State = tc.state
			must(t, tc.lose(filepath.Join(r.root, memorystate.File)))
			must(t, r.restart(cpus.PolicyStatic))
			if wait, err := r.Check(other); !wait || err != nil {
				t.Errorf("a pod does not wait until the state is rebuilt: %v", err)
			}
			must(t, r.restart(cpus.PolicyStatic)) // killed before Recover
			r.Recover(runs, goesOn)
			must(t, r.restart(cpus.PolicyStatic)) // killed after it
			must(t, r.Allocate(t.Context(), other))
			r.wantNodes(other, second)
			r.wantNodes(own, first)
		})
	}
}

// TestAStateOfMemoryThatDoesNotFitIsRefused checks that the errors name the file and what to do.
func TestAStateOfMemoryThatDoesNotFitIsRefused(t *testing.T) {
	r := newWithMemory(t, numa.PolicyNone)
	path := filepath.Join(r.root, memorystate.File)
	r.memory = memory.PolicyNone
	want := fmt.Sprintf("could not restore state from checkpoint: [memorymanager] configured policy %q differs from "+
		"state checkpoint policy %q, please drain this node and delete the memory manager checkpoint file %q before "+
		"restarting",
		"None", "Static", path)
	if err := r.restart(cpus.PolicyStatic); err == nil || err.Error() != want {
		t.Errorf("error = %v, want %s", err, want)
	}
	r.memory, r.nodes = memory.PolicyStatic, []int{1, 1, 2}
	want = fmt.Sprintf("invalid state, please drain node and remove policy state file %q: ", path)
	if err := r.restart(cpus.PolicyStatic); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("error = %v, want %s", err, want)
	}
}

// TestAMachineWithLessMemoryThanBefore checks that pods keep their memory when the kernel takes more for itself after a
// start of the machine, that the new amounts are on disk, and what the error says if the memory does not fit any more.
func TestAMachineWithLessMemoryThanBefore(t *testing.T) {
	r := newWithMemory(t, numa.PolicyNone)
	must(t, r.Allocate(t.Context(), sized("own", "60Mi")))
	r.less = 30
	must(t, r.restart(cpus.PolicyStatic))
	r.wantNodes(sized("own", "60Mi"), first)
	if got := fmt.Sprint(r.AllocatableMemory()); got != "[{memory 72351744 1} {memory 73400320 2}]" {
		t.Errorf("containers can have %s", got)
	}
	if !strings.Contains(r.log.String(), "NUMA node 0 had 104857600 bytes of memory, and has 73400320") {
		t.Errorf("the log does not say what has changed: %s", r.log.String())
	}
	state, err := memorystate.Read(r.root)
	must(t, err)
	if total := state.Nodes[1].Tables["memory"].Total; total != 70<<20 || len(state.Held) != 1 {
		t.Errorf("the state on disk has %d bytes of the NUMA node 1, and the memory %v", total, state.Held)
	}
	r.less = 50
	path := filepath.Join(r.root, memorystate.File)
	want := fmt.Sprintf("invalid state, please drain node and remove policy state file %q: [memorymanager] NUMA node 0 "+
		"had 73400320 bytes of memory, and has 52428800; the container main of the pod own has 62914560 bytes of memory "+
		"of the NUMA nodes [0], which have only 51380224 left for it", path)
	if err := r.restart(cpus.PolicyStatic); err == nil || err.Error() != want {
		t.Errorf("error = %v\nwant    %s", err, want)
	}
}

// TestARunningContainerIsMovedToItsNodes checks the container that had no memory of NUMA nodes when it was created.
func TestARunningContainerIsMovedToItsNodes(t *testing.T) {
	r := newWithMemory(t, numa.PolicyNone)
	late := sized("late", "60Mi")
	cri := &runtime{}
	loop := allocator.NewReconciler(allocator.ReconcilerConfig{
		Allocator: r.Allocator, Update: cri.update, Period: 10 * time.Second, Clock: r.clock,
		Pods: func() ([]*v1.Pod, error) { return []*v1.Pod{late}, nil },
		Observed: func() ([]*lifecyclev1.PodStatus, bool) {
			return []*lifecyclev1.PodStatus{{Uid: "late", Containers: []*lifecyclev1.Container{{
				Id: "id", Name: "main", State: lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING,
			}}}}, true
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- loop.Run(ctx) }()
	got := ""
	eventually.That(t, "the update", func() bool {
		got += cri.take()
		return got == "id=0-3@0"
	})
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Run ends with %v", err)
	}
	r.wantNodes(late, first)
}

// FuzzTheAnnotationOfMemory checks that whatever a running container says of its memory, the state that is written fits
// the machine.
func FuzzTheAnnotationOfMemory(f *testing.F) {
	f.Add(`{"nodes":[0],"sizes":{"memory":62914560}}`)
	f.Add(`{"nodes":[0,1,99],"sizes":{"memory":18446744073709551615,"hugepages-2Mi":1}}`)
	f.Fuzz(func(t *testing.T, annotation string) {
		r := newWithMemory(t, numa.PolicyNone)
		runs := r.runs(sized("own", "1Mi"))
		runs[0].Containers[0].Annotations = map[string]string{podlabels.Memory: annotation}
		must(t, os.Remove(filepath.Join(r.root, memorystate.File)))
		must(t, r.restart(cpus.PolicyStatic))
		r.Recover(runs, goesOn)
		must(t, r.restart(cpus.PolicyStatic))
	})
}
