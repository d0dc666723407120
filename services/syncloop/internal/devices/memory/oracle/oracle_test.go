package oracle

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/cadvisor/lib/model"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/cm/memorymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/memorymanager/state"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"

	"github.com/quartet-node/quartet/services/syncloop/internal/devices/memory"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/memorystate"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/numa"
)

// QUARTET_HISTORIES=20000 compares as many histories as before a release.
const histories = 1000

func TestMain(m *testing.M) {
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	klog.InitFlags(flags)
	if err := flags.Parse([]string{"-logtostderr=false", "-alsologtostderr=false", "-stderrthreshold=FATAL"}); err != nil {
		panic(err)
	}
	klog.SetOutput(io.Discard)
	os.Exit(m.Run())
}

// world is one history on both sides.
type world struct {
	t          *testing.T
	seed       uint64
	rand       *rand.Rand
	machine    *model.MachineInfo
	reserved   []kubeletconfigv1beta1.MemoryReservation
	notForPods v1.ResourceList

	manager topologymanager.Manager
	theirs  *kubelet
	other   *another
	aligner *numa.Aligner
	ours    *memory.Book

	pods map[types.UID]*v1.Pod
	// started are the pods of which an init container has ended.
	started map[types.UID]bool
	steps   []string
	next    int
}

func (w *world) note(format string, args ...any) {
	w.steps = append(w.steps, fmt.Sprintf(format, args...))
}

func (w *world) fatalf(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("seed %d: %s\nafter\n  %s", w.seed, fmt.Sprintf(format, args...), strings.Join(w.steps, "\n  "))
}

// newWorld returns a world, nil if both sides refuse the configuration.
func newWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	w := &world{
		t: t, seed: seed, rand: r, machine: drawMachine(r), pods: map[types.UID]*v1.Pod{}, started: map[types.UID]bool{},
		other: &another{hints: map[string]numa.Hints{}},
	}
	w.drawReserved()
	policies := []string{"none", "none", "best-effort", "restricted", "single-numa-node"}
	name := policies[r.IntN(len(policies))]
	scope := []string{"container", "pod"}[r.IntN(2)]
	options := map[string]string{}
	if r.IntN(2) == 0 {
		options["prefer-closest-numa-nodes"] = "true"
	}
	w.note("%s by %s %v, reserved %v of %v", name, scope, options, w.reserved, w.notForPods)
	for _, node := range w.machine.Topology {
		w.note("NUMA node %d has %d MiB, huge pages %v", node.Id, node.Memory/mebi, node.HugePages)
	}
	logger := klog.Background()
	manager, err := topologymanager.NewManager(logger, w.machine.Topology, name, scope, options)
	if err != nil {
		t.Fatal(err)
	}
	w.manager = manager
	parsed, err := numa.ParseOptions(options)
	if err != nil {
		t.Fatal(err)
	}
	var nodes []numa.Node
	for _, node := range w.machine.Topology {
		nodes = append(nodes, numa.Node{ID: node.Id, Distances: node.Distances})
	}
	policy, err := numa.New(name, parsed, nodes)
	if err != nil {
		t.Fatal(err)
	}
	w.aligner = &numa.Aligner{Policy: policy, Scope: scope, Lock: &sync.Mutex{}, Aligned: func(bool) {}}
	if !w.start(state.NewMemoryState(logger)) {
		return nil
	}
	manager.AddHintProvider(logger, w.theirs)
	manager.AddHintProvider(logger, anotherOfKubelet{same: w.other})
	return w
}

// start starts both sides, with a state of an earlier start, or a new one. It returns false if both refuse.
func (w *world) start(s state.State) bool {
	logger := klog.Background()
	book, mine := memory.New(memory.Config{Machine: w.machine, Reserved: w.reserved, NotForPods: w.notForPods})
	var reserved []kubeletconfig.MemoryReservation
	for _, r := range w.reserved {
		reserved = append(reserved, kubeletconfig.MemoryReservation{NumaNode: r.NumaNode, Limits: r.Limits})
	}
	_, theirs := memorymanager.NewManager(logger, "Static", w.machine, w.notForPods, reserved, "", w.manager)
	if (theirs == nil) != (mine == nil) {
		w.fatalf("the kubelet answers the configuration with %v, Quartet with %v", theirs, mine)
	}
	if mine != nil {
		return false
	}
	policy, err := memorymanager.NewPolicyStatic(logger, w.machine, w.reservedBytes(), w.manager)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := policy.Start(logger, s); err != nil {
		w.fatalf("the kubelet does not start: %v", err)
	}
	if w.theirs == nil {
		w.theirs = &kubelet{}
	}
	w.theirs.policy, w.theirs.state, w.ours = policy, s, book
	w.aligner.Owners = []numa.Owner{ours{book}, w.other}
	w.compareAllocatable()
	return true
}

