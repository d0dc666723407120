package memory_test

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/quartet-node/quartet/services/syncloop/internal/devices/memory"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/numa"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podtest"
)

func drawPod(t *rapid.T, uid string) *v1.Pod {
	draw := func(name string) v1.Container {
		size := resource.NewQuantity(int64(rapid.IntRange(1, 120).Draw(t, "size"))*mebi, resource.BinarySI).String()
		if pages := rapid.IntRange(0, 20).Draw(t, "pages"); pages > 10 {
			return container(name, size, "hugepages-2Mi", fmt.Sprint(2*(pages-10), "Mi"))
		}
		return container(name, size)
	}
	p := pod(uid)
	for i := range rapid.IntRange(0, 3).Draw(t, "inits") {
		c := draw(fmt.Sprint("init", i))
		if rapid.Bool().Draw(t, "sidecar") {
			c.RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
		}
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	}
	for i := range rapid.IntRange(1, 3).Draw(t, "containers") {
		p.Spec.Containers = append(p.Spec.Containers, draw(fmt.Sprint("c", i)))
	}
	return p
}

// check checks that all memory is free or a container's, that what is a container's is what the blocks say, and that
// the nodes of a block are one group.
func check(t *rapid.T, b *memory.Book) {
	nodes, assignments := b.State()
	held, blocks := map[v1.ResourceName]uint64{}, map[int]int{}
	for _, containers := range assignments {
		for _, list := range containers {
			for _, block := range list {
				held[block.Type] += block.Size
				for _, id := range block.Nodes.Nodes() {
					blocks[id]++
					if nodes[id].Group != block.Nodes {
						t.Fatalf("a block is of %v, and node %d is in %v", block.Nodes.Nodes(), id, nodes[id].Group.Nodes())
					}
				}
			}
		}
	}
	reserved := map[v1.ResourceName]uint64{}
	for id, node := range nodes {
		if node.Assignments != blocks[id] || node.Assignments == 0 && node.Group != numa.MaskOf(id) {
			t.Fatalf("node %d of the group %v has %d assignments, want %d", id, node.Group.Nodes(), node.Assignments,
				blocks[id])
		}
		for kind, table := range node.Tables {
			reserved[kind] += table.Reserved
			if table.Free+table.Reserved != table.Allocatable {
				t.Fatalf("%s of node %d is %+v", kind, id, table)
			}
		}
	}
	for kind, size := range reserved {
		if held[kind] != size {
			t.Fatalf("containers have %d of %s, and nodes say %d", held[kind], kind, size)
		}
	}
}

// restart restores the state on a machine that may have other amounts of memory. If it does not fit there, the next
// book is that of a machine of the same amounts, as after a drain.
func restart(t *rapid.T, b *memory.Book, sizes []uint64) *memory.Book {
	before := slices.Clone(sizes)
	for i := range sizes {
		sizes[i] = max(50, sizes[i]+rapid.Uint64Range(0, 16).Draw(t, "more")-rapid.Uint64Range(0, 16).Draw(t, "less"))
	}
	next, err := memory.New(config(sizes))
	if err != nil {
		t.Fatal(err)
	}
	_, want := b.State()
	changed, err := next.Restore(b.State())
	if err != nil {
		if _, left := next.State(); len(left) > 0 || slices.Equal(before, sizes) {
			t.Fatalf("a refused state is taken over, or the machine has not changed: %v", err)
		}
		copy(sizes, before)
		return b
	}
	if _, got := next.State(); !reflect.DeepEqual(got, want) || (changed == "") != slices.Equal(before, sizes) {
		t.Fatalf("%v was restored as %v with the change %q from %v to %v", want, got, changed, before, sizes)
	}
	return next
}

// config is the configuration of a machine of which 8 Mi of the first NUMA node are reserved.
func config(sizes []uint64) memory.Config {
	return memory.Config{
		Machine: machine(sizes...), NotForPods: podtest.List("memory", "8Mi"),
		Reserved: []kubeletconfigv1beta1.MemoryReservation{reserve(0, "memory", "8Mi")},
	}
}

// TestMemoryIsPromisedOnce checks with random pods and hints that no memory is lost or promised twice, that groups of
// nodes do not overlap, that a refused container changes nothing, that a state can be restored, also by a machine of
// other amounts of memory, and that nothing is left at the end.
func TestMemoryIsPromisedOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.Uint64Range(50, 140), 1, 4).Draw(t, "machine")
		b, err := memory.New(config(sizes))
		if err != nil {
			t.Fatal(err)
		}
		pods := map[types.UID]*v1.Pod{}
		for i := range 8 {
			p := drawPod(t, fmt.Sprint("pod", i))
			pods[p.UID] = p
			best := numa.Hint{Preferred: rapid.Bool().Draw(t, "preferred")}
			for range rapid.IntRange(0, 2).Draw(t, "hints") {
				best.Nodes |= numa.MaskOf(rapid.IntRange(0, len(sizes)-1).Draw(t, "hint"))
			}
			before, _ := b.State()
			if _, err := b.Clone().Allocate(p, &p.Spec.Containers[0], best); err != nil {
				_, _ = b.Allocate(p, &p.Spec.Containers[0], best)
				if after, _ := b.State(); !reflect.DeepEqual(before, after) {
					t.Fatalf("a refusal has changed %v to %v", before, after)
				}
			}
			if _, err := give(b, p, best); err != nil {
				b.Release(p.UID)
			}
			check(t, b)
			if held := b.Pods(); len(held) > 0 {
				uid := rapid.SampledFrom(held).Draw(t, "pod")
				switch rapid.IntRange(0, 2).Draw(t, "then") {
				case 0:
					b.Release(uid)
				case 1:
					b.Started(pods[uid], pods[uid].Spec.Containers[0].Name)
				}
			}
			check(t, b)
			restored, err := memory.New(config(sizes))
			if err != nil {
				t.Fatal(err)
			}
			if changed, err := restored.Restore(b.State()); changed != "" || err != nil {
				t.Fatal(changed, err)
			}
			b = restored
			b = restart(t, b, sizes)
			check(t, b)
		}
		for _, uid := range b.Pods() {
			b.Release(uid)
		}
		check(t, b)
		if _, assignments := b.State(); len(assignments) > 0 {
			t.Fatalf("%v is left", assignments)
		}
	})
}
