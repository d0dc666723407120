package podcgroups_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/containerspec"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podtest"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/podcgroups"
	"github.com/quartet-node/quartet/test/vm"
)

// eater is set in a process of this test that uses memory.
const eater = "QUARTET_TEST_EATER"

// eaten is how much it uses, and limit is its limit.
const eaten, limit = 48 << 20, 24 << 20

// TestMemoryOfCgroupV2 has a kernel with cgroup v2 and swap: requests are protected at each level, a container swaps as
// much as it may, and the pressure is measured.
func TestMemoryOfCgroupV2(t *testing.T) {
	if os.Getenv(eater) != "" {
		eat(t)
		return
	}
	if !vm.Inside(t, vm.Machine{Disks: []vm.Disk{{MiB: 128, Format: []string{"mkswap"}}}}) {
		return
	}
	fits := nodeconfig.Config{}.FitMachine(os.DirFS("/"))
	swapOn(t, "/dev/vda")
	if err := (nodeconfig.Config{}).FitMachine(os.DirFS("/")); err == nil || fits != nil {
		t.Errorf("without swap the machine has the error %v, and with swap %v; want failSwapOn for the second", fits, err)
	}

	machine := podcgroups.NewMachine("cgroupfs", clock.RealClock{})
	protect := resources.MemoryQoS{Enabled: true, Tiered: true, Throttling: 0.5}
	whole := podtest.List("cpu", "100m", "memory", "16Mi")
	guaranteed := podtest.Pod("u1", podtest.Container(whole, whole))
	burstable := podtest.Pod("u2", podtest.Container(podtest.List("memory", "256Mi"), podtest.List("memory", "512Mi")))
	throttled := podtest.Pod("u3", podtest.Container(podtest.List("memory", "1Mi"), nil))
	throttled.Spec.Resources = &v1.ResourceRequirements{
		Limits: podtest.List("memory", "3Mi"), Requests: podtest.List("memory", "1Mi"),
	}
	tree := podcgroups.New(podcgroups.Config{
		Cgroups: machine, Names: podcgroups.NewNames("cgroupfs", "/"), Limits: resources.Limits{MemoryQoS: protect},
		Pods:  func() ([]*v1.Pod, error) { return []*v1.Pod{guaranteed, burstable, throttled}, nil },
		Clock: clock.RealClock{},
	})
	for _, pod := range []*v1.Pod{guaranteed, burstable, throttled} {
		if _, err := tree.Ensure(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	for file, want := range map[string]string{
		"kubepods/memory.min": mib(273), "kubepods/memory.low": mib(257), "kubepods/burstable/memory.low": mib(257),
		"kubepods/podu1/memory.min": mib(16), "kubepods/podu1/memory.low": "0", "kubepods/podu1/memory.high": "max",
		"kubepods/burstable/podu2/memory.low": mib(256), "kubepods/burstable/podu2/memory.high": "max",
		"kubepods/burstable/podu3/memory.low": mib(1), "kubepods/burstable/podu3/memory.high": mib(2),
	} {
		if got := kernelHas(t, file); got != want {
			t.Errorf("%s is %s, want %s", file, got, want)
		}
	}

	const pod, free = "/kubepods/burstable/podu2", 128 << 20
	node := containerspec.Node{
		CgroupV2: true, SwapLimit: true, LimitedSwap: true, SwapCapacity: free, MemoryQoS: protect,
		Capacity: v1.ResourceList{v1.ResourceMemory: resource.MustParse("1Gi")},
	}
	usage := ate(t, machine, pod+"/swaps", burstable, node)
	if usage.SwapBytes == 0 || usage.SwapBytes > free/4 ||
		usage.SwapLimitBytes == nil || *usage.SwapLimitBytes != free/4 || usage.Pressure.Memory == nil ||
		usage.Pressure.Memory.Some.Total == 0 || usage.Pressure.CPU == nil || usage.Pressure.IO == nil {
		t.Errorf("a container that swaps uses %+v, with a limit of %d bytes of swap", usage, free/4)
	}
	all, err := machine.Usage("/")
	if err != nil || all.Pressure.Memory == nil || all.Pressure.Memory.Some.Total == 0 {
		t.Errorf("the machine uses %+v, %v", all, err)
	}
	node.LimitedSwap = false
	if usage := ate(t, machine, pod+"/stays", burstable, node); usage.SwapBytes != 0 {
		t.Errorf("a container that may not swap uses %+v", usage)
	}
	if events := kernelHas(t, pod+"/stays/memory.events"); strings.Contains(events, "oom_kill 0") {
		t.Errorf("a container that may not swap survives: %s", events)
	}
}

func mib(n int64) string { return resource.NewQuantity(n<<20, resource.DecimalSI).AsDec().String() }

func kernelHas(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(mounted, file))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(content))
}

// ate lets a process use memory in a cgroup with the settings of a container, and returns what it used in the end.
func ate(
	t *testing.T, machine *podcgroups.Machine, name string, pod *v1.Pod, node containerspec.Node,
) podcgroups.Usage {
	t.Helper()
	settings := containerspec.Resources(pod, &pod.Spec.Containers[0], node).GetUnified()
	if err := machine.Set(name, resources.Resources{Memory: limit, Unified: settings}); err != nil {
		t.Fatal(err)
	}
	cgroup, err := os.Open(filepath.Join(mounted, name))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cgroup.Close() }()
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), eater+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(cgroup.Fd())}
	stop, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	full, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = full.Read(make([]byte, 1)) // until it has used the memory, or was killed
	usage, err := machine.Usage(name)
	_ = stop.Close()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Error(err)
	}
	return usage
}

// eat uses memory until the standard input ends.
func eat(t *testing.T) {
	memory := make([]byte, eaten)
	for i := 0; i < len(memory); i += os.Getpagesize() {
		memory[i] = 1
	}
	if _, err := os.Stdout.WriteString("full\n"); err != nil {
		t.Fatal(err)
	}
	_, _ = os.Stdin.Read(memory[:1])
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
