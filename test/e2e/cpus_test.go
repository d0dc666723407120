package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/utils/cpuset"

	"github.com/quartet-node/quartet/test/livenode"
)

// staticConfig is a node with the static policy of the CPU manager, whose first CPU is reserved.
const staticConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static
cpuManagerReconcilePeriod: 1s
systemReserved: {cpu: 500m}
` + livenode.AnyMachine

// pinned is a node with the static policy.
type pinned struct {
	*livenode.Node
	t *testing.T
	// all are the CPUs of the machine, and reserved is the reserved one.
	all, reserved cpuset.CPUSet
}

// newPinned starts a node with more fields of its configuration.
func newPinned(t *testing.T, more string) *pinned {
	t.Helper()
	own, err := livenode.New(livenode.Bin(), "cpus")
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(own.Layout.StateDir(), "begin.yaml")
	if err := os.WriteFile(config, []byte(staticConfig+more), 0o600); err != nil {
		t.Fatal(err)
	}
	own.Flags = []string{"--config", config}
	t.Cleanup(func() {
		if err := own.Remove(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	if err := own.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := own.Import(t.Context(), filepath.Join(livenode.Bin(), "images", "hello.tar")); err != nil {
		t.Fatal(err)
	}
	online, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		t.Fatal(err)
	}
	p := &pinned{Node: own, t: t, all: cpuset.New()}
	if p.all, err = cpuset.Parse(strings.TrimSpace(string(online))); err != nil {
		t.Fatal(err)
	}
	p.reserved = cpuset.New(p.all.List()[0])
	return p
}

// apply places a pod whose container has resources.
func (p *pinned) apply(name, resources string) {
	p.t.Helper()
	text := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: cpus}\nspec:\n"+
		"  terminationGracePeriodSeconds: 1\n  containers:\n  - {name: main, image: %q, args: [sleep], resources: %s}\n",
		name, image, resources)
	if err := p.Place(name+".yaml", text); err != nil {
		p.t.Fatal(err)
	}
}

// find returns a pod as it is now; nil if it does not exist, or the node does not answer.
func (p *pinned) find(name string) *v1.Pod {
	pods, err := p.Pods(p.t.Context())
	if err != nil {
		return nil
	}
	for i := range pods {
		if strings.HasPrefix(pods[i].Name, name+"-") {
			return &pods[i]
		}
	}
	return nil
}

// process returns the ID of the first process of a pod's container; 0 if there is none.
func (p *pinned) process(name string) int {
	pod := p.find(name)
	if !ready(pod) {
		return 0
	}
	root, err := p.Inside(pod, "main")
	if err != nil {
		return 0
	}
	var id int
	if _, err := fmt.Sscanf(root, "/proc/%d/root", &id); err != nil {
		p.t.Fatal(err)
	}
	return id
}

// allowed returns a line of /proc/PID/status of a pod's container, such as Cpus_allowed_list.
func (p *pinned) allowed(name, line string) string {
	file, err := os.Open(fmt.Sprintf("/proc/%d/status", p.process(name)))
	if err != nil {
		return err.Error()
	}
	defer file.Close() //nolint:errcheck // it was read only
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), line+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return "no " + line
}

func (p *pinned) awaitCPUs(name string, want cpuset.CPUSet) {
	p.t.Helper()
	awaitThat(p.t, fmt.Sprintf("%s to run on the CPUs %s", name, want), func() bool {
		got, err := cpuset.Parse(p.allowed(name, "Cpus_allowed_list"))
		return err == nil && got.Equals(want)
	})
}

// resources returns what the pod-resources API lists.
func (p *pinned) resources() (
	*podresourcesv1.ListPodResourcesResponse, *podresourcesv1.AllocatableResourcesResponse,
) {
	p.t.Helper()
	conn, err := grpc.NewClient("unix://"+filepath.Join(p.Layout.Root(), "pod-resources", "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // nothing is under way
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	client := podresourcesv1.NewPodResourcesListerClient(conn)
	pods, err := client.List(ctx, &podresourcesv1.ListPodResourcesRequest{}, grpc.WaitForReady(true))
	if err != nil {
		p.t.Fatal(err)
	}
	all, err := client.GetAllocatableResources(ctx, &podresourcesv1.AllocatableResourcesRequest{})
	if err != nil {
		p.t.Fatal(err)
	}
	return pods, all
}

// listed returns the CPUs of a pod in the pod-resources API, and the allocatable ones.
func (p *pinned) listed(name string) (own, allocatable cpuset.CPUSet) {
	p.t.Helper()
	pods, all := p.resources()
	set := func(ids []int64) cpuset.CPUSet {
		numbers := make([]int, 0, len(ids))
		for _, id := range ids {
			numbers = append(numbers, int(id))
		}
		return cpuset.New(numbers...)
	}
	for _, pod := range pods.GetPodResources() {
		if strings.HasPrefix(pod.GetName(), name+"-") {
			own = set(pod.GetContainers()[0].GetCpuIds())
		}
	}
	return own, set(all.GetCpuIds())
}

// killSyncloop kills syncloop at once, and waits for the next one.
func (p *pinned) killSyncloop() {
	p.t.Helper()
	old, err := p.PID("syncloop")
	if err != nil {
		p.t.Fatal(err)
	}
	if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
		p.t.Fatal(err)
	}
	awaitThat(p.t, "a new syncloop", func() bool {
		id, err := p.PID("syncloop")
		return err == nil && id != old
	})
}

// TestCPUsForOneContainer gives all CPUs but the reserved one to one container: it runs on them alone, also when
// syncloop and the container are killed, another pod that wants a CPU is refused, and the shared CPUs shrink and come
// back.
func TestCPUsForOneContainer(t *testing.T) {
	p := newPinned(t, "")
	free := p.all.Difference(p.reserved)
	if free.IsEmpty() {
		t.Skip("the machine has one CPU") //nolint:forbidigo // no right and no tool gives it another one
	}
	p.apply("around", "{requests: {cpu: 10m}}")
	p.awaitCPUs("around", p.all)
	whole := fmt.Sprintf("{cpu: %d, memory: 16Mi}", free.Size())
	p.apply("own", "{requests: "+whole+", limits: "+whole+"}")
	p.awaitCPUs("own", free)
	p.awaitCPUs("around", p.reserved)
	if own, allocatable := p.listed("own"); !own.Equals(free) || !allocatable.Equals(free) {
		t.Errorf("the pod-resources API lists %v, and %v as allocatable, want %v", own, allocatable, free)
	}
	if around, _ := p.listed("around"); !around.IsEmpty() {
		t.Errorf("the pod-resources API lists %v for a pod that shares its CPUs", around)
	}
	first, around := p.process("own"), p.process("around")
	p.killSyncloop()
	awaitThat(t, "the node knows its pods again", func() bool { return ready(p.find("own")) })
	if p.process("own") != first || p.process("around") != around {
		t.Error("a container was restarted with syncloop")
	}
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	awaitThat(t, "the container runs again", func() bool { id := p.process("own"); return id != 0 && id != first })
	p.awaitCPUs("own", free)
	p.apply("late", "{requests: {cpu: 1, memory: 16Mi}, limits: {cpu: 1, memory: 16Mi}}")
	const message = "Pod was rejected: Allocate failed due to not enough cpus available to satisfy request: requested=1, " +
		"available=0, which is unexpected"
	awaitThat(t, "another pod is refused", func() bool {
		late := p.find("late")
		return late != nil && late.Status.Reason == "UnexpectedAdmissionError" && late.Status.Message == message
	})
	p.awaitCPUs("around", p.reserved)
	if err := p.TakeAway("own.yaml"); err != nil {
		t.Fatal(err)
	}
	p.killSyncloop()
	p.awaitCPUs("around", p.all)
	data, err := os.ReadFile(filepath.Join(p.Layout.Root(), "cpu_manager_state"))
	var state struct {
		PolicyName, DefaultCPUSet string
		Entries                   map[string]any
	}
	if err != nil || json.Unmarshal(data, &state) != nil || state.PolicyName != "static" || len(state.Entries) > 0 ||
		state.DefaultCPUSet != p.all.String() {
		t.Errorf("the state is %s, %v", data, err)
	}
}

// TestPodsAreAlignedToNUMANodes uses the strictest policy: a pod whose CPUs are of one NUMA node runs, and one whose
// CPUs are not is refused.
func TestPodsAreAlignedToNUMANodes(t *testing.T) {
	p := newPinned(t, "topologyManagerPolicy: single-numa-node\ntopologyManagerScope: pod\n"+
		"topologyManagerPolicyOptions: {prefer-closest-numa-nodes: \"true\"}\n")
	one := "{cpu: 1, memory: 16Mi}"
	p.apply("own", "{requests: "+one+", limits: "+one+"}")
	awaitThat(t, "own to run on one CPU", func() bool {
		got, err := cpuset.Parse(p.allowed("own", "Cpus_allowed_list"))
		return err == nil && got.Size() == 1 && !got.Equals(p.reserved)
	})
	all := fmt.Sprintf("{cpu: %d, memory: 16Mi}", p.all.Size())
	p.apply("late", "{requests: "+all+", limits: "+all+"}")
	awaitThat(t, "a pod with all CPUs is refused", func() bool {
		late := p.find("late")
		return late != nil && late.Status.Reason == "TopologyAffinityError" &&
			late.Status.Message == "Pod was rejected: Resources cannot be allocated with Topology locality"
	})
}
