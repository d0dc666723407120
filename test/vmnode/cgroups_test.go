package vmnode

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/cgroups"
	v1 "k8s.io/api/core/v1"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// mounted is where cgroup v2 is mounted.
const mounted = "/sys/fs/cgroup"

// The manifests of a pod of each class.
const (
	guaranteed = "args: [sleep]\nresources: {requests: {cpu: 500m, memory: 64Mi}, limits: {cpu: 500m, memory: 64Mi}}\n"
	burstable  = "args: [sleep]\nresources: {requests: {cpu: 100m, memory: 32Mi}, limits: {cpu: %s, memory: %s}}\n"
	bestEffort = "args: [sleep]\n"
)

// kernel returns the content of a file of a cgroup, or the error.
func kernel(cgroup, file string) string {
	content, err := os.ReadFile(filepath.Join(mounted, cgroup, file))
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(content))
}

// containerCgroup returns the cgroup of a pod's container.
func (n *node) containerCgroup(pod *v1.Pod) string {
	_, id, _ := strings.Cut(status(pod).ContainerID, "://")
	return filepath.Join(n.PodCgroup(pod), id)
}

// wantFiles compares files of a cgroup.
func (n *node) wantFiles(cgroup string, want map[string]string) {
	n.t.Helper()
	for file, value := range want {
		if got := kernel(cgroup, file); got != value {
			n.t.Errorf("%s of %s is %q, want %q", file, cgroup, got, value)
		}
	}
}

// weight returns the weight that a runtime gives a container of a request.
func weight(milli uint64) string {
	return strconv.FormatUint(cgroups.ConvertCPUSharesToCgroupV2Value(milli*1024/1000), 10)
}

func mib(n int64) string { return strconv.FormatInt(n<<20, 10) }

// testCgroups runs a pod of each class. Their cgroups are where a kubelet has them, with its values. Static pods count
// as critical, and those do not swap even with LimitedSwap.
func testCgroups(n *node) {
	n.place("guaranteed", "", guaranteed)
	n.place("burstable", hosted, fmt.Sprintf(burstable, "500m", "64Mi"))
	n.place("besteffort", hosted, bestEffort)
	first, second, third := n.ready("guaranteed"), n.ready("burstable"), n.ready("besteffort")

	all := filepath.Join(n.Layout.CgroupRoot(), "kubepods")
	for _, controller := range []string{"cpu", "cpuset", "io", "memory", "pids"} {
		if got := kernel(all, "cgroup.controllers"); !strings.Contains(" "+got+" ", " "+controller+" ") {
			n.t.Errorf("%s has the controllers %s, without %s", all, got, controller)
		}
	}
	n.wantFiles(all, map[string]string{"memory.min": mib(64 + 32), "memory.low": mib(32)})
	n.wantFiles(filepath.Join(all, "burstable"), map[string]string{"memory.low": mib(32), "cpu.max": "max 100000"})
	n.wantFiles(filepath.Join(all, "besteffort"), map[string]string{"cpu.weight": "1"})

	n.wantFiles(filepath.Join(all, "pod"+string(first.UID)), map[string]string{
		"cpu.weight": "20", "cpu.max": "50000 100000", "memory.max": mib(64), "memory.min": mib(64),
	})
	n.wantFiles(n.containerCgroup(first), map[string]string{
		"cpu.weight": weight(500), "cpu.max": "50000 100000", "memory.max": mib(64), "memory.min": mib(64),
		"memory.high": "max", "memory.swap.max": "0", "memory.oom.group": "1",
	})
	n.wantFiles(filepath.Join(all, "burstable", "pod"+string(second.UID)), map[string]string{
		"cpu.weight": "4", "cpu.max": "50000 100000", "memory.max": mib(64), "memory.low": mib(32),
	})
	n.wantFiles(n.containerCgroup(second), map[string]string{
		"cpu.weight": weight(100), "cpu.max": "50000 100000", "memory.max": mib(64), "memory.low": mib(32),
		"memory.high": mib(48), "memory.swap.max": "0", "memory.oom.group": "1",
	})
	n.wantFiles(filepath.Join(all, "besteffort", "pod"+string(third.UID)), map[string]string{
		"cpu.weight": "1", "cpu.max": "max 100000", "memory.max": "max",
	})
	n.wantFiles(n.containerCgroup(third), map[string]string{
		"cpu.weight": "1", "cpu.max": "max 100000", "memory.max": "max", "memory.swap.max": "0", "memory.oom.group": "1",
	})
	for _, pod := range []*v1.Pod{first, second, third} {
		if processes := strings.Fields(kernel(n.containerCgroup(pod), "cgroup.procs")); len(processes) != 1 {
			n.t.Errorf("the processes of %s are %v", pod.Name, processes)
		}
	}
}