// reservedBytes returns the reserved memory by NUMA node.
func (w *world) reservedBytes() map[int]map[v1.ResourceName]uint64 {
	byNode := map[int]map[v1.ResourceName]uint64{}
	for _, r := range w.reserved {
		byNode[int(r.NumaNode)] = map[v1.ResourceName]uint64{v1.ResourceMemory: uint64(r.Limits.Memory().Value())}
	}
	return byNode
}

// reboot starts both sides on a machine with other amounts of memory, with the state of before. The kubelet does not
// start. In Quartet all containers keep their memory, or the error says who has too little.
func (w *world) reboot(kubelets state.State, read *memorystate.State) {
	machine := &model.MachineInfo{NumCores: w.machine.NumCores, Topology: slices.Clone(w.machine.Topology)}
	at := w.rand.IntN(len(machine.Topology))
	machine.Topology[at].Memory -= uint64(1+w.rand.IntN(40)) * mebi
	if w.rand.IntN(2) == 0 {
		machine.Topology[at].Memory += 41 * mebi
	}
	book, err := memory.New(memory.Config{Machine: machine, Reserved: w.reserved, NotForPods: w.notForPods})
	if err != nil {
		return // less than what is reserved
	}
	policy, err := memorymanager.NewPolicyStatic(klog.Background(), machine, w.reservedBytes(), w.manager)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := policy.Start(klog.Background(), kubelets); err == nil {
		w.fatalf("the kubelet starts on another machine: remove the difference from the table")
	}
	changed, err := book.Restore(read.Nodes, read.Held)
	_, held := book.State()
	switch {
	case err != nil && !strings.Contains(err.Error(), "which have only"):
		w.fatalf("Quartet does not start on a machine with another amount of memory: %v", err)
	case err == nil && (changed == "" || !reflect.DeepEqual(held, read.Held)):
		w.fatalf("Quartet restores %v as %v, with the change %q", read.Held, held, changed)
	}
}

func (w *world) compareAllocatable() {
	theirs, mine := map[string]uint64{}, map[string]uint64{}
	for _, block := range w.theirs.policy.GetAllocatableMemory(w.theirs.state) {
		theirs[fmt.Sprint(block.Type, block.NUMAAffinity)] = block.Size
	}
	for _, block := range w.ours.Allocatable() {
		mine[fmt.Sprint(block.Type, block.Nodes.Nodes())] = block.Size
	}
	if !maps.Equal(theirs, mine) {
		w.fatalf("allocatable are %v for the kubelet, %v for Quartet", theirs, mine)
	}
}

// errDiffers ends a history after a difference of the table:
//   - A kubelet panics if a pod wants huge pages of a size that the machine does not have. Quartet refuses the pod.
//   - If other resources are aligned to one NUMA node of a group in use, and that node has enough memory, the kubelet
//     takes the memory of that node alone. Then the group is no longer one, its memory can be promised twice, and the
//     next kubelet may refuse the state. Quartet takes memory of the whole group, or refuses the pod.
//   - After a restart a kubelet admits its pods again, and gives memory again to init containers that have ended. In
//     Quartet they have none any more. Pods whose init containers have ended are not admitted again here.
//   - A request of zero huge pages is a block of no bytes in the kubelet, and nothing in Quartet. None is drawn.
//   - If the NUMA nodes have other amounts of memory after a start of the machine, a kubelet does not start. In Quartet
//     containers keep their memory if it still fits; see reboot.
//   - If more is reserved of a NUMA node than it has, the kubelet's arithmetic overflows, and its memory is without
//     limits. Quartet refuses the configuration. None is drawn.
var errDiffers = errors.New("a known difference")

// admit admits a new pod, or one again as after a restart, on both sides.
func (w *world) admit(pod *v1.Pod) {
	w.note("%s asks for %s, hints %v", pod.UID, describe(pod), w.other.hints)
	w.pods[pod.UID] = pod
	mine := w.aligner.Admit(w.t.Context(), pod)
	theirs, panicked := w.admitTheirs(pod)
	if panicked {
		if mine == nil {
			w.fatalf("the kubelet panics, and Quartet admits the pod")
		}
		panic(errDiffers)
	}
	if w.hasBrokenGroup() {
		panic(errDiffers)
	}
	if reason, message := refusal(mine); theirs.Reason != reason || theirs.Message != message {
		w.fatalf("the kubelet answers %q %q, Quartet %q %q", theirs.Reason, theirs.Message, reason, message)
	}
	w.compare()
	if mine != nil {
		w.end(pod.UID)
	}
}

