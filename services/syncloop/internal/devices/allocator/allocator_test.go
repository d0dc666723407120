package allocator_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/cadvisor/lib/model"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	clocktesting "k8s.io/utils/clock/testing"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/allocator"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/cpus"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/cpustate"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/deviceplugins"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/memory"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/numa"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podtest"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/logbuffer"
)

// rig is an allocator of a machine with four CPUs, of which CPU 0 is reserved.
type rig struct {
	t     *testing.T
	root  string
	log   *logbuffer.Buffer
	clock *clocktesting.FakeClock
	*allocator.Allocator
	// nodes are the numbers of CPUs of the NUMA nodes, topology and scope are those of the topology manager, and wrap
	// replaces the devices.
	nodes    []int
	topology string
	scope    string
	// memory is the policy of the memory manager: each NUMA node has 100 MiB less so many, of which one has 1 MiB for the
	// system.
	memory string
	less   uint64
	wrap   func(*deviceplugins.Manager) allocator.Devices
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{
		t: t, root: t.TempDir(), log: &logbuffer.Buffer{}, clock: clocktesting.NewFakeClock(time.Now()),
		nodes: []int{4}, topology: numa.PolicyNone, memory: memory.PolicyNone,
		wrap: func(m *deviceplugins.Manager) allocator.Devices { return m },
	}
	must(t, r.restart(cpus.PolicyStatic))
	r.Recover(nil, goesOn)
	return r
}

// goesOn is for pods whose containers may be started again.
func goesOn(types.UID) bool { return true }

// machine returns the CPUs of the machine.
func (r *rig) machine() (*model.MachineInfo, []numa.Node) {
	info := &model.MachineInfo{NumSockets: len(r.nodes)}
	var nodes []numa.Node
	for i, count := range r.nodes {
		node := model.Node{Id: i, Memory: (100 - r.less) << 20}
		for range count {
			node.Cores = append(node.Cores, model.Core{Id: info.NumCores, SocketID: i, Threads: []int{info.NumCores}})
			info.NumCores++
		}
		info.Topology = append(info.Topology, node)
		nodes = append(nodes, numa.Node{ID: i})
	}
	return info, nodes
}

// restart starts a process with a policy of the CPU manager.
func (r *rig) restart(policy string) error {
	r.t.Helper()
	logger := slog.New(slog.NewTextHandler(r.log, nil))
	devices, err := deviceplugins.New(deviceplugins.Config{
		Root: r.root, Clock: r.clock, Changed: func() {}, PodChanged: func(types.UID) {}, Logger: logger,
	})
	must(r.t, err)
	info, nodes := r.machine()
	var book *cpus.Book
	if policy == cpus.PolicyStatic {
		machine, err := cpus.Discover(info)
		must(r.t, err)
		book, err = cpus.New(cpus.Config{Machine: machine, ReservedMilli: 500})
		must(r.t, err)
	}
	var memories *memory.Book
	if r.memory == memory.PolicyStatic {
		one := podtest.List("memory", "1Mi")
		memories, err = memory.New(memory.Config{
			Machine: info, NotForPods: one, Reserved: []kubeletconfigv1beta1.MemoryReservation{{Limits: one}},
		})
		must(r.t, err)
	}
	topology, err := numa.New(r.topology, numa.Options{Maximum: 8}, nodes)
	must(r.t, err)
	next, err := allocator.New(allocator.Config{
		Root: r.root, Devices: r.wrap(devices), CPUs: book, Memory: memories, Policy: topology,
		Scope: cmp.Or(r.scope, numa.ScopePod), Clock: r.clock, Logger: logger,
	})
	if err == nil {
		r.Allocator = next
	}
	return err
}

func pod(uid, cpu string) *v1.Pod {
	has := podtest.List("cpu", cpu, "memory", "1Mi")
	p := podtest.Pod(uid, podtest.Container(has, has))
	p.UID = types.UID(uid)
	return p
}

