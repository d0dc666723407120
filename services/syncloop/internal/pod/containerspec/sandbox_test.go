package containerspec_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/containerspec"
)

func makeSandbox(t *testing.T, pod *v1.Pod) *runtimeapi.PodSandboxConfig {
	t.Helper()
	config, err := containerspec.Sandbox(pod, node, containerspec.SandboxInputs{})
	if err != nil {
		t.Fatal(err)
	}
	return config
}

func TestNamespaces(t *testing.T) {
	const (
		podMode   = runtimeapi.NamespaceMode_POD
		container = runtimeapi.NamespaceMode_CONTAINER
		host      = runtimeapi.NamespaceMode_NODE
	)
	for _, test := range []struct {
		name string
		spec v1.PodSpec
		want *runtimeapi.NamespaceOption
	}{
		{"own", v1.PodSpec{}, &runtimeapi.NamespaceOption{Network: podMode, Pid: container, Ipc: podMode}},
		{"host network", v1.PodSpec{HostNetwork: true}, &runtimeapi.NamespaceOption{Network: host, Pid: container, Ipc: podMode}},
		{"host processes", v1.PodSpec{HostPID: true}, &runtimeapi.NamespaceOption{Network: podMode, Pid: host, Ipc: podMode}},
		{"host IPC", v1.PodSpec{HostIPC: true}, &runtimeapi.NamespaceOption{Network: podMode, Pid: container, Ipc: host}},
		{"shared processes", v1.PodSpec{ShareProcessNamespace: new(true)}, &runtimeapi.NamespaceOption{Network: podMode, Pid: podMode, Ipc: podMode}},
		{"host users", v1.PodSpec{HostUsers: new(true)}, &runtimeapi.NamespaceOption{Network: podMode, Pid: container, Ipc: podMode}},
	} {
		t.Run(test.name, func(t *testing.T) {
			pod := testPod(v1.Container{Name: "a"})
			test.spec.Containers = pod.Spec.Containers
			pod.Spec = test.spec
			if diff := cmp.Diff(test.want, makeSandbox(t, pod).GetLinux().GetSecurityContext().GetNamespaceOptions(),
				protocmp.Transform()); diff != "" {
				t.Errorf("sandbox (-want +got):\n%s", diff)
			}
			got := makeContainer(t, pod, containerspec.Inputs{}).GetLinux().GetSecurityContext().GetNamespaceOptions()
			if diff := cmp.Diff(test.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("container (-want +got):\n%s", diff)
			}
			// A target has an effect only if the containers do not share the PID namespace anyway.
			got = makeContainer(t, pod, containerspec.Inputs{Target: "c-1"}).GetLinux().GetSecurityContext().GetNamespaceOptions()
			targeted := got.GetPid() == runtimeapi.NamespaceMode_TARGET && got.GetTargetId() == "c-1"
			if targeted != (test.want.Pid == container) {
				t.Errorf("with a target: %v, want targeted %v", got, test.want.Pid == container)
			}
		})
	}
}

func TestNameOfTheHost(t *testing.T) {
	long := strings.Repeat("a", 60)
	for _, test := range []struct {
		name string
		spec v1.PodSpec
		want string
		err  string
	}{
		{"the pod's", v1.PodSpec{}, "web", ""},
		{"its own", v1.PodSpec{Hostname: "h"}, "h", ""},
		{"none on the host's network", v1.PodSpec{Hostname: "h", HostNetwork: true}, "", ""},
		{"without its domain", v1.PodSpec{Hostname: "h", Subdomain: "s"}, "h", ""},
		{"with its domain", v1.PodSpec{Hostname: "h", Subdomain: "s", SetHostnameAsFQDN: new(true)}, "h.s.shop.svc.cluster.local", ""},
		{"no domain to put there", v1.PodSpec{SetHostnameAsFQDN: new(true)}, "web", ""},
		{"too long with its domain", v1.PodSpec{Hostname: long, Subdomain: "s", SetHostnameAsFQDN: new(true)}, "", "is too long (64 characters is the max, 85 characters requested)"},
		{"overridden", v1.PodSpec{HostnameOverride: new("other.test"), Subdomain: "s"}, "other.test", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			pod := testPod()
			pod.Spec = test.spec
			cluster := node
			cluster.ClusterDomain = "cluster.local"
			config, err := containerspec.Sandbox(pod, cluster, containerspec.SandboxInputs{})
			if config.GetHostname() != test.want || (err != nil) != (test.err != "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("got %q, error %v; want %q, %q", config.GetHostname(), err, test.want, test.err)
			}
		})
	}
}

func TestSandboxesSecurityContext(t *testing.T) {
	pod := testPod(v1.Container{Name: "a", SecurityContext: &v1.SecurityContext{Privileged: new(true)}})
	strict := v1.SupplementalGroupsPolicyStrict
	pod.Spec.SecurityContext = &v1.PodSecurityContext{
		RunAsUser: new(int64(1)), RunAsGroup: new(int64(2)), FSGroup: new(int64(3)), SupplementalGroups: []int64{4},
		SupplementalGroupsPolicy: &strict,
		SELinuxOptions:           &v1.SELinuxOptions{Level: "s0"},
		// The profile of the pod applies to its containers.
		SeccompProfile: &v1.SeccompProfile{Type: v1.SeccompProfileTypeUnconfined},
	}
	want := &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
		RunAsUser:        &runtimeapi.Int64Value{Value: 1}, RunAsGroup: &runtimeapi.Int64Value{Value: 2},
		SupplementalGroups:       []int64{3, 4},
		SupplementalGroupsPolicy: runtimeapi.SupplementalGroupsPolicy_Strict,
		SelinuxOptions:           &runtimeapi.SELinuxOption{Level: "s0"}, Privileged: true,
		Seccomp: &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
	}
	if diff := cmp.Diff(want, makeSandbox(t, pod).GetLinux().GetSecurityContext(), protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	got := makeContainer(t, pod, containerspec.Inputs{}).GetLinux().GetSecurityContext()
	if got.GetSupplementalGroupsPolicy() != runtimeapi.SupplementalGroupsPolicy_Strict ||
		!slices.Equal(got.GetSupplementalGroups(), []int64{3, 4}) {
		t.Errorf("the groups of the container: %v, want SupplementalGroupsPolicy %v and SupplementalGroups %v",
			got, runtimeapi.SupplementalGroupsPolicy_Strict, []int64{3, 4})
	}
}

