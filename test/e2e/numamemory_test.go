package e2e

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// memoryConfig is a node with the static policy of the memory manager, which keeps 200 Mi of the first NUMA node for
// the system.
const memoryConfig = "memoryManagerPolicy: Static\nreservedMemory: [{numaNode: 0, limits: {memory: 200Mi}}]\n" +
	"kubeReserved: {memory: 200Mi}\ntopologyManagerPolicy: single-numa-node\n"

// memoryOf returns what the pod-resources API lists of a pod and as allocatable.
func (p *pinned) memoryOf(name string) (own, allocatable []*podresourcesv1.ContainerMemory) {
	p.t.Helper()
	pods, all := p.resources()
	for _, pod := range pods.GetPodResources() {
		if strings.HasPrefix(pod.GetName(), name+"-") {
			own = pod.GetContainers()[0].GetMemory()
		}
	}
	return own, all.GetMemory()
}

// told returns the NUMA nodes with which the runtime has created a pod's container.
func (p *pinned) told(name string) string {
	p.t.Helper()
	_, id, _ := strings.Cut(p.find(name).Status.ContainerStatuses[0].ContainerID, "://")
	found := ""
	err := filepath.WalkDir(p.Layout.Runtime(), func(path string, _ fs.DirEntry, _ error) error {
		if filepath.Base(path) == "config.json" && filepath.Base(filepath.Dir(path)) == id {
			found = path
			return fs.SkipAll
		}
		return nil
	})
	if err != nil {
		p.t.Fatal(err)
	}
	var spec struct {
		Linux struct {
			Resources struct{ CPU struct{ Mems string } }
		}
	}
	data, err := os.ReadFile(found)
	if err != nil || json.Unmarshal(data, &spec) != nil {
		return ""
	}
	return spec.Linux.Resources.CPU.Mems
}

// TestMemoryOfOneNUMANode gives a container of a guaranteed pod memory of the first NUMA node. It is limited to that
// node also when syncloop and the container are killed, a pod that wants more than the machine has is refused, and the
// memory is given back when the pod is gone.
func TestMemoryOfOneNUMANode(t *testing.T) {
	p := newPinned(t, memoryConfig)
	const resources = "{cpu: 10m, memory: 64Mi}"
	p.apply("own", "{requests: "+resources+", limits: "+resources+"}")
	p.apply("around", "{requests: {cpu: 10m}}")
	allowed := func(name, nodes string) {
		t.Helper()
		awaitThat(t, name+" to have memory of the NUMA nodes "+nodes, func() bool {
			return p.allowed(name, "Mems_allowed_list") == nodes
		})
	}
	allowed("own", "0")
	online, err := os.ReadFile("/sys/devices/system/node/online")
	if err != nil {
		t.Fatal(err)
	}
	allowed("around", strings.TrimSpace(string(online)))
	own, allocatable := p.memoryOf("own")
	if len(own) != 1 || own[0].GetMemoryType() != "memory" || own[0].GetSize() != 64<<20 ||
		len(own[0].GetTopology().GetNodes()) != 1 || own[0].GetTopology().GetNodes()[0].GetID() != 0 ||
		len(allocatable) == 0 {
		t.Errorf("the pod-resources API lists %v, and %v as allocatable", own, allocatable)
	}
	// On a machine with one NUMA node every process is limited to it, so the runtime has to say that it was told.
	awaitThat(t, "the runtime to have the NUMA nodes", func() bool { return p.told("own") == "0" })
	first := p.process("own")
	p.killSyncloop()
	awaitThat(t, "the node knows its pods again", func() bool { return ready(p.find("own")) })
	if p.process("own") != first {
		t.Error("the container was restarted with syncloop")
	}
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	awaitThat(t, "the container runs again", func() bool { id := p.process("own"); return id != 0 && id != first })
	allowed("own", "0")
	if again, _ := p.memoryOf("own"); len(again) != 1 || again[0].GetSize() != 64<<20 {
		t.Errorf("after the kills the pod-resources API lists %v", again)
	}
	p.apply("late", "{requests: {cpu: 10m, memory: 1000Ti}, limits: {cpu: 10m, memory: 1000Ti}}")
	awaitThat(t, "a pod that wants too much is refused", func() bool {
		late := p.find("late")
		return late != nil && late.Status.Phase == "Failed"
	})
	if err := p.TakeAway("own.yaml"); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(p.Layout.Root(), "memory_manager_state")
	awaitThat(t, "the memory is given back", func() bool {
		data, err := os.ReadFile(path)
		var state struct {
			PolicyName   string
			MachineState map[string]struct{ NumberOfAssignments int }
			Entries      map[string]any
		}
		return err == nil && json.Unmarshal(data, &state) == nil && state.PolicyName == "Static" &&
			len(state.Entries) == 0 && state.MachineState["0"].NumberOfAssignments == 0
	})
}