// given returns the CPUs that the container of a pod is created with, and its annotation.
func (r *rig) given(p *v1.Pod) string {
	r.t.Helper()
	given, err := r.Give(r.t.Context(), p, &p.Spec.Containers[0])
	must(r.t, err)
	return given.CPUs + "/" + given.Annotations[podlabels.CPUs]
}

func (r *rig) wantGiven(p *v1.Pod, want string) {
	r.t.Helper()
	if got := r.given(p); got != want {
		r.t.Errorf("pod %s is given %s, want %s", p.UID, got, want)
	}
}

// runs returns what pleg says of the running containers of pods.
func (r *rig) runs(pods ...*v1.Pod) []*lifecyclev1.PodStatus {
	var all []*lifecyclev1.PodStatus
	for _, p := range pods {
		_, own, _ := strings.Cut(r.given(p), "/")
		c := &lifecyclev1.Container{
			Id: "id-" + string(p.UID), Name: p.Spec.Containers[0].Name,
			State: lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING,
		}
		if own != "" {
			c.Annotations = map[string]string{podlabels.CPUs: own}
		}
		all = append(all, &lifecyclev1.PodStatus{Uid: string(p.UID), Containers: []*lifecyclev1.Container{c}})
	}
	return all
}

// TestCPUsSurviveARestart checks that the CPUs are on disk when Allocate returns, and that a container of a pod that is
// created again gets the same ones.
func TestCPUsSurviveARestart(t *testing.T) {
	r := newRig(t)
	own, part := pod("own", "2"), pod("part", "500m")
	if !r.Needs(own) || r.Needs(part) {
		t.Error("whole CPUs are not needed, or parts are")
	}
	must(t, r.Allocate(t.Context(), own))
	must(t, r.restart(cpus.PolicyStatic))
	if wait, err := r.Check(pod("next", "2")); wait || err == nil ||
		err.Error() != "not enough cpus available to satisfy request: requested=2, available=1" {
		t.Errorf("another pod: %v, %v", wait, err)
	}
	r.wantGiven(own, "1-2/1-2")
	r.wantGiven(part, "0,3/")
	got := fmt.Sprint(r.CPUs("own", own.Spec.Containers[0].Name), r.AllocatableCPUs(), r.Pods())
	if got != "1-2 1-3 [own]" {
		t.Errorf("the pod-resources API shows %s", got)
	}
	if !r.HasCPUs("own", "") || !r.HasCPUs("own", own.Spec.Containers[0].Name) || r.HasCPUs("part", "") {
		t.Error("HasCPUs is wrong")
	}
	r.Release("own")
	must(t, r.restart(cpus.PolicyStatic))
	r.wantGiven(part, "0-3/")
}

// TestARefusedPodFreesItsCPUs checks the pod that lacks CPUs for its second container.
func TestARefusedPodFreesItsCPUs(t *testing.T) {
	r := newRig(t)
	p := pod("u", "2")
	second := *p.Spec.Containers[0].DeepCopy()
	second.Name = "second"
	p.Spec.Containers = append(p.Spec.Containers, second)
	if _, err := r.Check(p); err == nil {
		t.Error("the pod is not refused")
	}
	if r.HasCPUs("u", "") {
		t.Error("Check has changed something")
	}
	if err := r.Allocate(t.Context(), p); err == nil {
		t.Error("the pod gets its CPUs")
	}
	r.Release("u")
	r.wantGiven(pod("part", "500m"), "0-3/")
}

// TestALostStateIsRebuiltFromWhatRuns checks a damaged state and a removed one.
func TestALostStateIsRebuiltFromWhatRuns(t *testing.T) {
	for name, lose := range map[string]func(path string) error{
		"damaged": func(path string) error { return os.WriteFile(path, []byte("{"), 0o600) },
		"removed": os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			own, other := pod("own", "2"), pod("other", "1")
			must(t, r.Allocate(t.Context(), own))
			runs := r.runs(own)
			must(t, lose(filepath.Join(r.root, cpustate.File)))
			must(t, r.restart(cpus.PolicyStatic))
			if wait, err := r.Check(other); !wait || err != nil {
				t.Errorf("a pod does not wait until the state is rebuilt: %v", err)
			}
			must(t, r.restart(cpus.PolicyStatic)) // killed before Recover
			r.Recover(runs, goesOn)
			must(t, r.restart(cpus.PolicyStatic)) // killed after it
			r.wantGiven(own, "1-2/1-2")
			must(t, r.Allocate(t.Context(), other))
			r.wantGiven(other, "3/3")
		})
	}
}

