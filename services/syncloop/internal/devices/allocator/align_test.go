package allocator_test

import (
	"context"
	"errors"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/devices/allocator"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/cpus"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/deviceplugins"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/numa"
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
	r.Recover(nil)
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
