// Package vmnode runs a whole node in a virtual machine: the programs of the build, the bundled containerd and static
// pods. The machine has what the machine of the tests may lack: nothing but cgroup v2, swap, two NUMA nodes,
// huge pages, AppArmor, an NFS server, and a power button.
package vmnode

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/livenode"
	"github.com/quartet-node/quartet/test/nfsserver"
	"github.com/quartet-node/quartet/test/vm"
)

// The directories of a machine's node: of its programs, and of its state.
const (
	binDir   = "/opt/quartet"
	stateDir = "/var/lib/quartet"
)

// The memory, the swap space and the disk of images of a machine.
const memoryMiB, swapMiB, imagesMiB = 5120, 2048, 1024

// The time limits suit processors that are emulated on a busy machine. On an idle one a test needs a tenth of them.
const (
	machineTimeout = 18 * time.Minute
	patience       = 5 * time.Minute
	interval       = time.Second // each answer of the node takes long there
)

// imagesDir is where containerd has its images and the layers of containers.
const imagesDir = stateDir + "/runtime/root"

// machine returns the machine with its disks /dev/vda, which is its root, /dev/vdb, which is swap space, and /dev/vdc
// for images.
func machine() vm.Machine {
	programs := []string{
		"containerd", "containerd-shim-runc-v2", "ctr", "runc", "bridge", "host-local", "loopback", "portmap",
		"configmux", "pleg", "syncloop", "nodestatus", "quartet", "images/hello.tar", "images/pause.tar",
	}
	// containerd needs the files of a host.
	files := map[string]string{"/etc/hosts": "testdata/hosts", "/etc/resolv.conf": "testdata/resolv.conf"}
	for _, program := range programs {
		files[filepath.Join(binDir, program)] = filepath.Join(livenode.Bin(), program)
	}
	return vm.Machine{
		Root: &vm.Root{MiB: 4096, Files: files}, CPUs: 4, NUMANodes: 2, MemoryMiB: memoryMiB, Timeout: machineTimeout,
		Kernel:  []string{"hugepagesz=1G", "hugepages=1"}, // later there is no free memory in one piece
		Modules: append(nfsserver.Modules(), "overlay", "bridge", "veth"),
		// containerd loads its profile with apparmor_parser.
		Programs: append(nfsserver.Programs(), "/sbin/apparmor_parser"),
		Disks: []vm.Disk{
			{MiB: swapMiB, Format: []string{"mkswap"}}, {MiB: imagesMiB, Format: []string{"mkfs.ext4", "-q"}},
		},
	}
}

