package oracle

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/cadvisor/lib/model"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/checkpointmanager"
	"k8s.io/kubernetes/pkg/kubelet/checkpointmanager/checksum"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/state"
	kubelettopology "k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/topology"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	"k8s.io/utils/cpuset"

	"github.com/quartet-node/quartet/services/syncloop/internal/devices/cpus"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/cpustate"
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
	gates := map[string]bool{"CPUManagerPolicyAlphaOptions": true}
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(gates); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// world is one history on both sides.
type world struct {
	t       *testing.T
	rand    *rand.Rand
	machine *model.MachineInfo
	options map[string]string
	// reserved are the CPUs of reservedSystemCPUs, and milli the reserved CPU time.
	reserved cpuset.CPUSet
	milli    int64
	policy   string

	manager topologymanager.Manager
	theirs  *kubelet
	other   *another
	aligner *numa.Aligner
	ours    *cpus.Book

	pods  map[types.UID]*v1.Pod
	steps []string
	next  int
}

func (w *world) note(format string, args ...any) {
	w.steps = append(w.steps, fmt.Sprintf(format, args...))
}

func (w *world) fatalf(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("%s\nafter\n  %s", fmt.Sprintf(format, args...), strings.Join(w.steps, "\n  "))
}

// newWorld returns a world, nil if both sides refuse the configuration for the same reason.
func newWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	w := &world{
		t: t, rand: r, machine: drawMachine(r), options: drawOptions(r), pods: map[types.UID]*v1.Pod{},
		other: &another{hints: map[string]numa.Hints{}},
	}
	w.drawReserved()
	policies := []string{"none", "none", "best-effort", "restricted", "single-numa-node"}
	w.policy = policies[r.IntN(len(policies))]
	scope := []string{"container", "pod"}[r.IntN(2)]
	topologyOptions := map[string]string{}
	if r.IntN(2) == 0 {
		topologyOptions["prefer-closest-numa-nodes"] = "true"
	}
	w.note("%d NUMA nodes, %d sockets, %d cores, %d CPUs, options %v, reserved %v %d, %s by %s %v",
		len(w.machine.Topology),
		w.machine.NumSockets, w.machine.NumPhysicalCores, w.machine.NumCores, w.options, w.reserved, w.milli, w.policy, scope,
		topologyOptions)
	logger := klog.Background()
	manager, err := topologymanager.NewManager(logger, w.machine.Topology, w.policy, scope, topologyOptions)
	if err != nil {
		t.Fatal(err)
	}
	w.manager = manager
	parsed, err := numa.ParseOptions(topologyOptions)
	if err != nil {
		t.Fatal(err)
	}
	var nodes []numa.Node
	for _, node := range w.machine.Topology {
		nodes = append(nodes, numa.Node{ID: node.Id, Distances: node.Distances})
	}
	policy, err := numa.New(w.policy, parsed, nodes)
	if err != nil {
		t.Fatal(err)
	}
	w.aligner = &numa.Aligner{Policy: policy, Scope: scope, Lock: &sync.Mutex{}, Aligned: func(bool) {}}
	if !w.start(nil) {
		return nil
	}
	manager.AddHintProvider(logger, w.theirs)
	manager.AddHintProvider(logger, anotherOfKubelet{same: w.other})
	return w
}