// admitTheirs admits a pod in the kubelet, which panics if it wants huge pages of a size that the machine does not
// have.
func (w *world) admitTheirs(pod *v1.Pod) (result lifecycle.PodAdmitResult, panicked bool) {
	unknown := func(c v1.Container) bool {
		return !c.Resources.Requests.Name("hugepages-1Gi", resource.BinarySI).IsZero()
	}
	if slices.ContainsFunc(containersOf(pod), unknown) {
		defer func() { panicked = recover() != nil }()
	}
	attributes := &lifecycle.PodAdmitAttributes{Pod: pod, Operation: lifecycle.AddOperation}
	return w.manager.Admit(w.t.Context(), attributes), false
}

// hasBrokenGroup reports whether the kubelet has a NUMA node on its own that is in the group of another one, or of a
// block.
func (w *world) hasBrokenGroup() bool {
	nodes := w.theirs.state.GetMachineState()
	broken := func(group []int) bool {
		return slices.ContainsFunc(group, func(id int) bool { return !slices.Equal(nodes[id].Cells, group) })
	}
	for _, node := range nodes {
		if broken(node.Cells) {
			return true
		}
	}
	for _, containers := range w.theirs.state.GetMemoryAssignments() {
		for _, blocks := range containers {
			if slices.ContainsFunc(blocks, func(b state.Block) bool { return broken(b.NUMAAffinity) }) {
				return true
			}
		}
	}
	return false
}

// refusal returns the reason and the message of an error, as admission does.
func refusal(err error) (reason, message string) {
	var affinity *numa.AffinityError
	switch {
	case err == nil:
		return "", ""
	case errors.As(err, &affinity):
		return numa.ReasonAffinity, err.Error()
	}
	return "UnexpectedAdmissionError", fmt.Sprintf("Allocate failed due to %v, which is unexpected", err)
}

func (w *world) end(uid types.UID) {
	pod := w.pods[uid]
	delete(w.pods, uid)
	names := slices.Sorted(maps.Keys(w.theirs.state.GetMemoryAssignments()[string(uid)]))
	for _, name := range names {
		w.theirs.policy.RemoveContainer(klog.Background(), w.theirs.state, string(pod.UID), name)
	}
	w.ours.Release(uid)
}

// any returns a random pod; nil if there is none.
func (w *world) any() *v1.Pod {
	uids := slices.Sorted(maps.Keys(w.pods))
	if len(uids) == 0 {
		return nil
	}
	return w.pods[uids[w.rand.IntN(len(uids))]]
}

func (w *world) remove() {
	if pod := w.any(); pod != nil {
		w.note("%s ends", pod.UID)
		w.end(pod.UID)
		w.compare()
	}
}

// run starts a container of a pod: the init containers before it have ended. The kubelet forgets these when the
// container was added.
func (w *world) run() {
	pod := w.any()
	if pod == nil {
		return
	}
	all := containersOf(pod)
	c := all[w.rand.IntN(len(all))]
	w.note("%s of %s starts", c.Name, pod.UID)
	for _, init := range pod.Spec.InitContainers {
		if init.Name == c.Name {
			break
		}
		if init.RestartPolicy == nil {
			w.theirs.policy.RemoveContainer(klog.Background(), w.theirs.state, string(pod.UID), init.Name)
			w.started[pod.UID] = true
		}
	}
	w.ours.Started(pod, c.Name)
	w.compare()
}

