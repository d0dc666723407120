package memory_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/cadvisor/lib/model"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/services/syncloop/internal/devices/memory"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/numa"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podtest"
)

const mebi = 1 << 20

// machine returns a machine with NUMA nodes of so many mebibytes, of which 32 Mi each are huge pages of 2 Mi.
func machine(sizes ...uint64) *model.MachineInfo {
	info := &model.MachineInfo{}
	for id, size := range sizes {
		info.Topology = append(info.Topology, model.Node{
			Id: id, Memory: size * mebi, HugePages: []model.HugePagesInfo{{PageSize: 2048, NumPages: 16}},
		})
	}
	return info
}

func reserve(node int32, pairs ...string) kubeletconfigv1beta1.MemoryReservation {
	return kubeletconfigv1beta1.MemoryReservation{NumaNode: node, Limits: podtest.List(pairs...)}
}

// book returns a book of a machine of which 8 Mi of the first NUMA node are reserved.
func book(t *testing.T, sizes ...uint64) *memory.Book {
	t.Helper()
	b, err := memory.New(memory.Config{
		Machine: machine(sizes...), NotForPods: podtest.List("memory", "8Mi"),
		Reserved: []kubeletconfigv1beta1.MemoryReservation{reserve(0, "memory", "8Mi")},
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func container(name, size string, more ...string) v1.Container {
	has := podtest.List(append([]string{"cpu", "1", "memory", size}, more...)...)
	c := podtest.Container(has, has)
	c.Name = name
	return c
}

func pod(uid string, containers ...v1.Container) *v1.Pod {
	p := podtest.Pod(uid, containers...)
	p.UID = types.UID(uid)
	return p
}

// text returns blocks as text, such as "memory=10@[0 1]".
func text(blocks []memory.Block) string {
	var all []string
	for _, b := range blocks {
		all = append(all, fmt.Sprintf("%s=%d@%v", b.Type, b.Size/mebi, b.Nodes.Nodes()))
	}
	return strings.Join(all, ",")
}

// give allocates the memory of all containers of a pod, and returns it by container.
func give(b *memory.Book, p *v1.Pod, best numa.Hint) (string, error) {
	for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			if _, err := b.Allocate(p, &list[i], best); err != nil {
				return "", err
			}
		}
	}
	return held(b, p), nil
}

func held(b *memory.Book, p *v1.Pod) string {
	var got []string
	for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			if blocks := b.Of(p.UID, list[i].Name); blocks != nil {
				got = append(got, list[i].Name+":"+text(blocks))
			}
		}
	}
	return strings.Join(got, " ")
}

func want(t *testing.T, b *memory.Book, p *v1.Pod, best numa.Hint, text string) {
	t.Helper()
	if got, err := give(b, p, best); err != nil || got != text {
		t.Errorf("pod %s is given %q, %v, want %q", p.UID, got, err, text)
	}
}

func wantError(t *testing.T, err error, text string) {
	t.Helper()
	if err == nil || err.Error() != text {
		t.Errorf("error = %v\nwant    %s", err, text)
	}
}

// TestNodesAreUsedAloneOrAsAGroup checks the rule of the package: a node on its own is in no group, and a group is used
// as a whole until nothing of it is in use.
func TestNodesAreUsedAloneOrAsAGroup(t *testing.T) {
	b := book(t, 132, 132, 132, 132) // 92 Mi and 100 Mi each
	want(t, b, pod("one", container("main", "60Mi")), numa.Hint{}, "main:memory=60@[0]")
	want(t, b, pod("wide", container("main", "150Mi", "hugepages-2Mi", "40Mi")), numa.Hint{},
		"main:hugepages-2Mi=40@[1 2],memory=150@[1 2]")
	want(t, b, pod("next", container("main", "60Mi")), numa.Hint{}, "main:memory=60@[3]")
	_, err := give(b, pod("no", container("main", "55Mi")), numa.Hint{})
	wantError(t, err,
		"[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available")
	_, err = give(b, pod("no", container("main", "45Mi")), numa.Hint{Nodes: numa.MaskOf(1), Preferred: true})
	wantError(t, err, "[memorymanager] failed to find the extended preferred hint")
	want(t, b, pod("within", container("main", "45Mi")), numa.Hint{Nodes: numa.MaskOf(1)}, "main:memory=45@[1 2]")
	_, err = give(b, pod("no", container("main", "10Mi")), numa.Hint{Nodes: numa.MaskOf(0, 3)})
	wantError(t, err, "[memorymanager] preferred hint violates NUMA node allocation")
	b.Release("wide")
	if !b.Release("within") || b.Release("within") {
		t.Error("Release does not say whether the pod had memory")
	}
	want(t, b, pod("after", container("main", "45Mi")), numa.Hint{}, "main:memory=45@[1]")
}

