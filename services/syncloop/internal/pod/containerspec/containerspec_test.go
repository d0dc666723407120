package containerspec_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/containerspec"
)

var node = containerspec.Node{
	Name: "node-1", IPs: []string{"192.0.2.1"}, PodLogsDir: "/logs", SeccompDir: "/seccomp", CPUQuota: true, CgroupParent: "/kubepods",
	Capacity: v1.ResourceList{v1.ResourceCPU: resource.MustParse("4"), v1.ResourceMemory: resource.MustParse("10Gi")},
}

func testPod(containers ...v1.Container) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: "u-1", Labels: map[string]string{"app": "web"}},
		Spec:       v1.PodSpec{Containers: containers},
	}
}

// makeContainer returns the configuration of the pod's first container.
func makeContainer(t *testing.T, pod *v1.Pod, in containerspec.Inputs) *runtimeapi.ContainerConfig {
	t.Helper()
	config, err := containerspec.Container(pod, &pod.Spec.Containers[0], node, in)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

func resources(cpuRequest, cpuLimit, memoryRequest, memoryLimit string) v1.ResourceRequirements {
	r := v1.ResourceRequirements{Requests: v1.ResourceList{}, Limits: v1.ResourceList{}}
	put := func(list v1.ResourceList, name v1.ResourceName, text string) {
		if text != "" {
			list[name] = resource.MustParse(text)
		}
	}
	put(r.Requests, v1.ResourceCPU, cpuRequest)
	put(r.Limits, v1.ResourceCPU, cpuLimit)
	put(r.Requests, v1.ResourceMemory, memoryRequest)
	put(r.Limits, v1.ResourceMemory, memoryLimit)
	return r
}

func TestContainerSaysWhatItIs(t *testing.T) {
	pod := testPod(v1.Container{Name: "app", Image: "image:1", WorkingDir: "/w", Stdin: true, TTY: true})
	got := makeContainer(t, pod, containerspec.Inputs{Restart: podlabels.Restart{Count: 3}, ImageRef: "sha256:x"})
	if got.GetLogPath() != "app/3.log" || got.GetMetadata().GetAttempt() != 3 || got.GetImage().GetImage() != "sha256:x" ||
		got.GetImage().GetUserSpecifiedImage() != "image:1" || got.GetWorkingDir() != "/w" || !got.GetStdin() || !got.GetTty() ||
		got.GetLabels()[podlabels.ContainerName] != "app" {
		t.Errorf("makeContainer() = %v, want LogPath %q, Metadata.Attempt 3, Image.Image %q, Image.UserSpecifiedImage %q, WorkingDir %q, Stdin true, Tty true and Labels[podlabels.ContainerName] %q",
			got, "app/3.log", "sha256:x", "image:1", "/w", "app")
	}
}

func TestEnvironment(t *testing.T) {
	field := func(path string) *v1.EnvVarSource {
		return &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: path}}
	}
	pod := testPod(v1.Container{
		Name: "app", Command: []string{"run", "--to=$(URL)", "$$(URL)", "$(UNKNOWN)"}, Args: []string{"$(IP)"},
		Resources: resources("", "", "", "1Gi"),
		Env: []v1.EnvVar{
			{Name: "IP", ValueFrom: field("status.podIP")},
			{Name: "URL", Value: "http://$(IP)/$(LATER)"},
			{Name: "LATER", Value: "x"},
			{Name: "NODE", ValueFrom: field("spec.nodeName")},
			{Name: "HOST", ValueFrom: field("status.hostIP")},
			{Name: "APP", ValueFrom: field("metadata.labels['app']")},
			{Name: "MEM", ValueFrom: &v1.EnvVarSource{ResourceFieldRef: &v1.ResourceFieldSelector{Resource: "limits.memory", Divisor: resource.MustParse("1Mi")}}},
			{Name: "CPU", ValueFrom: &v1.EnvVarSource{ResourceFieldRef: &v1.ResourceFieldSelector{Resource: "limits.cpu"}}},
			{Name: "LATER", Value: "y"},
		},
	})
	got := makeContainer(t, pod, containerspec.Inputs{PodIPs: []string{"10.0.0.5"}})
	var lines []string
	for _, e := range got.GetEnvs() {
		lines = append(lines, e.GetKey()+"="+string(e.GetValue()))
	}
	want := []string{"IP=10.0.0.5", "URL=http://10.0.0.5/$(LATER)", "LATER=y", "NODE=node-1", "HOST=192.0.2.1", "APP=web", "MEM=1024", "CPU=4"}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"run", "--to=http://10.0.0.5/$(LATER)", "$(URL)", "$(UNKNOWN)"}, got.GetCommand()); diff != "" {
		t.Errorf("command (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"10.0.0.5"}, got.GetArgs()); diff != "" {
		t.Errorf("args (-want +got):\n%s", diff)
	}
}

