package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/devices/allocator"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/cpus"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/cpustate"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/deviceplugins"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/memorystate"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/numa"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podtest"
)

// gpus are devices of one NUMA node, for the pods whose name begins with gpu.
type gpus struct {
	*deviceplugins.Manager

	node int
	// begun receives the NUMA nodes of an allocation, which ends when it can receive from answer.
	begun  chan numa.Mask
	answer chan error
}

func (*gpus) Needs(p *v1.Pod) bool { return p.UID[0] == 'g' }

func (g *gpus) PodHints(p *v1.Pod) numa.Hints {
	if !g.Needs(p) {
		return nil
	}
	return numa.Hints{"example.com/gpu": {{Nodes: numa.MaskOf(g.node), Preferred: true}}}
}

func (g *gpus) Hints(p *v1.Pod, _ *v1.Container) numa.Hints { return g.PodHints(p) }

func (g *gpus) Allocate(ctx context.Context, p *v1.Pod, _ *v1.Container, affinity numa.Mask) error {
	if !g.Needs(p) {
		return nil
	}
	g.begun <- affinity
	select {
	case err := <-g.answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// newAligned returns a rig of a machine with two NUMA nodes, of two CPUs each, with devices of the second one.
func newAligned(t *testing.T) (*rig, *gpus) {
	t.Helper()
	r := newRig(t)
	g := &gpus{node: 1, begun: make(chan numa.Mask), answer: make(chan error)}
	r.nodes, r.topology = []int{2, 2}, numa.PolicySingleNode
	r.wrap = func(m *deviceplugins.Manager) allocator.Devices {
		g.Manager = m
		return g
	}
	must(t, r.restart(cpus.PolicyStatic))
	r.Recover(nil, goesOn)
	return r, g
}

// TestCPUsAndDevicesAreOfOneNode checks that a pod gets the CPUs beside its device, and that the next one is refused.
func TestCPUsAndDevicesAreOfOneNode(t *testing.T) {
	r, g := newAligned(t)
	pinned := pod("gpu-1", "2")
	if wait, err := r.Check(pinned); wait || err != nil {
		t.Fatal(wait, err)
	}
	done := make(chan error, 1)
	go func() { done <- r.Allocate(t.Context(), pinned) }()
	if affinity := <-g.begun; affinity != numa.MaskOf(1) {
		t.Errorf("the devices are of the NUMA nodes %v, want 1", affinity.Nodes())
	}
	g.answer <- nil
	must(t, <-done)
	r.wantGiven(pinned, "2-3/2-3")
	_, err := r.Check(pod("gpu-2", "1"))
	var affinity *numa.AffinityError
	if !errors.As(err, &affinity) || affinity.Reason() != "TopologyAffinityError" ||
		err.Error() != "Resources cannot be allocated with Topology locality" {
		t.Errorf("the next pod: %v", err)
	}
	if _, err := r.Check(pod("plain", "1")); err != nil {
		t.Errorf("a pod without a device: %v", err)
	}
}

// TestAPluginThatHangsDelaysPodsWithDevicesOnly checks that alignment goes on for other pods, and that the release of a
// pod ends its allocation.
func TestAPluginThatHangsDelaysPodsWithDevicesOnly(t *testing.T) {
	r, g := newAligned(t)
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { first <- r.Allocate(t.Context(), pod("gpu-1", "1")) }()
	<-g.begun
	go func() { second <- r.Allocate(t.Context(), pod("gpu-2", "1")) }()
	plain := pod("plain", "1")
	must(t, r.Allocate(t.Context(), plain))
	r.wantGiven(plain, "1/1")
	r.Release("gpu-1")
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("the allocation of a released pod ends with %v", err)
	}
	r.Release("gpu-1") // as the loop does after an allocation of a pod that is gone
	<-g.begun
	g.answer <- nil
	must(t, <-second)
	r.wantGiven(pod("gpu-2", "1"), "2/2")
}

// containers returns a guaranteed pod with containers of so many CPUs and so much memory each.
func containers(uid, size string, counts ...string) *v1.Pod {
	p := pod(uid, "1")
	p.Spec.Containers = nil
	for i, count := range counts {
		has := podtest.List("cpu", count, "memory", size)
		c := podtest.Container(has, has)
		c.Name = fmt.Sprint("c", i)
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
	return p
}

// TestTheScopeContainerAlignsEachContainer checks a pod that fits by containers and not as a whole, and that nothing of
// a pod is left whose last container cannot be aligned: neither after the check, nor after an allocation that fails
// because it was not checked, also if syncloop is killed in between.
func TestTheScopeContainerAlignsEachContainer(t *testing.T) {
	r := newWithMemory(t, numa.PolicySingleNode)
	fits := containers("fits", "60Mi", "1", "2")
	var affinity *numa.AffinityError
	if _, err := r.Check(fits); !errors.As(err, &affinity) {
		t.Errorf("as a whole: %v", err)
	}
	r.scope = numa.ScopeContainer
	must(t, r.restart(cpus.PolicyStatic))
	for _, p := range []*v1.Pod{
		containers("cpus", "1Mi", "1", "2", "1"), containers("memory", "60Mi", "500m", "500m", "500m"),
	} {
		before := r.files()
		if wait, err := r.Check(p); wait || err == nil {
			t.Errorf("pod %s: %v, %v", p.UID, wait, err)
		}
		if pods := r.Pods(); len(pods) > 0 || r.files() != before {
			t.Errorf("the check has given something to %v:\n%s", pods, r.files())
		}
		if err := r.Allocate(t.Context(), p); err == nil {
			t.Errorf("pod %s is given what it wants", p.UID)
		}
		must(t, r.restart(cpus.PolicyStatic))
		r.Release(p.UID)
		if pods := r.Pods(); len(pods) > 0 || r.files() != before {
			t.Errorf("%v has something after its release:\n%s", pods, r.files())
		}
	}
	if _, err := r.Check(fits); err != nil {
		t.Errorf("by containers: %v", err)
	}
	must(t, r.Allocate(t.Context(), fits))
	got := fmt.Sprint(r.CPUs("fits", "c0"), r.CPUs("fits", "c1"), r.Memory("fits", "c0"), r.Memory("fits", "c1"))
	if got != "1 2-3 [{memory 62914560 1}] [{memory 62914560 2}]" {
		t.Errorf("the containers have %s", got)
	}
}

// files returns the states on disk.
func (r *rig) files() string {
	r.t.Helper()
	var all []byte
	for _, name := range []string{cpustate.File, memorystate.File} {
		data, err := os.ReadFile(filepath.Join(r.root, name))
		must(r.t, err)
		all = append(append(all, data...), '\n')
	}
	return string(all)
}
