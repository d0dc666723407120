package cpus_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/cadvisor/lib/model"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/quartet-node/quartet/services/syncloop/internal/devices/cpus"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/numa"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podtest"
)

// machine returns a machine with NUMA nodes that are sockets, each with cores of the given numbers of CPUs.
func machine(t interface{ Fatal(args ...any) }, nodes ...[]int) *cpus.Machine {
	info := &model.MachineInfo{NumSockets: len(nodes)}
	for i, sizes := range nodes {
		node := model.Node{Id: i}
		for j, size := range sizes {
			core := model.Core{Id: j, SocketID: i}
			for range size {
				core.Threads = append(core.Threads, info.NumCores)
				info.NumCores++
			}
			node.Cores = append(node.Cores, core)
		}
		info.Topology = append(info.Topology, node)
	}
	m, err := cpus.Discover(info)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func book(t *testing.T, cfg cpus.Config) *cpus.Book {
	t.Helper()
	if cfg.ReservedMilli == 0 {
		cfg.ReservedMilli = 1000
	}
	b, err := cpus.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func container(name, cpu string) v1.Container {
	has := podtest.List("cpu", cpu, "memory", "1Mi")
	c := podtest.Container(has, has)
	c.Name = name
	return c
}

func pod(uid string, containers ...v1.Container) *v1.Pod {
	p := podtest.Pod(uid, containers...)
	p.UID = types.UID(uid)
	return p
}

// give allocates the CPUs of all containers of a pod, and returns them by container.
func give(t *testing.T, b *cpus.Book, p *v1.Pod) (string, error) {
	t.Helper()
	var got []string
	for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			if _, err := b.Allocate(p, &list[i], 0); err != nil {
				return "", err
			}
			if set, own := b.Of(p.UID, list[i].Name); own {
				got = append(got, list[i].Name+"="+set.String())
			}
		}
	}
	return strings.Join(got, " "), nil
}

func wantError(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || err.Error() != want {
		t.Errorf("error = %v, want %s", err, want)
	}
}

func TestOnlyWholeCPUsOfGuaranteedPodsAreGiven(t *testing.T) {
	b := book(t, cpus.Config{Machine: machine(t, []int{2, 2, 2, 2})})
	burstable := pod("burstable", container("main", "2"))
	burstable.Spec.Containers[0].Resources.Limits = nil
	whole := pod("whole", container("main", "2"))
	whole.Spec.Resources = &v1.ResourceRequirements{Limits: podtest.List("cpu", "2", "memory", "1Mi")}
	for _, p := range []*v1.Pod{burstable, whole, pod("part", container("main", "1500m"))} {
		if got, err := give(t, b, p); got != "" || err != nil {
			t.Errorf("%s has %q, %v, want none", p.UID, got, err)
		}
	}
	got, err := give(t, b, pod("own", container("main", "2"), container("part", "500m")))
	if err != nil || got != "main=2-3" || b.Shared().String() != "0-1,4-7" {
		t.Errorf("given %q, %v, and %s is shared, want main=2-3, and 0-1,4-7", got, err, b.Shared())
	}
	if released := b.Release("own"); released.String() != "2-3" || b.Shared().String() != "0-7" {
		t.Errorf("%s is released, and %s shared, want 2-3 and 0-7", released, b.Shared())
	}
}

func TestInitContainersAndSidecarsReuseCPUs(t *testing.T) {
	b := book(t, cpus.Config{Machine: machine(t, []int{1, 1, 1, 1, 1, 1, 1, 1})})
	sidecar := container("sidecar", "1")
	sidecar.RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
	p := pod("u", container("main", "1"), container("other", "2"))
	p.Spec.InitContainers = []v1.Container{container("first", "2"), sidecar, container("second", "3")}
	got, err := give(t, b, p)
	if want := "first=1-2 sidecar=1 second=2-4 main=2 other=3-4"; err != nil || got != want {
		t.Errorf("given %q, %v, want %q", got, err, want)
	}
	if wanted := cpus.WantedByPod(p); wanted != 4 {
		t.Errorf("the pod wants %d CPUs, want 4", wanted)
	}
}