// testResize gives the burstable pod other limits. Its process goes on.
func testResize(n *node) {
	before, process := n.find("burstable"), n.process("burstable")
	n.place("burstable", hosted, fmt.Sprintf(burstable, "250m", "96Mi"))
	n.awaitPod("burstable", "resized", func(pod *v1.Pod) bool {
		has := status(pod).Resources
		return has != nil && has.Limits.Cpu().MilliValue() == 250 && has.Limits.Memory().Value() == 96<<20
	})
	after := n.find("burstable")
	if status(after).ContainerID != status(before).ContainerID || n.process("burstable") != process {
		n.t.Errorf("the container was restarted: %+v", status(after))
	}
	n.wantFiles(n.containerCgroup(after), map[string]string{
		"cpu.max": "25000 100000", "memory.max": mib(96), "memory.high": mib(64),
	})
	n.wantFiles(n.PodCgroup(after), map[string]string{"cpu.max": "25000 100000", "memory.max": mib(96)})
}

// testPressure finds the pressure of the node and of a container in the summary and in the metrics.
func testPressure(n *node) {
	pressed := func(cpu *statsv1alpha1.CPUStats, memory *statsv1alpha1.MemoryStats, io *statsv1alpha1.IOStats) bool {
		return cpu != nil && cpu.PSI != nil && memory != nil && memory.PSI != nil && io != nil && io.PSI != nil
	}
	var summary statsv1alpha1.Summary
	n.await("the summary has the pressure", func() bool {
		summary = statsv1alpha1.Summary{}
		if err := json.Unmarshal(n.get("/stats/summary"), &summary); err != nil {
			n.t.Fatal(err)
		}
		for _, pod := range summary.Pods {
			if !strings.HasPrefix(pod.PodRef.Name, "burstable-") || len(pod.Containers) != 1 {
				continue
			}
			main := pod.Containers[0]
			return pressed(pod.CPU, pod.Memory, pod.IO) && pressed(main.CPU, main.Memory, main.IO) && main.Swap != nil
		}
		return false
	})
	if all := summary.Node; !pressed(all.CPU, all.Memory, all.IO) || all.CPU.PSI.Some.Total == 0 {
		n.t.Errorf("the node's CPUs are %+v, its memory %+v, its disks %+v", all.CPU, all.Memory, all.IO)
	}
	metrics := string(n.get("/metrics/cadvisor"))
	for _, name := range []string{"cpu", "memory", "io"} {
		for _, kind := range []string{"waiting", "stalled"} {
			name := "container_pressure_" + name + "_" + kind + "_seconds_total{container=\"main\""
			if !strings.Contains(metrics, name) {
				n.t.Errorf("the metrics have no %s", name)
			}
		}
	}
}

// testOutOfMemory has a container that needs more than its limit.
func testOutOfMemory(n *node) {
	n.place("hungry", hosted+"restartPolicy: Never\n",
		"args: [grow, -mib, \"128\"]\nresources: {requests: {cpu: 500m, memory: 32Mi}, limits: {cpu: 500m, memory: 32Mi}}\n")
	pod := n.awaitPod("hungry", "Failed", func(pod *v1.Pod) bool { return pod.Status.Phase == v1.PodFailed })
	if end := status(pod).State.Terminated; end == nil || end.Reason != "OOMKilled" || end.ExitCode != 137 {
		n.t.Errorf("the container has ended with %+v", end)
	}
}

// testRemoval removes all pods. No cgroup, no mount and no process of them is left.
func testRemoval(n *node) {
	all := filepath.Join(n.Layout.CgroupRoot(), "kubepods")
	for _, name := range []string{
		"guaranteed", "burstable", "besteffort", "hungry", "confined", "unknown", "pages", "morepages", "nopages",
	} {
		if err := n.TakeAway(name + ".yaml"); err != nil {
			n.t.Fatal(err)
		}
	}
	var left []string
	n.await("nothing is left of the pods", func() bool {
		left = nil
		for _, pattern := range []string{"pod*", "*/pod*"} {
			found, err := filepath.Glob(filepath.Join(mounted, all, pattern))
			if err != nil {
				n.t.Fatal(err)
			}
			left = append(left, found...)
		}
		names, err := n.Names(n.t.Context())
		return err == nil && strings.TrimSpace(names) == "" && len(left) == 0
	})
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(filepath.Join(n.Layout.Root(), "pods")))
	if err != nil || len(mounts) > 0 {
		n.t.Errorf("these mounts are left: %v, %v", mounts, err)
	}
	n.wantFiles(all, map[string]string{"cgroup.events": "populated 0\nfrozen 0"})
}

// testSingleProcess has a node that lets the kernel kill single processes.
func testSingleProcess(n *node) {
	n.place("single", hosted, bestEffort)
	n.wantFiles(n.containerCgroup(n.ready("single")), map[string]string{"memory.oom.group": "0"})
}

// limits returns the resources of a guaranteed container.
func limits(cpus int) string {
	list := fmt.Sprintf("{cpu: %d, memory: 64Mi}", cpus)
	return "resources: {requests: " + list + ", limits: " + list + "}\n"
}