// TestInitContainersLeaveTheirMemory checks what the containers after an init container take over, what it leaves to
// other pods, that a sidecar keeps its own, and that one that runs again has none.
func TestInitContainersLeaveTheirMemory(t *testing.T) {
	b := book(t, 140) // 100 Mi
	sidecar := container("sidecar", "10Mi")
	sidecar.RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
	p := pod("u", container("main", "30Mi"))
	p.Spec.InitContainers = []v1.Container{container("first", "60Mi"), sidecar, container("second", "70Mi")}
	if wanted, err := memory.WantedByPod(p); err != nil || wanted["memory"] != 80*mebi {
		t.Errorf("the pod wants %v, %v, want 80 Mi", wanted, err)
	}
	want(t, b, p, numa.Hint{}, "first:memory=0@[0] sidecar:memory=10@[0] second:memory=40@[0] main:memory=30@[0]")
	next := pod("next", container("main", "60Mi"))
	if _, err := give(b, next, numa.Hint{}); err == nil {
		t.Error("another pod has the memory of an init container that runs")
	}
	if !b.Started(p, "main") || b.Started(p, "main") {
		t.Error("Started does not say whether init containers had memory")
	}
	want(t, b, next, numa.Hint{}, "main:memory=60@[0]")
	want(t, b, p, numa.Hint{}, "sidecar:memory=10@[0] main:memory=30@[0]")
	if hints := b.Hints(p, &p.Spec.InitContainers[0]); hints != nil {
		t.Errorf("an init container that has ended has hints %v", hints)
	}
}

func TestWhoGetsNoMemory(t *testing.T) {
	b := book(t, 140)
	whole := pod("whole", container("main", "1Mi"))
	whole.Spec.Resources = &v1.ResourceRequirements{Limits: podtest.List("memory", "8Mi")}
	burstable := pod("burstable", podtest.Container(podtest.List("memory", "1Mi"), nil))
	for _, p := range []*v1.Pod{whole, burstable} {
		want(t, b, p, numa.Hint{}, "")
		if b.PodHints(p) != nil || b.Hints(p, &p.Spec.Containers[0]) != nil {
			t.Errorf("pod %s has hints", p.UID)
		}
	}
	part := pod("part", container("main", "1500m"))
	_, err := give(b, part, numa.Hint{})
	wantError(t, err, "[memorymanager] failed to represent quantity as int64")
	if b.PodHints(part) != nil || b.Hints(part, &part.Spec.Containers[0]) != nil {
		t.Error("an amount that is no number of bytes has hints")
	}
	_, err = give(b, pod("pages", container("main", "1Mi", "hugepages-1Gi", "1Gi")), numa.Hint{})
	wantError(t, err,
		"[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available")
}

func TestHintsPreferAsFewNodesAsPossible(t *testing.T) {
	b := book(t, 132, 132) // 92 Mi and 100 Mi
	show := func(hints numa.Hints) string {
		var all []string
		for _, h := range hints["memory"] {
			all = append(all, fmt.Sprint(h.Nodes.Nodes(), h.Preferred))
		}
		return strings.Join(all, " ")
	}
	p := pod("u", container("main", "50Mi"), container("second", "50Mi"))
	if got := show(b.Hints(p, &p.Spec.Containers[0])); got != "[0] true [1] true [0 1] false" {
		t.Errorf("the hints of the container are %s", got)
	}
	if got := show(b.PodHints(p)); got != "[1] true [0 1] false" {
		t.Errorf("the hints of the pod are %s", got)
	}
	want(t, b, p, numa.Hint{Nodes: numa.MaskOf(1), Preferred: true}, "main:memory=50@[1] second:memory=50@[1]")
	if got := show(b.Hints(p, &p.Spec.Containers[0])); got != "[1] true" {
		t.Errorf("the hints of a container that has its memory are %s", got)
	}
	big := pod("big", container("main", "95Mi"))
	if hints := b.PodHints(big); hints == nil || len(hints) > 0 {
		t.Errorf("the hints of a pod that cannot have its memory are %v, want none", hints)
	}
	want(t, b, pod("beside", container("main", "5Mi")), numa.Hint{Nodes: numa.MaskOf(0), Preferred: true},
		"main:memory=5@[0]")
}