func TestWhyCPUsAreNotGiven(t *testing.T) {
	b := book(t, cpus.Config{Machine: machine(t, []int{2, 2})})
	_, err := give(t, b, pod("u", container("main", "4")))
	wantError(t, err, "not enough cpus available to satisfy request: requested=4, available=3")
	b = book(t, cpus.Config{Machine: machine(t, []int{2, 2}), Options: cpus.Options{WholeCores: true}})
	_, err = give(t, b, pod("u", container("main", "3")))
	wantError(t, err, "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2")
	_, err = give(t, b, pod("u", container("main", "4")))
	wantError(t, err,
		"SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 2, requested CPUs = 4, "+
			"CPUs per core = 2")
	var alignment *cpus.AlignmentError
	if !errors.As(err, &alignment) || alignment.Reason() != "SMTAlignmentError" {
		t.Errorf("the reason of %v is not SMTAlignmentError", err)
	}
}

func TestReservationsThatAreRefused(t *testing.T) {
	m := machine(t, []int{2, 2})
	for want, cfg := range map[string]cpus.Config{
		"[cpumanager] unable to determine reserved CPU resources for static policy: set cpu in systemReserved or " +
			"kubeReserved, or set reservedSystemCPUs": {Machine: m},
		"new static policy error: [cpumanager] unable to reserve the required amount of CPUs (size of  did not equal 5)": {
			Machine: m, ReservedMilli: 4001,
		},
		"new static policy error: [cpumanager] unable to build the reserved physical CPUs from the reserved set: " +
			"unknown CPU ID: 9": {Machine: m, ReservedMilli: 1000, Reserved: cpuset.New(9)},
		"new static policy error: Topolgy manager single-numa-node policy is incompatible with CPUManager align-by-socket " +
			"policy option": {Machine: m, ReservedMilli: 1, Options: cpus.Options{BySockets: true},
			Topology: numa.PolicySingleNode},
	} {
		_, err := cpus.New(cfg)
		wantError(t, err, want)
	}
	if _, err := m.ParseReserved("1-9"); err == nil ||
		err.Error() != "reserved-cpus: 1-9 is not a subset of online-cpus: 0-3" {
		t.Errorf("error = %v", err)
	}
}

func TestStatesThatDoNotFitAreRefused(t *testing.T) {
	sets := func(shared string, held ...string) (cpuset.CPUSet, cpus.Assignments) {
		all := cpus.Assignments{}
		for i, text := range held {
			set, err := cpuset.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			all[types.UID(fmt.Sprint("pod", i))] = map[string]cpuset.CPUSet{"main": set}
		}
		set, err := cpuset.Parse(shared)
		if err != nil {
			t.Fatal(err)
		}
		return set, all
	}
	b := book(t, cpus.Config{Machine: machine(t, []int{2, 2})})
	for want, state := range map[string][]string{
		"default cpuset cannot be empty":                                              {"", "0-3"},
		`not all reserved cpus: "0" are present in defaultCpuSet: "1-2"`:              {"1-2", "0,3"},
		`pod: pod0, container: main cpuset: "2-3" overlaps with default cpuset "0-2"`: {"0-2", "2-3"},
		`current set of available CPUs "0-3" doesn't match with CPUs in state "0-2"`:  {"0-1", "2"},
		`current set of available CPUs "0-3" doesn't match with CPUs in state "0-4"`:  {"0-3", "4"},
	} {
		shared, held := sets(state[0], state[1:]...)
		wantError(t, b.Restore(shared, held), want)
	}
	shared, held := sets("0-1", "2", "3")
	if err := b.Restore(shared, held); err != nil || b.Shared().String() != "0-1" || len(b.Pods()) != 2 {
		t.Errorf("restored %v with %v, %v", b.Shared(), b.Pods(), err)
	}
	strict := book(t, cpus.Config{Machine: machine(t, []int{2, 2}), Options: cpus.Options{StrictReserve: true}})
	shared, held = sets("0-1", "2-3")
	wantError(t, strict.Restore(shared, held), `some of strictly reserved cpus: "0" are present in defaultCpuSet: "0-1"`)
	shared, held = sets("", "1-3")
	if err := strict.Restore(shared, held); err != nil || !strict.Shared().IsEmpty() {
		t.Errorf("a state without shared CPUs is refused: %v", err)
	}
}

