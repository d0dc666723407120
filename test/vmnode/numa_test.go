package vmnode

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/test/eventually"
)

// allowed returns a line of /proc/PID/status of a pod's container main, such as Cpus_allowed_list.
func (n *node) allowed(name, line string) string { return n.allowedOf(name, "main", line) }

// allowedOf returns a line of /proc/PID/status of a container.
func (n *node) allowedOf(name, container, line string) string {
	file, err := os.Open(fmt.Sprintf("/proc/%d/status", n.processOf(name, container)))
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
	n.place("wide", hosted, sleeps(3))
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
	n.place("two", hosted, sleeps(2))
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

// sleeps are the fields of a container with so many CPUs for itself.
func sleeps(cpus int) string { return "args: [sleep]\n" + limits(cpus) }

// wantPlaces checks the CPUs and the NUMA node of each container of a pod.
func (n *node) wantPlaces(name string, want map[string][2]string) {
	n.t.Helper()
	for container, place := range want {
		got := [2]string{
			n.allowedOf(name, container, "Cpus_allowed_list"), n.allowedOf(name, container, "Mems_allowed_list"),
		}
		if got != place {
			n.t.Errorf("the container %s of %s has the CPUs %s and memory of %s, want %s and %s",
				container, name, got[0], got[1], place[0], place[1])
		}
	}
}

// testScopeOfContainers has a pod whose containers fit on one NUMA node each, and not on one together.
func testScopeOfContainers(n *node) {
	n.place("apart", hosted, sleeps(2), sleeps(1))
	n.ready("apart")
	n.wantPlaces("apart", map[string][2]string{"main": {"2-3", "1"}, "other": {"1", "0"}})
	n.remove("apart")
}

// testScopeOfPods refuses the same pod. One that fits is on one NUMA node, although the other has a free CPU.
func testScopeOfPods(n *node) {
	n.remove("one")
	n.remove("two")
	n.place("apart", hosted, sleeps(2), sleeps(1))
	apart := n.awaitPod("apart", "refused", func(pod *v1.Pod) bool { return pod.Status.Phase == v1.PodFailed })
	if apart.Status.Reason != "TopologyAffinityError" {
		n.t.Errorf("it was refused with %s: %s", apart.Status.Reason, apart.Status.Message)
	}
	n.place("together", hosted, sleeps(1), sleeps(1))
	n.ready("together")
	n.wantPlaces("together", map[string][2]string{"main": {"2", "1"}, "other": {"3", "1"}})
}

// remove removes a pod, and waits until it is gone.
func (n *node) remove(name string) {
	n.t.Helper()
	if err := n.TakeAway(name + ".yaml"); err != nil {
		n.t.Fatal(err)
	}
	n.await(name+" is gone", func() bool {
		names, err := n.Names(n.t.Context())
		return err == nil && !strings.Contains(names, "/"+name+"-")
	})
}