// compare compares the NUMA nodes and the blocks of each container.
func (w *world) compare() {
	theirNodes, theirs := w.theirs.state.GetMachineState(), w.theirs.state.GetMemoryAssignments()
	nodes, mine := w.ours.State()
	same := len(theirNodes) == len(nodes)
	for id, node := range nodes {
		their := theirNodes[id]
		same = same && their.NumberOfAssignments == node.Assignments && slices.Equal(their.Cells, node.Group.Nodes()) &&
			len(their.MemoryMap) == len(node.Tables)
		for kind, t := range node.Tables {
			same = same && *their.MemoryMap[kind] == state.MemoryTable{TotalMemSize: t.Total, SystemReserved: t.System,
				Allocatable: t.Allocatable, Reserved: t.Reserved, Free: t.Free}
		}
	}
	flat := map[string]bool{}
	for uid, containers := range theirs {
		for name, blocks := range containers {
			for _, b := range blocks {
				flat[fmt.Sprint(uid, name, b.NUMAAffinity, b.Type, b.Size)] = true
			}
		}
	}
	count := 0
	for uid, containers := range mine {
		for name, blocks := range containers {
			for _, b := range blocks {
				same = same && flat[fmt.Sprint(uid, name, b.Nodes.Nodes(), b.Type, b.Size)]
				count++
			}
		}
	}
	if !same || count != len(flat) {
		w.fatalf("the kubelet has %s\n%v, Quartet\n%v\n%v", describeNodes(theirNodes), theirs, nodes, mine)
	}
}

func describeNodes(nodes state.NUMANodeMap) string {
	var text strings.Builder
	for _, id := range slices.Sorted(maps.Keys(nodes)) {
		fmt.Fprintf(&text, "%d: %d %v", id, nodes[id].NumberOfAssignments, nodes[id].Cells)
		for kind, table := range nodes[id].MemoryMap {
			fmt.Fprintf(&text, " %s %+v", kind, *table)
		}
	}
	return text.String()
}

// restart writes the state on one side, reads it on the other, and admits all pods again.
func (w *world) restart(dir string) {
	logger := klog.Background()
	w.note("restart")
	saved, err := state.NewCheckpointState(logger, dir, memorystate.File, "Static")
	if err != nil {
		w.fatalf("%v", err)
	}
	saved.SetMachineState(w.theirs.state.GetMachineState())
	saved.SetMemoryAssignments(w.theirs.state.GetMemoryAssignments())
	kubelets := w.content(dir)
	read, err := memorystate.Read(dir)
	if err != nil {
		w.fatalf("Quartet does not read the kubelet's state: %v", err)
	}
	if err := memorystate.Write(dir, *read); err != nil {
		w.t.Fatal(err)
	}
	if written := w.content(dir); written != kubelets {
		w.fatalf("Quartet writes\n%s\nthe kubelet\n%s", written, kubelets)
	}
	restored, err := state.NewCheckpointState(logger, dir, memorystate.File, "Static")
	if err != nil {
		w.fatalf("the kubelet does not read Quartet's state: %v", err)
	}
	w.reboot(restored, read)
	if !w.start(restored) {
		w.fatalf("refused after a restart")
	}
	if changed, err := w.ours.Restore(read.Nodes, read.Held); changed != "" || err != nil {
		w.fatalf("Quartet does not restore the state: %q, %v", changed, err)
	}
	w.compare()
	for _, uid := range slices.Sorted(maps.Keys(w.pods)) {
		if !w.started[uid] { // the table of errDiffers
			w.admit(w.pods[uid])
		}
	}
}

func (w *world) content(dir string) string {
	data, err := os.ReadFile(filepath.Join(dir, memorystate.File))
	if err != nil {
		w.t.Fatal(err)
	}
	return string(data)
}

// run runs one history. It returns true if a difference of the table has ended it.
func run(t *testing.T, seed uint64, dir string) (differs bool) {
	t.Helper()
	defer func() {
		if cause := recover(); cause != nil {
			if cause != errDiffers { //nolint:errorlint // it is this one
				panic(cause)
			}
			differs = true
		}
	}()
	w := newWorld(t, seed)
	if w == nil {
		return false
	}
	for range 10 {
		switch n := w.rand.IntN(10); {
		case n < 2:
			w.remove()
		case n < 3:
			w.restart(dir)
		case n < 4:
			w.run()
		default:
			w.admit(w.draw())
		}
	}
	return false
}

// TestHistoriesOfMemory compares refusals, NUMA nodes and blocks after each step of random histories, and the states on
// disk.
func TestHistoriesOfMemory(t *testing.T) {
	count := uint64(histories)
	if set := os.Getenv("QUARTET_HISTORIES"); set != "" {
		if _, err := fmt.Sscan(set, &count); err != nil {
			t.Fatal(err)
		}
	}
	known := 0
	for seed := range count {
		dir, err := os.MkdirTemp("/dev/shm", "oracle")
		if err != nil {
			t.Fatal(err)
		}
		if run(t, seed, dir) {
			known++
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d histories of %d have ended with a known difference", known, count)
	if known > int(count)/10 {
		t.Errorf("%d histories of %d have a known difference: too many to compare the rest", known, count)
	}
}