func TestReservationsThatAreRefused(t *testing.T) {
	one := []kubeletconfigv1beta1.MemoryReservation{reserve(0, "memory", "8Mi")}
	for text, cfg := range map[string]memory.Config{
		`reservedMemory: the total amount "8Mi" of type "memory" is not equal to "100Mi", the sum of systemReserved, ` +
			`kubeReserved and memory.available of evictionHard`: {Reserved: one, NotForPods: podtest.List("memory", "100Mi")},
		`reservedMemory: the total amount "2Mi" of type "hugepages-2Mi" is not equal to "0", the sum of systemReserved, ` +
			`kubeReserved and memory.available of evictionHard`: {
			Reserved: []kubeletconfigv1beta1.MemoryReservation{reserve(0, "hugepages-2Mi", "2Mi")},
		},
		"reservedMemory[1].numaNode: the machine has no NUMA node 2": {
			Reserved: append(one, reserve(2, "memory", "1Mi")), //nolint:gocritic // one is not used again
		},
		"reservedMemory: [memorymanager] you should specify the system reserved memory": {},
		`reservedMemory: 142606336 bytes of type "memory" are reserved or huge pages, and NUMA node 1 has 104857600`: {
			Reserved:   []kubeletconfigv1beta1.MemoryReservation{reserve(1, "memory", "104Mi")},
			NotForPods: podtest.List("memory", "104Mi"),
		},
	} {
		cfg.Machine = machine(100, 100)
		_, err := memory.New(cfg)
		wantError(t, err, text)
	}
}

// TestStatesThatDoNotFitAreRefused checks that a changed machine and a changed reservation are found, and that a state
// that fits is taken over.
func TestStatesThatDoNotFitAreRefused(t *testing.T) {
	before := book(t, 132, 132)
	want(t, before, pod("u", container("main", "150Mi")), numa.Hint{}, "main:memory=150@[0 1]")
	nodes, all := before.State()
	const differs = "[memorymanager] the expected machine state is different from the real one: "
	for text, b := range map[string]*memory.Book{
		differs + "it has the NUMA nodes [0 1], and the machine [0 1 2]": book(t, 132, 132, 132),
		"[memorymanager] (pod: u, container: main) the memory assignment uses the NUMA that does not " +
			"exist": book(t, 132),
		"[memorymanager] NUMA node 0 had 138412032 bytes of memory, and has 104857600; the container main of the pod u " +
			"has 157286400 bytes of memory of the NUMA nodes [0 1], which have only 136314880 left for it": book(t, 100, 102),
		differs + "it has memory of NUMA node 0 as {Total:0 System:8388608 Allocatable:0 Reserved:157286400 Free:0}, and " +
			"the machine {Total:0 System:9437184 Allocatable:0 Reserved:157286400 Free:0}": reservingMore(t, 133, 132),
	} {
		_, err := b.Restore(nodes, all)
		wantError(t, err, text)
		if b.Pods() != nil {
			t.Error("a refused state is taken over")
		}
	}
	b := book(t, 132, 132)
	_, err := b.Restore(nil, all)
	wantError(t, err, "[memorymanager] machine state can not be empty when it has memory assignments")
	_, err = b.Restore(nodes, nil)
	wantError(t, err, differs+"it has 1 assignments of NUMA node 0 in the group [0 1], and containers have 0 in [0]")
	if changed, err := b.Restore(nil, nil); changed != "" || err != nil {
		t.Errorf("a new state is refused: %q, %v", changed, err)
	}
	if changed, err := b.Restore(nodes, all); changed != "" || err != nil ||
		text(b.Of("u", "main")) != "memory=150@[0 1]" || b.NodesOf("u", "main") != numa.MaskOf(0, 1) {
		t.Errorf("restored %v, %q, %v", b.Of("u", "main"), changed, err)
	}
}