// TestACrashedContainerKeepsItsCPUs, unless it is not started again.
func TestACrashedContainerKeepsItsCPUs(t *testing.T) {
	for _, again := range []bool{true, false} {
		r := newRig(t)
		own, other := pod("own", "2"), pod("other", "1")
		must(t, r.Allocate(t.Context(), own))
		runs := r.runs(own)
		runs[0].Containers[0].State = lifecyclev1.ContainerState_CONTAINER_STATE_EXITED
		must(t, os.Remove(filepath.Join(r.root, cpustate.File)))
		must(t, r.restart(cpus.PolicyStatic))
		r.Recover(runs, func(types.UID) bool { return again })
		must(t, r.Allocate(t.Context(), other))
		if again {
			r.wantGiven(other, "3/3")
			r.wantGiven(own, "1-2/1-2")
		} else {
			r.wantGiven(other, "1/1")
		}
	}
}

// TestAStateOfAnotherPolicyIsRefused checks that the error names the file and what to do, and that nothing is changed.
func TestAStateOfAnotherPolicyIsRefused(t *testing.T) {
	r := newRig(t)
	path := filepath.Join(r.root, cpustate.File)
	want := fmt.Sprintf("could not restore state from checkpoint: configured policy %q differs from state checkpoint "+
		"policy %q, please drain this node and delete the CPU manager checkpoint file %q before restarting", "none", "static", path)
	if err := r.restart(cpus.PolicyNone); err == nil || err.Error() != want {
		t.Errorf("error = %v, want %s", err, want)
	}
	must(t, os.Remove(path))
	must(t, r.restart(cpus.PolicyNone))
	r.Recover(nil, goesOn)
	r.wantGiven(pod("own", "2"), "/")
	if r.Needs(pod("own", "2")) || len(r.Pods()) > 0 {
		t.Error("a pod needs CPUs for itself with the policy none")
	}
	if err := r.restart(cpus.PolicyStatic); err == nil {
		t.Error("the state of the policy none is accepted")
	}
}

// runtime records updates.
type runtime struct {
	mu      sync.Mutex
	updates []string
	fails   error
}

func (r *runtime) update(_ context.Context, id string, to *runtimeapi.ContainerResources) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	update := id + "=" + to.GetLinux().GetCpusetCpus()
	if nodes := to.GetLinux().GetCpusetMems(); nodes != "" {
		update += "@" + nodes
	}
	r.updates = append(r.updates, update)
	return r.fails
}

// take returns the updates since the last call.
func (r *runtime) take() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	updates := strings.Join(r.updates, " ")
	r.updates = nil
	return updates
}

// fail makes updates fail, or succeed with nil.
func (r *runtime) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fails = err
}