func TestResources(t *testing.T) {
	for _, test := range []struct {
		name string
		in   v1.ResourceRequirements
		want *runtimeapi.LinuxContainerResources
	}{
		{"none", resources("", "", "", ""), &runtimeapi.LinuxContainerResources{CpuShares: 2, CpuPeriod: 100000, OomScoreAdj: 1000}},
		{"guaranteed", resources("500m", "500m", "1Gi", "1Gi"),
			&runtimeapi.LinuxContainerResources{
				CpuShares: 512, CpuPeriod: 100000, CpuQuota: 50000, MemoryLimitInBytes: 1 << 30, OomScoreAdj: -997,
			}},
		{"burstable", resources("1", "2", "1Gi", "2Gi"),
			&runtimeapi.LinuxContainerResources{
				CpuShares: 1024, CpuPeriod: 100000, CpuQuota: 200000, MemoryLimitInBytes: 2 << 30, OomScoreAdj: 900,
			}},
		{"limit is the request", resources("", "250m", "", ""),
			&runtimeapi.LinuxContainerResources{CpuShares: 256, CpuPeriod: 100000, CpuQuota: 25000, OomScoreAdj: 999}},
		{"tiny", resources("1m", "1m", "", ""), &runtimeapi.LinuxContainerResources{CpuShares: 2, CpuPeriod: 100000, CpuQuota: 1000, OomScoreAdj: 999}},
	} {
		t.Run(test.name, func(t *testing.T) {
			pod := testPod(v1.Container{Name: "a", Resources: test.in})
			got := makeContainer(t, pod, containerspec.Inputs{}).GetLinux().GetResources()
			if diff := cmp.Diff(test.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestHugePages(t *testing.T) {
	pod := testPod(v1.Container{Name: "a", Resources: v1.ResourceRequirements{Limits: v1.ResourceList{"hugepages-2Mi": resource.MustParse("64Mi")}}})
	large := node
	large.HugePages = []string{"2MB", "1GB"}
	limits := func() []*runtimeapi.HugepageLimit {
		t.Helper()
		config, err := containerspec.Container(pod, &pod.Spec.Containers[0], large, containerspec.Inputs{})
		if err != nil {
			t.Fatal(err)
		}
		return config.GetLinux().GetResources().GetHugepageLimits()
	}
	// A container may not use huge pages without a request.
	want := []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 64 << 20}, {PageSize: "1GB"}}
	if diff := cmp.Diff(want, limits(), protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	pod.Spec.Resources = &v1.ResourceRequirements{Limits: v1.ResourceList{
		"hugepages-2Mi": resource.MustParse("128Mi"), "hugepages-1Gi": resource.MustParse("2Gi"),
	}}
	want[1].Limit = 2 << 30
	if diff := cmp.Diff(want, limits(), protocmp.Transform()); diff != "" {
		t.Errorf("with limits of the pod (-want +got):\n%s", diff)
	}
}

func TestResourcesOfThePodAsAWhole(t *testing.T) {
	pod := testPod(v1.Container{Name: "a", Resources: resources("", "", "1Gi", "")}, v1.Container{Name: "b", Resources: resources("", "1", "", "512Mi")})
	whole := resources("2", "3", "5Gi", "8Gi")
	pod.Spec.Resources = &whole
	for i, want := range []*runtimeapi.LinuxContainerResources{
		// The resources are the limits of the pod, an equal request, and half of the 4 GiB of the node's 10 GiB that no
		// container requests.
		{CpuShares: 3072, CpuPeriod: 100000, CpuQuota: 300000, MemoryLimitInBytes: 8 << 30, OomScoreAdj: 700},
		{CpuShares: 1024, CpuPeriod: 100000, CpuQuota: 100000, MemoryLimitInBytes: 512 << 20, OomScoreAdj: 800},
	} {
		config, err := containerspec.Container(pod, &pod.Spec.Containers[i], node, containerspec.Inputs{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, config.GetLinux().GetResources(), protocmp.Transform()); diff != "" {
			t.Errorf("container %d (-want +got):\n%s", i, diff)
		}
	}
}

func TestWhatTheMachinesCgroupsCanDo(t *testing.T) {
	for _, test := range []struct {
		name string
		node containerspec.Node
		want *runtimeapi.LinuxContainerResources
	}{
		{"v1 without swap", containerspec.Node{GroupOOMKill: true}, &runtimeapi.LinuxContainerResources{}},
		{"v1 with swap", containerspec.Node{SwapLimit: true}, &runtimeapi.LinuxContainerResources{MemorySwapLimitInBytes: 1 << 30}},
		{"v2", containerspec.Node{CgroupV2: true, GroupOOMKill: true, SwapLimit: true},
			&runtimeapi.LinuxContainerResources{Unified: map[string]string{
				"memory.oom.group": "1", "memory.swap.max": "0", "memory.high": "max",
			}}},
		{"v2, one process at a time", containerspec.Node{CgroupV2: true},
			&runtimeapi.LinuxContainerResources{Unified: map[string]string{"memory.high": "max"}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			pod := testPod(v1.Container{Name: "a", Resources: resources("", "", "1Gi", "1Gi")})
			config, err := containerspec.Container(pod, &pod.Spec.Containers[0], test.node, containerspec.Inputs{})
			if err != nil {
				t.Fatal(err)
			}
			test.want.CpuShares, test.want.MemoryLimitInBytes, test.want.OomScoreAdj = 2, 1<<30, 999
			if diff := cmp.Diff(test.want, config.GetLinux().GetResources(), protocmp.Transform()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestAppArmorByAnnotation(t *testing.T) {
	profile := func(kind runtimeapi.SecurityProfile_ProfileType, name string) *runtimeapi.SecurityProfile {
		return &runtimeapi.SecurityProfile{ProfileType: kind, LocalhostRef: name}
	}
	for _, test := range []struct {
		name, annotation string
		own, pod         *v1.AppArmorProfile
		want             *runtimeapi.SecurityProfile
	}{
		{name: "none"},
		{name: "default", annotation: "runtime/default", want: profile(runtimeapi.SecurityProfile_RuntimeDefault, "")},
		{name: "unconfined", annotation: "unconfined", want: profile(runtimeapi.SecurityProfile_Unconfined, "")},
		{name: "of the node", annotation: "localhost/k8s", want: profile(runtimeapi.SecurityProfile_Localhost, "k8s")},
		{name: "no such value", annotation: "other"},
		{name: "before the pod's field", annotation: "unconfined", pod: &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeRuntimeDefault},
			want: profile(runtimeapi.SecurityProfile_Unconfined, "")},
		{name: "after the container's field", annotation: "unconfined", own: &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeRuntimeDefault},
			want: profile(runtimeapi.SecurityProfile_RuntimeDefault, "")},
	} {
		t.Run(test.name, func(t *testing.T) {
			pod := testPod(v1.Container{Name: "a", SecurityContext: &v1.SecurityContext{AppArmorProfile: test.own}})
			pod.Spec.SecurityContext = &v1.PodSecurityContext{AppArmorProfile: test.pod}
			if test.annotation != "" {
				pod.Annotations = map[string]string{"container.apparmor.security.beta.kubernetes.io/a": test.annotation}
			}
			got := makeContainer(t, pod, containerspec.Inputs{}).GetLinux().GetSecurityContext().GetApparmor()
			if diff := cmp.Diff(test.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestSecurityContext(t *testing.T) {
	pod := testPod(v1.Container{Name: "a", SecurityContext: &v1.SecurityContext{
		RunAsUser: new(int64(1000)), Privileged: new(true), ReadOnlyRootFilesystem: new(true),
		AllowPrivilegeEscalation: new(false),
		Capabilities:             &v1.Capabilities{Add: []v1.Capability{"NET_ADMIN"}, Drop: []v1.Capability{"ALL"}},
		SeccompProfile:           &v1.SeccompProfile{Type: v1.SeccompProfileTypeLocalhost, LocalhostProfile: new("p.json")},
		AppArmorProfile:          &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeRuntimeDefault},
		ProcMount:                new(v1.UnmaskedProcMount),
	}})
	pod.Spec.SecurityContext = &v1.PodSecurityContext{
		RunAsUser: new(int64(1)), RunAsGroup: new(int64(2)), FSGroup: new(int64(3)), SupplementalGroups: []int64{4},
		SELinuxOptions: &v1.SELinuxOptions{Level: "s0"},
	}
	pod.Spec.HostPID = true
	got := makeContainer(t, pod, containerspec.Inputs{}).GetLinux().GetSecurityContext()
	want := &runtimeapi.LinuxContainerSecurityContext{
		RunAsUser: &runtimeapi.Int64Value{Value: 1000}, RunAsGroup: &runtimeapi.Int64Value{Value: 2},
		SupplementalGroups: []int64{3, 4},
		Privileged:         true, ReadonlyRootfs: true, NoNewPrivs: true,
		Capabilities: &runtimeapi.Capability{AddCapabilities: []string{"NET_ADMIN"}, DropCapabilities: []string{"ALL"}},
		Seccomp: &runtimeapi.SecurityProfile{
			ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "/seccomp/p.json",
		},
		Apparmor:         &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
		SelinuxOptions:   &runtimeapi.SELinuxOption{Level: "s0"},
		NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_NODE},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	pod.Spec.Containers[0].SecurityContext.ProcMount = nil
	got = makeContainer(t, pod, containerspec.Inputs{}).GetLinux().GetSecurityContext()
	if len(got.GetMaskedPaths()) == 0 || len(got.GetReadonlyPaths()) == 0 {
		t.Error("/proc is not masked by default")
	}
}

// TestMaskedPaths checks the masked paths of Kubernetes 1.37 and those of the machine. A container with an unmasked
// /proc has none.
func TestMaskedPaths(t *testing.T) {
	machine := node
	machine.MaskedPaths = []string{"/sys/devices/system/cpu/cpu0/thermal_throttle", "/sys/devices/system/cpu/cpu1/thermal_throttle"}
	pod := testPod(v1.Container{Name: "a"})
	masked := func() []string {
		t.Helper()
		config, err := containerspec.Container(pod, &pod.Spec.Containers[0], machine, containerspec.Inputs{})
		if err != nil {
			t.Fatal(err)
		}
		return config.GetLinux().GetSecurityContext().GetMaskedPaths()
	}
	want := []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats",
		"/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
		"/sys/devices/system/cpu/cpu0/thermal_throttle", "/sys/devices/system/cpu/cpu1/thermal_throttle",
	}
	for range 2 { // the second list is not appended to the first
		if diff := cmp.Diff(want, masked()); diff != "" {
			t.Errorf("masked paths (-want +got):\n%s", diff)
		}
	}
	pod.Spec.Containers[0].SecurityContext = &v1.SecurityContext{ProcMount: new(v1.UnmaskedProcMount)}
	if got := masked(); len(got) > 0 {
		t.Errorf("masked are %q where nothing is to be", got)
	}
}

func TestNonRoot(t *testing.T) {
	for _, test := range []struct {
		name    string
		sc      v1.SecurityContext
		user    containerspec.ImageUser
		wantErr string
	}{
		{"image is root", v1.SecurityContext{}, containerspec.ImageUser{UID: new(int64(0))}, "image will run as root"},
		{"image has a name", v1.SecurityContext{}, containerspec.ImageUser{Name: "www"}, "non-numeric user (www)"},
		{"image has a number", v1.SecurityContext{}, containerspec.ImageUser{UID: new(int64(7))}, ""},
		{"image has no number of a user", v1.SecurityContext{}, containerspec.ImageUser{UID: new(int64(1 << 31))}, "invalid user id"},
		{"pod says root", v1.SecurityContext{RunAsUser: new(int64(0))}, containerspec.ImageUser{}, "breaks non-root policy"},
		{"pod says another", v1.SecurityContext{RunAsUser: new(int64(7))}, containerspec.ImageUser{UID: new(int64(0))}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.sc.RunAsNonRoot = new(true)
			pod := testPod(v1.Container{Name: "a", SecurityContext: &test.sc})
			_, err := containerspec.Container(pod, &pod.Spec.Containers[0], node, containerspec.Inputs{ImageUser: test.user})
			if (err != nil) != (test.wantErr != "") || err != nil && !strings.Contains(err.Error(), test.wantErr) {
				t.Errorf("error %v, want %q", err, test.wantErr)
			}
		})
	}
}

func TestStopSignal(t *testing.T) {
	for name, want := range map[v1.Signal]runtimeapi.Signal{
		v1.SIGINT: runtimeapi.Signal_SIGNAL_SIGINT, v1.SIGRTMINPLUS1: runtimeapi.Signal_SIGNAL_SIGRTMINPLUS1,
	} {
		pod := testPod(v1.Container{Name: "a", Lifecycle: &v1.Lifecycle{StopSignal: &name}})
		if got := makeContainer(t, pod, containerspec.Inputs{}).GetStopSignal(); got != want {
			t.Errorf("%s: GetStopSignal() = %v, want %v", name, got, want)
		}
	}
}

func TestSandbox(t *testing.T) {
	pod := testPod(v1.Container{Name: "a", Ports: []v1.ContainerPort{{ContainerPort: 53, HostPort: 5353, Protocol: v1.ProtocolUDP}, {Name: "x", ContainerPort: 80}}})
	pod.Spec.SecurityContext = &v1.PodSecurityContext{
		Sysctls: []v1.Sysctl{{Name: "net/ipv4/conf/eth0.1/forwarding", Value: "1"}},
	}
	pod.Spec.ShareProcessNamespace = new(true)
	got, err := containerspec.Sandbox(pod, node, containerspec.SandboxInputs{
		Attempt: 2, DNS: &runtimeapi.DNSConfig{Servers: []string{"192.0.2.53"}}, Traceparent: "00-tp",
	})
	if err != nil {
		t.Fatal(err)
	}
	if got.GetHostname() != "web" || got.GetLogDirectory() != "/logs/shop_web_u-1" || got.GetMetadata().GetAttempt() != 2 ||
		got.GetAnnotations()["quartet.dev/traceparent"] != "00-tp" || got.GetLinux().GetCgroupParent() != "/kubepods" ||
		got.GetLinux().GetSysctls()["net.ipv4.conf.eth0/1.forwarding"] != "1" ||
		got.GetLinux().GetSecurityContext().GetNamespaceOptions().GetPid() != runtimeapi.NamespaceMode_POD {
		t.Errorf("Sandbox() = %v, want Hostname %q, LogDirectory %q, Metadata.Attempt 2, quartet.dev/traceparent %q, Linux.CgroupParent %q, net.ipv4.conf.eth0/1.forwarding %q and Pid %v",
			got, "web", "/logs/shop_web_u-1", "00-tp", "/kubepods", "1", runtimeapi.NamespaceMode_POD)
	}
	wantPorts := []*runtimeapi.PortMapping{
		{Protocol: runtimeapi.Protocol_UDP, ContainerPort: 53, HostPort: 5353}, {ContainerPort: 80},
	}
	if diff := cmp.Diff(wantPorts, got.GetPortMappings(), protocmp.Transform()); diff != "" {
		t.Errorf("ports (-want +got):\n%s", diff)
	}
}

func TestAPodWithAUserNamespaceIsMapped(t *testing.T) {
	pod := testPod(v1.Container{Name: "a"})
	ids := containerspec.IDs{First: 131072, Length: 65536}
	mapping := []*runtimeapi.IDMapping{{HostId: 131072, ContainerId: 0, Length: 65536}}
	want := &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: mapping, Gids: mapping}
	sandbox, err := containerspec.Sandbox(pod, node, containerspec.SandboxInputs{IDs: ids})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, sandbox.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions(),
		protocmp.Transform()); diff != "" {
		t.Errorf("sandbox (-want +got):\n%s", diff)
	}
	mount := &runtimeapi.Mount{ContainerPath: "/data", HostPath: "/data"}
	got := makeContainer(t, pod, containerspec.Inputs{IDs: ids, Mounts: []*runtimeapi.Mount{mount}})
	if diff := cmp.Diff(want, got.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions(),
		protocmp.Transform()); diff != "" {
		t.Errorf("container (-want +got):\n%s", diff)
	}
	wantMount := &runtimeapi.Mount{ContainerPath: "/data", HostPath: "/data", UidMappings: mapping, GidMappings: mapping}
	if diff := cmp.Diff([]*runtimeapi.Mount{wantMount}, got.GetMounts(), protocmp.Transform()); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
}

func TestHostname(t *testing.T) {
	pod := testPod()
	pod.Name = strings.Repeat("a", 62) + "-b"
	if host, _ := containerspec.Hostname(pod, ""); host != strings.Repeat("a", 62) {
		t.Errorf("long name: %q", host)
	}
	pod.Spec.Hostname, pod.Spec.Subdomain = "h", "sub"
	if host, domain := containerspec.Hostname(pod, "cluster.local"); host != "h" || domain != "sub.shop.svc.cluster.local" {
		t.Errorf("Hostname(cluster.local) = %q %q, want %q and %q", host, domain, "h", "sub.shop.svc.cluster.local")
	}
	got := string(containerspec.Hosts(pod, []string{"10.0.0.5"}, "cluster.local", nil))
	if !strings.Contains(got, "10.0.0.5\th.sub.shop.svc.cluster.local\th\n") {
		t.Errorf("hosts file:\n%s\nwant text with %q", got, "10.0.0.5\th.sub.shop.svc.cluster.local\th\n")
	}
}