// reservingMore returns a book of a machine of which 9 Mi of the first NUMA node are reserved.
func reservingMore(t *testing.T, sizes ...uint64) *memory.Book {
	t.Helper()
	b, err := memory.New(memory.Config{
		Machine: machine(sizes...), NotForPods: podtest.List("memory", "9Mi"),
		Reserved: []kubeletconfigv1beta1.MemoryReservation{reserve(0, "memory", "9Mi")},
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestContainersKeepTheirMemoryWhenTheMachineHasOtherAmounts checks a machine whose kernel keeps more or less memory
// for itself than at its last start. A book can be restored from the new state without a change.
func TestContainersKeepTheirMemoryWhenTheMachineHasOtherAmounts(t *testing.T) {
	before := book(t, 132, 132, 132) // 92 Mi, 100 Mi and 100 Mi
	wide, one := pod("wide", container("main", "150Mi", "hugepages-2Mi", "40Mi")), pod("one", container("main", "60Mi"))
	want(t, before, wide, numa.Hint{}, "main:hugepages-2Mi=40@[0 1],memory=150@[0 1]")
	want(t, before, one, numa.Hint{}, "main:memory=60@[2]")
	nodes, all := before.State()
	for name, test := range map[string]struct {
		sizes         []uint64
		changed, next string // next is the most that another container can have of the NUMA node 2
	}{
		"less": {[]uint64{98, 132, 92}, "NUMA node 0 had 138412032 bytes of memory, and has 102760448", ""},
		"more": {[]uint64{132, 132, 192}, "NUMA node 2 had 138412032 bytes of memory, and has 201326592", "100Mi"},
		"some more, some less": {
			[]uint64{120, 140, 132}, "NUMA node 0 had 138412032 bytes of memory, and has 125829120", "40Mi",
		},
		"the same": {[]uint64{132, 132, 132}, "", "40Mi"},
	} {
		b := book(t, test.sizes...)
		if changed, err := b.Restore(nodes, all); changed != test.changed || err != nil {
			t.Errorf("%s: %q, %v", name, changed, err)
			continue
		}
		if got := held(b, wide) + " " + held(b, one); got !=
			"main:hugepages-2Mi=40@[0 1],memory=150@[0 1] main:memory=60@[2]" {
			t.Errorf("%s: the pods have %s", name, got)
		}
		again := book(t, test.sizes...)
		if changed, err := again.Restore(b.State()); changed != "" || err != nil {
			t.Errorf("%s: the new state is refused: %q, %v", name, changed, err)
		}
		if test.next != "" {
			want(t, again, pod("next", container("main", test.next)), numa.Hint{},
				"main:memory="+strings.TrimSuffix(test.next, "Mi")+"@[2]")
		}
		if _, err := give(again, pod("late", container("main", "1Mi")), numa.Hint{Nodes: numa.MaskOf(2)}); err == nil {
			t.Errorf("%s: memory is promised twice", name)
		}
		again.Release("wide")
		again.Release("one")
		want(t, again, pod("after", container("main", "55Mi")), numa.Hint{}, "main:memory=55@[0]")
	}
}

func TestOnlyFreeMemoryIsAdopted(t *testing.T) {
	b := book(t, 132, 132)
	block := func(size uint64, nodes ...int) []memory.Block {
		return []memory.Block{{Type: "memory", Size: size * mebi, Nodes: numa.MaskOf(nodes...)}}
	}
	if !b.Adopt("u", "main", block(50, 0)) || b.Adopt("u", "main", block(1, 0)) || b.Adopt("u", "b", block(50, 0)) ||
		b.Adopt("u", "b", block(1, 0, 1)) || b.Adopt("u", "b", block(1, 5)) || b.Adopt("u", "b", nil) ||
		b.Adopt("u", "b", block(1)) || !b.Adopt("u", "b", block(42, 0)) {
		t.Error("memory that is not free is adopted, or free memory is not")
	}
	if got := text(b.Of("u", "main")) + " " + text(b.Of("u", "b")); got != "memory=50@[0] memory=42@[0]" {
		t.Errorf("adopted are %s", got)
	}
}
