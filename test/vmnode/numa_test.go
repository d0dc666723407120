package vmnode

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/test/eventually"
)

// allowed returns a line of /proc/PID/status of a pod's container, such as Cpus_allowed_list.
func (n *node) allowed(name, line string) string {
	file, err := os.Open(fmt.Sprintf("/proc/%d/status", n.process(name)))
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

func (n *node) awaitCPUs(name, want string) {
	n.t.Helper()
	var got string
	eventually.Wait{Patience: patience, Interval: interval, State: func() string { return "it runs on " + got }}.That(
		n.t, "the pod "+name+" runs on the CPUs "+want, func() bool {
			got = n.allowed(name, "Cpus_allowed_list")
			return got == want
		})
}

// wantAlignment waits until each pod has its CPUs, and checks its memory: of the two NUMA nodes with CPUs 0 and 1, and
// 2 and 3. The first CPU is reserved.
func wantAlignment(n *node) {
	n.t.Helper()
	n.awaitCPUs("one", "1")
	n.awaitCPUs("two", "2-3")
	n.awaitCPUs("around", "0")
	for name, want := range map[string]string{"one": "1", "two": "2-3", "around": "0"} {
		if got := kernel(n.containerCgroup(n.find(name)), "cpuset.cpus"); got != want {
			n.t.Errorf("the cgroup of the container of %s has the CPUs %s, want %s", name, got, want)
		}
	}
	for name, want := range map[string]string{"one": "0", "two": "1", "around": "0-1"} {
		if got := n.allowed(name, "Mems_allowed_list"); got != want {
			n.t.Errorf("the pod %s has memory of the NUMA nodes %s, want %s", name, got, want)
		}
	}
}

// testNUMANodes refuses a pod that fits no NUMA node, and gives two others CPUs of one each. They keep them when
// syncloop is killed.
func testNUMANodes(n *node) {
	n.place("around", hosted, bestEffort)
	n.ready("around")
	n.awaitCPUs("around", "0-3")
	n.place("wide", hosted, "args: [sleep]\n"+limits(3))
	wide := n.awaitPod("wide", "refused", func(pod *v1.Pod) bool { return pod.Status.Phase == v1.PodFailed })
	if got := wide.Status.Reason + ": " + wide.Status.Message; got != "TopologyAffinityError: Pod was rejected: "+
		"Resources cannot be allocated with Topology locality" {
		n.t.Errorf("it was refused with %s", got)
	}
	if err := n.TakeAway("wide.yaml"); err != nil {
		n.t.Fatal(err)
	}
	n.place("one", restartSpec, "args: [sleep]\n"+restartMounts+limits(1))
	n.ready("one")
	n.place("two", hosted, "args: [sleep]\n"+limits(2))
	n.ready("two")
	wantAlignment(n)

	one, two := n.process("one"), n.process("two")
	n.killSyncloop()
	n.ready("one")
	n.ready("two")
	wantAlignment(n)
	if n.process("one") != one || n.process("two") != two {
		n.t.Error("a container was restarted with syncloop")
	}
}
