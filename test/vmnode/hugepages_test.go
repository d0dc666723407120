package vmnode

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// hugePage is the size of a huge page, and pagesOfNode the number of them of each NUMA node. One node
// also has a page of 1 GiB.
const (
	hugePage    = 2 << 20
	pagesOfNode = 16
)

// reserveHugePages reserves huge pages of both NUMA nodes, as an administrator does before the node starts. The kernel
// has reserved the page of 1 GiB.
func reserveHugePages(t *testing.T) {
	t.Helper()
	for _, node := range []string{"node0", "node1"} {
		file := filepath.Join("/sys/devices/system/node", node, "hugepages/hugepages-2048kB/nr_hugepages")
		if err := os.WriteFile(file, fmt.Append(nil, pagesOfNode), 0); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(file); err != nil || strings.TrimSpace(string(got)) != fmt.Sprint(pagesOfNode) {
			t.Fatalf("the kernel has reserved %s huge pages of %s, %v", got, node, err)
		}
	}
}

// testGiantPage runs a pod with the page of 1 GiB beside pages of 2 MiB.
func testGiantPage(n *node) {
	for _, list := range []v1.ResourceList{n.resources().Capacity, n.resources().Allocatable} {
		if pages := list["hugepages-1Gi"]; pages.Value() != 1<<30 {
			n.t.Errorf("the Node has pages of 1 GiB of %s", &pages)
		}
	}
	const resources = "{cpu: 100m, memory: 64Mi, hugepages-1Gi: 1Gi, hugepages-2Mi: 4Mi}"
	n.place("giant", hosted+"volumes: [{name: pages, emptyDir: {medium: HugePages-1Gi}}]\n",
		"args: [sleep]\nvolumeMounts: [{name: pages, mountPath: /pages}]\nresources: {requests: "+resources+", limits: "+resources+"}\n")
	pod := n.ready("giant")
	for _, cgroup := range []string{n.PodCgroup(pod), n.containerCgroup(pod)} {
		n.wantFiles(cgroup, map[string]string{"hugetlb.1GB.max": mib(1024), "hugetlb.2MB.max": mib(4)})
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mounts", n.process("giant")))
	if err != nil || !strings.Contains(string(mounts), "pagesize=1024M") {
		n.t.Errorf("the mounts of the container are %s, %v", mounts, err)
	}
	const pages = "hugepages/hugepages-1048576kB/nr_hugepages"
	node := n.allowed("giant", "Mems_allowed_list")
	if got, err := os.ReadFile(filepath.Join("/sys/devices/system/node/node"+node, pages)); string(got) != "1\n" {
		n.t.Errorf("the pod has memory of the NUMA nodes %s, where the page is not: %q, %v", node, got, err)
	}
	n.remove("giant")
}

// withHugePages are the fields of a container with huge pages in a volume.
const withHugePages = "args: [sleep]\nvolumeMounts: [{name: pages, mountPath: /pages}]\n" +
	"resources: {requests: {cpu: 100m, memory: 64Mi, hugepages-2Mi: 20Mi}, limits: {cpu: 100m, memory: 64Mi, hugepages-2Mi: 20Mi}}\n"

// testHugePages runs pods with huge pages. The Node has the pages, the cgroups limit them, and a program in the
// container's cgroup gets as many. Each pod has those of one NUMA node, and a pod that fits none is refused.
func testHugePages(n *node) {
	for _, list := range []v1.ResourceList{n.resources().Capacity, n.resources().Allocatable} {
		if pages := list["hugepages-2Mi"]; pages.Value() != 2*pagesOfNode*hugePage {
			n.t.Errorf("the Node has huge pages of %s", &pages)
		}
	}
	const volume = hosted + "volumes: [{name: pages, emptyDir: {medium: HugePages}}]\n"
	n.place("pages", volume, withHugePages)
	pod := n.ready("pages")
	container := n.containerCgroup(pod)
	for _, cgroup := range []string{n.PodCgroup(pod), container} {
		n.wantFiles(cgroup, map[string]string{"hugetlb.2MB.max": mib(20), "memory.max": mib(64)})
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mounts", n.process("pages")))
	if err != nil || !strings.Contains(string(mounts), " /pages hugetlbfs rw,") ||
		!strings.Contains(string(mounts), "pagesize=2M") {
		n.t.Errorf("the mounts of the container are %s, %v", mounts, err)
	}
	file := filepath.Join(n.PodDir(pod), "volumes/kubernetes.io~empty-dir/pages/file")
	if err := useHugePages(container, file, 10); err != nil {
		n.t.Errorf("the container cannot use its huge pages: %v", err)
	}
	n.wantFiles(container, map[string]string{"hugetlb.2MB.current": mib(20)}) // they are the file's now
	if err := useHugePages(container, file+"2", 1); err == nil {
		n.t.Error("the container can use more huge pages than its limit")
	}

	n.place("morepages", volume, withHugePages)
	n.ready("morepages")
	nodes := map[string]bool{}
	for _, name := range []string{"pages", "morepages"} {
		nodes[n.allowed(name, "Mems_allowed_list")] = true
	}
	if !nodes["0"] || !nodes["1"] {
		n.t.Errorf("the pods have memory of the NUMA nodes %v, want 0 and 1", nodes)
	}
	n.place("nopages", volume, withHugePages)
	pod = n.awaitPod("nopages", "refused", func(pod *v1.Pod) bool { return pod.Status.Phase == v1.PodFailed })
	if pod.Status.Reason != "UnexpectedAdmissionError" || !strings.Contains(pod.Status.Message, "[memorymanager]") {
		n.t.Errorf("it was refused with %s: %s", pod.Status.Reason, pod.Status.Message)
	}
}

// resources returns the status of the Node.
func (n *node) resources() v1.NodeStatus {
	n.t.Helper()
	out, err := n.Command(n.t.Context(), "get", "node", "-o", "json")
	if err != nil {
		n.t.Fatal(err)
	}
	var object v1.Node
	if err := json.Unmarshal([]byte(out), &object); err != nil {
		n.t.Fatal(err)
	}
	return object.Status
}

// The variables of a process that uses huge pages.
const (
	variableFile  = "VMNODE_HUGE_FILE"
	variablePages = "VMNODE_HUGE_PAGES"
)

// useHugePages makes a file of so many huge pages by a process in a cgroup. The kernel kills the process if it gets
// fewer.
func useHugePages(cgroup, file string, pages int) error {
	dir, err := os.Open(filepath.Join(mounted, cgroup))
	if err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return errors.Join(err, dir.Close())
	}
	cmd := exec.Command(program)
	cmd.Env = []string{variableFile + "=" + file, variablePages + "=" + fmt.Sprint(pages)}
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return errors.Join(err, dir.Close())
}

func TestMain(m *testing.M) {
	if path := os.Getenv(variableFile); path != "" {
		if err := fillHugePages(path, os.Getenv(variablePages)); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// fillHugePages makes a file of huge pages and writes to each.
func fillHugePages(path, count string) error {
	var pages int
	if _, err := fmt.Sscan(count, &pages); err != nil {
		return err
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	memory, err := unix.Mmap(int(file.Fd()), 0, pages*hugePage, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return errors.Join(fmt.Errorf("map %d huge pages: %w", pages, err), file.Close())
	}
	for i := range pages {
		memory[i*hugePage] = 1
	}
	return file.Close()
}