func TestOptionsAndTheirGates(t *testing.T) {
	for want, tc := range map[string]struct {
		values map[string]string
		gates  cpus.Gates
	}{
		`unknown CPU Manager Policy option: "x"`: {values: map[string]string{"x": "true"}},
		`CPU Manager Policy Alpha-level Options not enabled, but option "align-by-socket" provided`: {
			values: map[string]string{"align-by-socket": "true"}, gates: cpus.Gates{Beta: true},
		},
		`CPU Manager Policy Beta-level Options not enabled, but option "distribute-cpus-across-numa" provided`: {
			values: map[string]string{"distribute-cpus-across-numa": "true"},
		},
		`bad value for option "full-pcpus-only": strconv.ParseBool: parsing "x": invalid syntax`: {
			values: map[string]string{"full-pcpus-only": "x"},
		},
		"static policy options full-pcpus-only and distribute-cpus-across-cores can not be used at the same time": {
			values: map[string]string{"full-pcpus-only": "true", "distribute-cpus-across-cores": "true"},
			gates:  cpus.Gates{Alpha: true},
		},
	} {
		_, err := cpus.ParseOptions(tc.values, tc.gates)
		wantError(t, err, want)
	}
}

// TestOnlyFreeCPUsAreGiven checks on machines with cores and nodes of different sizes that a container gets as many
// CPUs as it wants, that no CPU has two containers, and that none is lost.
func TestOnlyFreeCPUsAreGiven(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.SliceOfN(rapid.IntRange(1, 2), 1, 4), 1, 4).Draw(t, "machine")
		option := rapid.SampledFrom([]cpus.Options{
			{}, {WholeCores: true}, {Distribute: true}, {Distribute: true, WholeCores: true}, {Spread: true}, {Caches: true},
			{StrictReserve: true}, {Distribute: true, BySockets: true}, {Distribute: true, BySockets: true, WholeCores: true},
		}).Draw(t, "options")
		m := machine(t, sizes...)
		all := m.All().List()
		reserved := cpuset.New(rapid.SliceOfN(rapid.SampledFrom(all), 1, 2).Draw(t, "reserved")...)
		b, err := cpus.New(cpus.Config{
			Machine: m, Options: option, Reserved: reserved, ReservedMilli: int64(reserved.Size()) * 1000,
		})
		if err != nil {
			t.Skip(err)
		}
		total := b.Shared()
		for i := range 6 {
			if rapid.Bool().Draw(t, "end") && len(b.Pods()) > 0 {
				b.Release(b.Pods()[0])
			}
			count := rapid.IntRange(1, len(all)).Draw(t, "count")
			p := pod(fmt.Sprint("pod", i), container("main", fmt.Sprint(count)))
			affinity := numa.MaskOf(rapid.IntRange(0, len(sizes)-1).Draw(t, "affinity"))
			free := b.Free()
			_, err := b.Allocate(p, &p.Spec.Containers[0], affinity)
			set := b.HeldBy(p.UID)
			switch {
			case err != nil && (!set.IsEmpty() || !b.Free().Equals(free)):
				t.Fatalf("after %v the pod has %v", err, set)
			case err == nil && (set.Size() != count || !set.IsSubsetOf(free)):
				t.Fatalf("wants %d of %v, has %v", count, free, set)
			case err != nil && !option.WholeCores && count <= free.Size():
				t.Fatalf("wants %d of %v: %v", count, free, err)
			}
			if got := b.Held().Union(b.Shared()); !got.Equals(total) || !b.Held().Intersection(b.Shared()).IsEmpty() {
				t.Fatalf("%v is held and %v shared of %v", b.Held(), b.Shared(), total)
			}
		}
	})
}