// TestSharedCPUsShrinkAndComeBack checks that a running container is updated once for each change, and again after an
// update that has failed, and that a running container without CPUs of its own gets those that it wants.
func TestSharedCPUsShrinkAndComeBack(t *testing.T) {
	r := newRig(t)
	part, own := pod("part", "500m"), pod("own", "2")
	var mu sync.Mutex
	pods, runs := []*v1.Pod{part}, r.runs(part)
	cri := &runtime{}
	loop := allocator.NewReconciler(allocator.ReconcilerConfig{
		Allocator: r.Allocator, Update: cri.update, Period: 10 * time.Second, Clock: r.clock,
		Pods: func() ([]*v1.Pod, error) {
			mu.Lock()
			defer mu.Unlock()
			return pods, nil
		},
		Observed: func() ([]*lifecyclev1.PodStatus, bool) {
			mu.Lock()
			defer mu.Unlock()
			return runs, true
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- loop.Run(ctx) }()
	want := func(what, updates string) {
		t.Helper()
		var got string
		eventually.That(t, what, func() bool {
			got += cri.take()
			return got == updates
		})
	}
	tick := func() {
		eventually.That(t, "the reconciler waits", r.clock.HasWaiters)
		r.clock.Step(10 * time.Second)
	}
	want("the first update", "id-part=0-3")
	must(t, r.Allocate(t.Context(), own))
	cri.fail(errors.New("busy"))
	tick()
	want("the shared CPUs shrink", "id-part=0,3")
	cri.fail(nil)
	tick()
	want("the update is repeated", "id-part=0,3")
	mu.Lock()
	late := pod("late", "1")
	pods = append(pods, late)
	runs = append(runs, &lifecyclev1.PodStatus{Uid: "late", Containers: []*lifecyclev1.Container{{
		Id: "id-late", Name: late.Spec.Containers[0].Name, State: lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING,
	}}})
	mu.Unlock()
	tick()
	want("a running pod gets its CPU", "id-late=3")
	r.Release("own")
	r.Release("late")
	mu.Lock()
	pods = pods[:1]
	mu.Unlock()
	tick()
	want("the shared CPUs come back", "id-part=0-3")
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Run ends with %v", err)
	}
}

// TestAContainerThatHasEndedIsNoWarning checks that an update that fails is a warning only if the container still runs
// in the next turn.
func TestAContainerThatHasEndedIsNoWarning(t *testing.T) {
	r := newRig(t)
	part, ends := pod("part", "500m"), pod("ends", "500m")
	cri, log := &runtime{fails: errors.New("not running")}, &logbuffer.Buffer{}
	both := r.runs(part, ends)
	var ended atomic.Bool
	loop := allocator.NewReconciler(allocator.ReconcilerConfig{
		Allocator: r.Allocator, Update: cri.update, Period: 10 * time.Second, Clock: r.clock,
		Logger: slog.New(slog.NewTextHandler(log, nil)),
		Pods:   func() ([]*v1.Pod, error) { return []*v1.Pod{part, ends}, nil },
		Observed: func() ([]*lifecyclev1.PodStatus, bool) {
			if ended.Load() {
				return both[:1], true
			}
			return both, true
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- loop.Run(ctx) }()
	got := ""
	eventually.That(t, "the first updates", func() bool {
		got += cri.take()
		return got == "id-part=0-3id-ends=0-3" || got == "id-part=0-3 id-ends=0-3"
	})
	ended.Store(true)
	r.clock.Step(10 * time.Second)
	eventually.That(t, "a warning", func() bool { return log.String() != "" })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Run ends with %v", err)
	}
	text := log.String()
	if strings.Count(text, "level=WARN") != 1 || !strings.Contains(text, "container.id=id-part") {
		t.Errorf("logged is %s", text)
	}
}

// TestAStateThatCannotBeWrittenKeepsNoNodeFromItsStart: without CPUs for one container, it is for a kubelet only.
func TestAStateThatCannotBeWrittenKeepsNoNodeFromItsStart(t *testing.T) {
	r := &rig{
		t: t, root: t.TempDir(), log: &logbuffer.Buffer{}, clock: clocktesting.NewFakeClock(time.Now()),
		nodes: []int{4}, topology: numa.PolicyNone,
		wrap: func(m *deviceplugins.Manager) allocator.Devices { return m },
	}
	path := filepath.Join(r.root, "cpu_manager_state")
	must(t, os.WriteFile(path, nil, 0o600))
	must(t, unix.Mount(path, path, "", unix.MS_BIND, "")) // nothing replaces a mount
	t.Cleanup(func() { must(t, unix.Unmount(path, unix.MNT_DETACH)) })
	must(t, r.restart(cpus.PolicyNone))
	if !strings.Contains(r.log.String(), "cannot write the state of CPUs") {
		t.Errorf("the log does not name the state: %s", r.log.String())
	}
}