func TestOverheadIsBesideWhatContainersHave(t *testing.T) {
	pod := testPod(v1.Container{Name: "a", Resources: resources("1", "1", "1Gi", "1Gi")}, v1.Container{Name: "b", Resources: resources("1", "1", "1Gi", "1Gi")})
	pod.Spec.Overhead = resources("", "250m", "", "64Mi").Limits
	got := makeSandbox(t, pod).GetLinux()
	want := &runtimeapi.LinuxContainerResources{
		CpuShares: 2048, CpuPeriod: 100000, CpuQuota: 200000, MemoryLimitInBytes: 2 << 30,
	}
	if diff := cmp.Diff(want, got.GetResources(), protocmp.Transform()); diff != "" {
		t.Errorf("containers (-want +got):\n%s", diff)
	}
	want = &runtimeapi.LinuxContainerResources{
		CpuShares: 256, CpuPeriod: 100000, CpuQuota: 25000, MemoryLimitInBytes: 64 << 20,
	}
	if diff := cmp.Diff(want, got.GetOverhead(), protocmp.Transform()); diff != "" {
		t.Errorf("overhead (-want +got):\n%s", diff)
	}
}

func TestPortsOfAPod(t *testing.T) {
	pod := testPod(
		v1.Container{Name: "a", Ports: []v1.ContainerPort{
			{Name: "web", ContainerPort: 80, HostPort: 8080, HostIP: "192.0.2.1"}, {Name: "web", ContainerPort: 81}, {ContainerPort: 90}, {ContainerPort: 90},
		}},
		v1.Container{Name: "b", Ports: []v1.ContainerPort{{Name: "web", ContainerPort: 80, Protocol: v1.ProtocolSCTP}}},
	)
	want := []*runtimeapi.PortMapping{
		{ContainerPort: 80, HostPort: 8080, HostIp: "192.0.2.1"}, {ContainerPort: 90}, {ContainerPort: 80, Protocol: runtimeapi.Protocol_SCTP},
	}
	if diff := cmp.Diff(want, makeSandbox(t, pod).GetPortMappings(), protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestProblemsOfASecurityContextAreNamed(t *testing.T) {
	group := v1.SupplementalGroupsPolicy("Some")
	signal := v1.Signal("SIGNONE")
	for want, change := range map[string]func(*v1.Pod){
		"seccompProfile.localhostProfile": func(p *v1.Pod) {
			p.Spec.SecurityContext.SeccompProfile = &v1.SeccompProfile{Type: v1.SeccompProfileTypeLocalhost}
		},
		`seccompProfile.type: "x"`: func(p *v1.Pod) { p.Spec.SecurityContext.SeccompProfile = &v1.SeccompProfile{Type: "x"} },
		"appArmorProfile.localhostProfile": func(p *v1.Pod) {
			p.Spec.SecurityContext.AppArmorProfile = &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeLocalhost}
		},
		`supplementalGroupsPolicy: "Some"`: func(p *v1.Pod) { p.Spec.SecurityContext.SupplementalGroupsPolicy = &group },
		`lifecycle.stopSignal`:             func(p *v1.Pod) { p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{StopSignal: &signal} },
	} {
		pod := testPod(v1.Container{Name: "a"})
		pod.Spec.SecurityContext = &v1.PodSecurityContext{}
		change(pod)
		if _, err := containerspec.Container(pod, &pod.Spec.Containers[0], node, containerspec.Inputs{}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %s", err, want)
		}
	}
}

// TestTheGroupsOfVolumes checks that, as with a kubelet, the sandbox has them only with a security context of the pod.
func TestTheGroupsOfVolumes(t *testing.T) {
	pod := testPod(v1.Container{Name: "a"})
	sandbox := func() []int64 {
		config, err := containerspec.Sandbox(pod, node, containerspec.SandboxInputs{Groups: []int64{1234}})
		if err != nil {
			t.Fatal(err)
		}
		return config.GetLinux().GetSecurityContext().GetSupplementalGroups()
	}
	container := func() []int64 {
		container := makeContainer(t, pod, containerspec.Inputs{Groups: []int64{1234}})
		return container.GetLinux().GetSecurityContext().GetSupplementalGroups()
	}
	if got := sandbox(); len(got) > 0 {
		t.Errorf("the sandbox has the groups %v, want none", got)
	}
	if got := container(); !slices.Equal(got, []int64{1234}) {
		t.Errorf("the container has the groups %v", got)
	}
	pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: new(int64(7)), SupplementalGroups: []int64{8}}
	want := []int64{7, 8, 1234}
	if got := sandbox(); !slices.Equal(got, want) {
		t.Errorf("the sandbox has the groups %v, want %v", got, want)
	}
	if got := container(); !slices.Equal(got, want) {
		t.Errorf("the container has the groups %v, want %v", got, want)
	}
}