// config is the configuration of the node. Its first CPU is reserved.
const config = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static
cpuManagerReconcilePeriod: 1s
memoryManagerPolicy: Static
topologyManagerPolicy: single-numa-node
systemReserved: {cpu: 500m, memory: 64Mi}
reservedMemory: [{numaNode: 0, limits: {memory: 64Mi}}]
memorySwap: {swapBehavior: LimitedSwap}
memoryReservationPolicy: TieredReservation
memoryThrottlingFactor: 0.5
` + livenode.AnyMachine

// node is the node of the machine.
type node struct {
	*livenode.Node
	t *testing.T
}

// startNode starts the node of the machine with its configuration, more fields, and more flags.
func startNode(t *testing.T, more string, flags ...string) *node {
	t.Helper()
	live, err := livenode.At(binDir, stateDir)
	if err != nil {
		t.Fatal(err)
	}
	n := &node{Node: live, t: t}
	t.Cleanup(func() {
		if t.Failed() {
			n.showLogs()
		}
	})
	begin := time.Now()
	n.start(more, flags)
	n.await("the node answers", func() bool {
		_, err := n.Pods(t.Context())
		return err == nil
	})
	t.Logf("the node has started in %v", time.Since(begin).Round(time.Millisecond))
	return n
}

// start starts the node with its configuration, more fields and flags, in a cgroup as systemd gives to a unit. It runs
// in the foreground, because in the background it would start twice, and ends with the machine.
func (n *node) start(more string, flags []string) {
	n.t.Helper()
	file := filepath.Join(stateDir, "begin.yaml")
	if err := os.MkdirAll(n.Layout.Logs(), 0o700); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(config+more), 0o600); err != nil {
		n.t.Fatal(err)
	}
	log, err := os.OpenFile(n.Layout.NodeLog(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		n.t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(binDir, "quartet"), append([]string{"up", "--config", file, "--read-only-port",
		n.Port(), "--healthz-port", n.HealthzPort()}, flags...)...)
	cmd.Stdout, cmd.Stderr = log, log
	unit := n.unit()
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(unit.Fd())}
	if err := errors.Join(cmd.Start(), log.Close(), unit.Close()); err != nil {
		n.t.Fatal(err)
	}
}

// unit makes the cgroup of the node's processes. Only in a cgroup of its own a node sees that memory is counted.
func (n *node) unit() *os.File {
	n.t.Helper()
	for _, dir := range []string{"system.slice", "system.slice/quartet.service"} {
		dir = filepath.Join(mounted, dir)
		err := os.Mkdir(dir, 0o755)
		controllers := filepath.Join(filepath.Dir(dir), "cgroup.subtree_control")
		if err := errors.Join(err, os.WriteFile(controllers, []byte("+memory"), 0)); err != nil {
			n.t.Fatal(err)
		}
	}
	unit, err := os.Open(filepath.Join(mounted, "system.slice/quartet.service"))
	if err != nil {
		n.t.Fatal(err)
	}
	return unit
}

func (n *node) showLogs() {
	files, err := filepath.Glob(filepath.Join(n.Layout.Logs(), "*.log"))
	if err != nil {
		return
	}
	for _, file := range files {
		const tail = 20_000
		if content, err := os.ReadFile(file); err == nil {
			fmt.Printf("---- %s\n%s\n", file, content[max(0, len(content)-tail):])
		}
	}
}

// in runs a part of the test on the node.
func (n *node) in(name string, part func(n *node)) {
	n.t.Helper()
	begin := time.Now()
	n.t.Run(name, func(t *testing.T) { part(&node{Node: n.Node, t: t}) })
	n.t.Logf("%s took %v", name, time.Since(begin).Round(time.Millisecond))
}

// await waits until a condition holds.
func (n *node) await(what string, holds func() bool) {
	n.t.Helper()
	eventually.Wait{Patience: patience, Interval: interval}.That(n.t, what, holds)
}

// hosted is a field of pods that need no network of their own, whose programs take long to start.
const hosted = "hostNetwork: true\n"

// place puts the manifest of a pod in its place. Spec is the pod's, with the fields of the container main last, and of
// the container other, if there is one.
func (n *node) place(name, spec, main string, other ...string) {
	n.t.Helper()
	manifest := fmt.Sprintf("apiVersion: v1\nkind: Pod\n"+
		"metadata: {name: %s, namespace: vm, uid: 5c2b1d1e-0000-4000-8000-%012x}\nspec:\n  terminationGracePeriodSeconds: 1\n%s  containers:\n",
		name, []byte(name[:min(len(name), 6)]), indent(spec, "  "))
	for i, fields := range append([]string{main}, other...) {
		manifest += fmt.Sprintf("  - name: %s\n    image: %s\n%s", []string{"main", "other"}[i], livenode.Image, indent(fields, "    "))
	}
	if err := n.Place(name+".yaml", manifest); err != nil {
		n.t.Fatal(err)
	}
	unix.Sync() // the manifest outlives a loss of power
}

func indent(text, by string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		out.WriteString(by + strings.TrimSuffix(line, "\n") + "\n")
	}
	return out.String()
}

// find returns a pod as it is now; nil if it does not exist, or the node does not answer.
func (n *node) find(name string) *v1.Pod {
	pods, err := n.Pods(n.t.Context())
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

// awaitPod waits until a pod meets a condition, and returns it.
func (n *node) awaitPod(name, what string, meets func(*v1.Pod) bool) *v1.Pod {
	n.t.Helper()
	var pod *v1.Pod
	eventually.Wait{Patience: patience, Interval: interval, State: func() string {
		if pod == nil {
			return "there is no such pod"
		}
		return fmt.Sprintf("the status is %+v", pod.Status)
	}}.That(n.t, "the pod "+name+" is "+what, func() bool {
		pod = n.find(name)
		return pod != nil && meets(pod)
	})
	return pod
}

func (n *node) ready(name string) *v1.Pod {
	n.t.Helper()
	return n.awaitPod(name, "Ready", livenode.Ready)
}

// process returns the ID of the first process of a pod's container main; 0 if there is none.
func (n *node) process(name string) int { return n.processOf(name, "main") }

// processOf returns the ID of the first process of a container; 0 if there is none.
func (n *node) processOf(name, container string) int {
	pod := n.find(name)
	if pod == nil {
		return 0
	}
	root, err := n.Inside(pod, container)
	if err != nil {
		return 0
	}
	var id int
	if _, err := fmt.Sscanf(root, "/proc/%d/root", &id); err != nil {
		n.t.Fatal(err)
	}
	return id
}

// killSyncloop kills syncloop and waits for the next one.
func (n *node) killSyncloop() {
	n.t.Helper()
	old, err := n.PID("syncloop")
	if err != nil {
		n.t.Fatal(err)
	}
	if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
		n.t.Fatal(err)
	}
	n.await("a new syncloop runs", func() bool {
		id, err := n.PID("syncloop")
		return err == nil && id != old
	})
}

// get returns the answer of the read-only API.
func (n *node) get(path string) []byte {
	n.t.Helper()
	body, err := n.fetch("http://127.0.0.1:" + n.Port() + path)
	if err != nil {
		n.t.Fatal(err)
	}
	return body
}

// fetch returns the answer of a server.
func (n *node) fetch(url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(n.t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(answer.Body)
	if err := errors.Join(err, answer.Body.Close()); err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: %s", url, answer.Status)
	}
	return body, nil
}

// status returns the status of a pod's container; its zero value if there is none.
func status(pod *v1.Pod) v1.ContainerStatus {
	if pod == nil || len(pod.Status.ContainerStatuses) == 0 {
		return v1.ContainerStatus{}
	}
	return pod.Status.ContainerStatuses[0]
}

func swapOn(t *testing.T, device string) {
	t.Helper()
	path, err := unix.BytePtrFromString(device)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, errno := unix.Syscall(unix.SYS_SWAPON, uintptr(unsafe.Pointer(path)), 0, 0); errno != 0 {
		t.Fatalf("swapon %s: %v", device, errno)
	}
}