// start starts both sides, with a state of an earlier start, or a new one. It returns false if both refuse.
func (w *world) start(before *state.State) bool {
	logger := klog.Background()
	topology, err := kubelettopology.Discover(logger, w.machine)
	if err != nil {
		w.t.Fatal(err)
	}
	policy, theirs := cpumanager.NewStaticPolicy(logger, topology, int((w.milli+999)/1000), w.reserved, w.manager,
		w.options)
	machine, err := cpus.Discover(w.machine)
	if err != nil {
		w.t.Fatal(err)
	}
	options, err := cpus.ParseOptions(w.options, cpus.Gates{Alpha: true, Beta: true})
	if err != nil {
		w.t.Fatal(err)
	}
	book, mine := cpus.New(cpus.Config{
		Machine: machine, Options: options, Topology: w.policy, ReservedMilli: w.milli, Reserved: w.reserved,
	})
	if theirs != nil || mine != nil {
		if want := "new static policy error: " + text(theirs); text(mine) != want {
			w.fatalf("the kubelet refuses with %q, Quartet with %q", want, text(mine))
		}
		return false
	}
	w.ours = book
	s := state.NewMemoryState(logger)
	if before != nil {
		s = *before
	}
	if err := policy.Start(logger, s); err != nil {
		w.fatalf("the kubelet does not start: %v", err)
	}
	if w.theirs == nil {
		w.theirs = &kubelet{}
	}
	w.theirs.policy, w.theirs.state = policy, s
	w.aligner.Owners = []numa.Owner{ours{book}, w.other}
	return true
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// admit admits a new pod, or one again as after a restart, on both sides.
func (w *world) admit(pod *v1.Pod) {
	w.note("%s asks for %s, hints %v, free %v", pod.UID, describe(pod), w.other.hints[string(pod.UID)], w.ours.Free())
	w.pods[pod.UID] = pod
	attributes := &lifecycle.PodAdmitAttributes{Pod: pod, Operation: lifecycle.AddOperation}
	theirs := w.manager.Admit(w.t.Context(), attributes)
	mine := w.aligner.Admit(w.t.Context(), pod)
	if reason, message := refusal(mine); theirs.Reason != reason || theirs.Message != message {
		w.fatalf("the kubelet answers %q %q, Quartet %q %q", theirs.Reason, theirs.Message, reason, message)
	}
	w.compare(pod.UID)
	if mine != nil {
		w.end(pod.UID)
	}
}

// refusal returns the reason and the message of an error, as admission does.
func refusal(err error) (reason, message string) {
	var affinity *numa.AffinityError
	var alignment *cpus.AlignmentError
	switch {
	case err == nil:
		return "", ""
	case errors.As(err, &affinity):
		return numa.ReasonAffinity, err.Error()
	case errors.As(err, &alignment):
		return cpus.ReasonAlignment, err.Error()
	}
	return "UnexpectedAdmissionError", fmt.Sprintf("Allocate failed due to %v, which is unexpected", err)
}

func (w *world) end(uid types.UID) {
	pod := w.pods[uid]
	delete(w.pods, uid)
	for _, c := range append(slices.Clone(pod.Spec.InitContainers), pod.Spec.Containers...) {
		if err := w.theirs.policy.RemoveContainer(klog.Background(), w.theirs.state, string(uid), c.Name); err != nil {
			w.t.Fatal(err)
		}
	}
	w.ours.Release(uid)
}

func (w *world) remove() {
	for _, uid := range slices.Sorted(maps.Keys(w.pods)) {
		if w.rand.IntN(3) == 0 {
			w.note("%s ends", uid)
			w.end(uid)
			w.compare(uid)
			return
		}
	}
}

// errDiffers ends a history after a difference of the table.
var errDiffers = errors.New("a known difference")

// compare compares the shared CPUs and those of each container.
func (w *world) compare(last types.UID) {
	theirs, mine := w.theirs.state.GetCPUAssignments(), w.ours.Assignments()
	same := w.theirs.state.GetDefaultCPUSet().Equals(w.ours.Shared()) && len(theirs) == len(mine)
	for uid, containers := range mine {
		for name, set := range containers {
			same = same && theirs[string(uid)][name].Equals(set)
		}
	}
	if same {
		return
	}
	if w.combines(last, theirs[string(last)], mine[last]) {
		panic(errDiffers)
	}
	w.fatalf("the kubelet shares %v and gives %v, Quartet %v and %v", w.theirs.state.GetDefaultCPUSet(), theirs,
		w.ours.Shared(), mine)
}

// combines reports whether a difference is the last one of these:
//   - On machines whose sockets or cores have different numbers of CPUs, the kubelet compares with the average number,
//     and takes CPUs that are in use for free ones. No such machine is drawn.
//   - With distribute-cpus-across-numa, the kubelet does not end for some requests of whole cores if a core is reserved
//     in part. Whole cores are reserved.
//   - With strict-cpu-reservation, a kubelet does not start any more with a state without shared CPUs, until somebody
//     drains the node and removes the file. Quartet restores the state.
//   - With distribute-cpus-across-numa, a container that needs four NUMA nodes or more of a machine with more than four
//     has CPUs of other nodes: the kubelet's iterateCombinations gives out a slice that it changes later, so that a
//     kept combination of four nodes and more ends with a node of a later one.
func (w *world) combines(_ types.UID, theirs, mine map[string]cpuset.CPUSet) bool {
	if w.options["distribute-cpus-across-numa"] == "" || len(w.machine.Topology) <= 4 || len(theirs) != len(mine) {
		return false
	}
	for name, set := range mine {
		if theirs[name].Size() != set.Size() {
			return false
		}
		if !theirs[name].Equals(set) && len(w.ours.Machine().NodeCounts(set)) >= 4 {
			return true
		}
	}
	return false
}

// restart writes the state on one side, reads it on the other, and admits all pods again.
func (w *world) restart(dir string) {
	logger := klog.Background()
	w.note("restart")
	saved, err := state.NewCheckpointState(logger, dir, cpustate.File, "static", containermap.NewContainerMap())
	if err != nil {
		w.fatalf("%v", err)
	}
	saved.SetDefaultCPUSet(w.theirs.state.GetDefaultCPUSet())
	saved.SetCPUAssignments(w.theirs.state.GetCPUAssignments())
	read, err := cpustate.Read(dir)
	if err != nil {
		w.fatalf("Quartet does not read the kubelet's state: %v", err)
	}
	kubelets, err := os.ReadFile(filepath.Join(dir, cpustate.File))
	if err != nil {
		w.t.Fatal(err)
	}
	if err := cpustate.Write(dir, *read); err != nil {
		w.t.Fatal(err)
	}
	if written, err := os.ReadFile(filepath.Join(dir, cpustate.File)); err != nil || string(written) != string(kubelets) {
		w.fatalf("Quartet writes\n%s\n%v, the kubelet\n%s", written, err, kubelets)
	}
	restored, err := state.NewCheckpointState(logger, dir, cpustate.File, "static", containermap.NewContainerMap())
	if err != nil {
		w.fatalf("the kubelet does not read Quartet's state: %v", err)
	}
	if restored.GetDefaultCPUSet().IsEmpty() && len(read.Held) > 0 { // the table of combines
		if err := w.theirs.policy.Start(logger, restored); text(err) != "default cpuset cannot be empty" {
			w.fatalf("the kubelet starts without shared CPUs: %v", err)
		}
		if err := w.ours.Restore(read.Shared, read.Held); err != nil {
			w.fatalf("Quartet does not restore a state without shared CPUs: %v", err)
		}
		panic(errDiffers)
	}
	if !w.start(&restored) {
		w.fatalf("refused after a restart")
	}
	if err := w.ours.Restore(read.Shared, read.Held); err != nil {
		w.fatalf("Quartet does not restore the state: %v", err)
	}
	w.compare("")
	for _, uid := range slices.Sorted(maps.Keys(w.pods)) {
		w.admit(w.pods[uid])
	}
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
	for range 8 {
		switch n := w.rand.IntN(10); {
		case n < 2:
			w.remove()
		case n < 3:
			w.restart(dir)
		default:
			w.admit(w.draw())
		}
	}
	return false
}

// TestHistoriesOfCPUs compares refusals and CPUs after each step of random histories, and the states on disk.
func TestHistoriesOfCPUs(t *testing.T) {
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
	if known > int(count)/20 {
		t.Errorf("%d histories of %d have a known difference: too many to compare the rest", known, count)
	}
}

// TestStatesOfAKubelet136AreRead checks the format that a kubelet 1.36 writes with the gate PodLevelResourceManagers,
// and that without it, with both names of the types that are part of their checksums. A kubelet reads what Quartet
// writes then.
func TestStatesOfAKubelet136AreRead(t *testing.T) {
	entries := map[string]map[string]string{"one": {"first": "5-6", "second": "3-4"}, "two": {"main": "1"}}
	for name, checkpoint := range map[string]checkpointmanager.Checkpoint{
		"with CPUs of a pod": &state.CPUManagerCheckpointV3{
			PolicyName: "static", DefaultCPUSet: "0,2", Entries: entries,
			PodEntries: state.PodCPUAssignments{"three": {CPUSet: cpuset.New(7, 8)}},
		},
		"without CPUs of a pod": &state.CPUManagerCheckpointV3{
			PolicyName: "static", DefaultCPUSet: "0,2", Entries: entries, PodEntries: state.PodCPUAssignments{},
		},
		"without containers": &state.CPUManagerCheckpointV3{
			PolicyName: "static", DefaultCPUSet: "0,2", Entries: map[string]map[string]string{},
			PodEntries: state.PodCPUAssignments{"three": {CPUSet: cpuset.New(7, 8)}},
		},
		"without the gate": &state.CPUManagerCheckpointV2{PolicyName: "static", DefaultCPUSet: "0,2", Entries: entries},
	} {
		written, err := checkpoint.MarshalCheckpoint()
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %s", name, written)
		for _, text := range []string{string(written), string(withTypeName(t, written, checkpoint))} {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, cpustate.File), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			read, err := cpustate.Read(dir)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if err := cpustate.Write(dir, *read); err != nil {
				t.Fatal(err)
			}
			restored, err := state.NewCheckpointState(klog.Background(), dir, cpustate.File, "static", nil)
			if err != nil {
				t.Errorf("%s: the kubelet does not read it: %v", name, err)
				continue
			}
			has := restored.GetCPUAssignments()
			if name != "without containers" && (len(has) != 2 || has["one"]["second"].String() != "3-4") ||
				restored.GetDefaultCPUSet().String() != "0,2" {
				t.Errorf("%s: the kubelet has %v", name, has)
			}
		}
	}
}

// withTypeName returns a checkpoint with the checksum of a kubelet that does not replace the name of its type.
func withTypeName(t *testing.T, written []byte, checkpoint checkpointmanager.Checkpoint) []byte {
	t.Helper()
	var old checksum.Checksum
	switch c := checkpoint.(type) {
	case *state.CPUManagerCheckpointV3:
		old, c.Checksum = c.Checksum, 0
	case *state.CPUManagerCheckpointV2:
		old, c.Checksum = c.Checksum, 0
	}
	return bytes.Replace(written, fmt.Append(nil, old), fmt.Append(nil, checksum.New(checkpoint)), 1)
}
