package admission_test

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/admission"
)

// pod returns a pod with one container.
func pod(change ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "main"}}}}
	for _, c := range change {
		c(p)
	}
	return p
}

func requesting(name v1.ResourceName, amount string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		r := &p.Spec.Containers[0].Resources
		if r.Requests == nil {
			r.Requests = v1.ResourceList{}
		}
		r.Requests[name] = resource.MustParse(amount)
	}
}

func overhead(name v1.ResourceName, amount string) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.Overhead = v1.ResourceList{name: resource.MustParse(amount)} }
}

func port(protocol v1.Protocol, ip string, number int32) func(*v1.Pod) {
	return func(p *v1.Pod) {
		c := &p.Spec.Containers[0]
		c.Ports = append(c.Ports, v1.ContainerPort{Protocol: protocol, HostIP: ip, HostPort: number, ContainerPort: 80})
	}
}

func sysctl(name string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.SecurityContext = &v1.PodSecurityContext{Sysctls: []v1.Sysctl{{Name: name, Value: "1"}}}
	}
}

func hostNetwork(p *v1.Pod) { p.Spec.HostNetwork = true }
func hostIPC(p *v1.Pod)     { p.Spec.HostIPC = true }

func node() *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node", Labels: map[string]string{v1.LabelOSStable: "linux", "disk": "ssd"}},
		Spec: v1.NodeSpec{Taints: []v1.Taint{
			{Key: "closed", Effect: v1.TaintEffectNoExecute}, {Key: "crowded", Effect: v1.TaintEffectNoSchedule},
		}},
		Status: v1.NodeStatus{Allocatable: v1.ResourceList{
			v1.ResourceCPU: resource.MustParse("2"), v1.ResourceMemory: resource.MustParse("1Gi"), v1.ResourcePods: resource.MustParse("3"),
		}},
	}
}

func tolerant(p *v1.Pod) {
	p.Spec.Tolerations = []v1.Toleration{{Key: "closed", Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute}}
}

func TestCheck(t *testing.T) {
	one := func(change ...func(*v1.Pod)) []*v1.Pod { return []*v1.Pod{pod(change...)} }
	for _, tc := range []struct {
		name   string
		pod    *v1.Pod
		others []*v1.Pod
		want   string
	}{
		{name: "a pod that asks for nothing", pod: pod()},
		{name: "a pod for another system", pod: pod(func(p *v1.Pod) { p.Spec.OS = &v1.PodOS{Name: v1.Windows} }),
			want: "PodOSNotSupported: Failed to admit pod as the OS field doesn't match node OS"},
		{name: "a selector of another system", pod: pod(func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{v1.LabelOSStable: "windows"} }),
			want: "PodOSSelectorNodeLabelDoesNotMatch: Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"},
		{name: "a selector that matches", pod: pod(func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} })},
		{name: "a selector that does not", pod: pod(func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "hdd"} }),
			want: "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"},
		{name: "an affinity to another node", pod: pod(func(p *v1.Pod) {
			selector := &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
				MatchExpressions: []v1.NodeSelectorRequirement{
					{Key: "disk", Operator: v1.NodeSelectorOpNotIn, Values: []string{"ssd"}},
				},
			}}}
			p.Spec.Affinity = &v1.Affinity{
				NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: selector},
			}
		}), want: "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"},
		{name: "another node's pod", pod: pod(func(p *v1.Pod) { p.Spec.NodeName = "other" }),
			want: "NodeName: Predicate NodeName failed: node(s) didn't match the requested node name"},
		{name: "just as much as there is", pod: pod(requesting("cpu", "1500m")), others: one(requesting("cpu", "500m"))},
		{name: "a little more", pod: pod(requesting("cpu", "1501m")), others: one(requesting("cpu", "500m")),
			want: "OutOfcpu: Node didn't have enough resource: cpu, requested: 1501, used: 500, capacity: 2000"},
		{name: "a little more with the overhead of its sandbox", pod: pod(requesting("cpu", "1500m"), overhead("cpu", "1m")), others: one(requesting("cpu", "500m")),
			want: "OutOfcpu: Node didn't have enough resource: cpu, requested: 1501, used: 500, capacity: 2000"},
		{name: "the overhead of others", pod: pod(requesting("cpu", "1500m")), others: one(requesting("cpu", "400m"), overhead("cpu", "101m")),
			want: "OutOfcpu: Node didn't have enough resource: cpu, requested: 1500, used: 501, capacity: 2000"},
		{name: "too much memory", pod: pod(requesting("memory", "2Gi")),
			want: "OutOfmemory: Node didn't have enough resource: memory, requested: 2147483648, used: 0, capacity: 1073741824"},
		{name: "a resource that is no node's", pod: pod(requesting("example.com/license", "1"))},
		{name: "huge pages of a size that the machine does not have", pod: pod(requesting("hugepages-512Mi", "512Mi")),
			want: "OutOfhugepages-512Mi: Node didn't have enough resource: hugepages-512Mi, requested: 536870912, " +
				"used: 0, capacity: 0"},
		{name: "one pod too many", pod: pod(), others: []*v1.Pod{pod(), pod(), pod()},
			want: "OutOfpods: Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3"},
		{name: "nothing asked on a node that is over-committed", pod: pod(), others: one(requesting("cpu", "100"))},
		{name: "a port that another has", pod: pod(port("", "", 80)), others: one(port("TCP", "127.0.0.1", 80)),
			want: "NodePorts: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"},
		{name: "a port on another address", pod: pod(port("TCP", "127.0.0.2", 80)), others: one(port("TCP", "127.0.0.1", 80))},
		{name: "a port of another protocol", pod: pod(port("UDP", "", 80)), others: one(port("TCP", "", 80))},
		{name: "a sidecar's port", pod: pod(port("", "", 80)), others: one(func(p *v1.Pod) {
			p.Spec.InitContainers = []v1.Container{{
				Name: "side", RestartPolicy: ptr.To(v1.ContainerRestartPolicyAlways), Ports: []v1.ContainerPort{{HostPort: 80}},
			}}
		}), want: "NodePorts: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"},
		{name: "the port of an init container that ends", pod: pod(port("", "", 80)), others: one(func(p *v1.Pod) {
			p.Spec.InitContainers = []v1.Container{{Name: "init", Ports: []v1.ContainerPort{{HostPort: 80}}}}
		})},
		{name: "a safe sysctl", pod: pod(sysctl("net.ipv4.tcp_syncookies"))},
		{name: "a safe sysctl, written with slashes", pod: pod(sysctl("net/ipv4/tcp_syncookies"))},
		{name: "an unsafe sysctl", pod: pod(sysctl("net.core.rmem_max")), want: `SysctlForbidden: forbidden sysctl: "net.core.rmem_max" not allowlisted`},
		{name: "an unsafe sysctl that is allowed", pod: pod(sysctl("net.core.somaxconn"))},
		{name: "one of a group that is allowed", pod: pod(sysctl("kernel.msgmax"))},
		{name: "a sysctl of the machine's network", pod: pod(sysctl("net.ipv4.tcp_syncookies"), hostNetwork),
			want: `SysctlForbidden: forbidden sysctl: "net.ipv4.tcp_syncookies" not allowed with host Net enabled`},
		{name: "a sysctl of the machine's IPC", pod: pod(sysctl("kernel.shm_rmid_forced"), hostIPC),
			want: `SysctlForbidden: forbidden sysctl: "kernel.shm_rmid_forced" not allowed with host IPC enabled`},
		{name: "a sysctl of the machine's users", pod: pod(sysctl("user.max_net_namespaces")),
			want: `SysctlForbidden: forbidden sysctl: "user.max_net_namespaces" not allowed with host User enabled`},
		{name: "a sysctl of the pod's own users", pod: pod(sysctl("user.max_net_namespaces"), func(p *v1.Pod) { p.Spec.HostUsers = new(bool) })},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := ""
			if refusal := admission.Check(admission.Request{
				Pod: tc.pod, Static: true, Others: tc.others, Node: node(),
				UnsafeSysctls: []string{"net.core.somaxconn", "kernel.msg*", "user.*"},
			}); refusal != nil {
				got = fmt.Sprintf("%s: %s", refusal.Reason, refusal.Message)
			}
			if got != tc.want {
				t.Errorf("refused with %q, want %q", got, tc.want)
			}
		})
	}
}

func TestTaintsKeepAwayOnlyPodsOfTheClusterThatDoNotTolerateThem(t *testing.T) {
	for name, tc := range map[string]struct {
		pod    *v1.Pod
		static bool
		want   string
	}{
		"a static pod":                {pod(), true, ""},
		"a pod that tolerates it":     {pod(tolerant), false, ""},
		"a pod that does not":         {pod(), false, "TaintToleration"},
		"a static pod that tolerates": {pod(tolerant), true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if refusal := admission.Check(admission.Request{Pod: tc.pod, Static: tc.static, Node: node()}); refusal != nil {
				got = refusal.Reason
			}
			if got != tc.want {
				t.Errorf("refused with %q, want %q", got, tc.want)
			}
		})
	}
}

func TestStrictGroupsNeedARuntimeThatHasThem(t *testing.T) {
	strict := pod(func(p *v1.Pod) {
		p.Spec.SecurityContext = &v1.PodSecurityContext{SupplementalGroupsPolicy: ptr.To(v1.SupplementalGroupsPolicyStrict)}
	})
	const runtime = "containerd://2.4.2"
	for name, tc := range map[string]struct {
		version  string
		features *v1.NodeFeatures
		want     string
	}{
		"it has them":                  {runtime, &v1.NodeFeatures{SupplementalGroupsPolicy: ptr.To(true)}, ""},
		"it says that it has not":      {runtime, &v1.NodeFeatures{SupplementalGroupsPolicy: ptr.To(false)}, strictRefused},
		"it says nothing of groups":    {runtime, &v1.NodeFeatures{}, strictRefused},
		"it says nothing":              {runtime, nil, strictRefused},
		"nobody knows yet which it is": {"", nil, ""},
	} {
		n := node()
		n.Status.Features, n.Status.NodeInfo.ContainerRuntimeVersion = tc.features, tc.version
		got := ""
		if refusal := admission.Check(admission.Request{Pod: strict, Static: true, Node: n}); refusal != nil {
			got = refusal.Reason + ": " + refusal.Message
		}
		if got != tc.want {
			t.Errorf("%s: refused with %q, want %q", name, got, tc.want)
		}
		merged := strict.DeepCopy()
		*merged.Spec.SecurityContext.SupplementalGroupsPolicy = v1.SupplementalGroupsPolicyMerge
		if refusal := admission.Check(admission.Request{Pod: merged, Static: true, Node: n}); refusal != nil {
			t.Errorf("%s: a pod with the policy Merge is refused with %+v", name, refusal)
		}
	}
}

const strictRefused = "SupplementalGroupsPolicyNotSupported: SupplementalGroupsPolicy=Strict is not supported in this node"

func TestWithoutANodeWhatNeedsNoneIsAsked(t *testing.T) {
	r := admission.Request{Pod: pod(requesting("cpu", "1000"), port("", "", 80)), Others: []*v1.Pod{pod(port("", "", 80))}}
	if refusal := admission.Check(r); refusal == nil || refusal.Reason != admission.ReasonPorts {
		t.Errorf("%v, want it refused for its port", refusal)
	}
}

// TestSafeSysctls checks the safe sysctls of Kubernetes 1.37. Each is safe from the kernel version on in which it
// became namespaced.
func TestSafeSysctls(t *testing.T) {
	for name, since := range map[string]string{
		"kernel.shm_rmid_forced": "", "net.ipv4.ip_local_port_range": "", "net.ipv4.tcp_syncookies": "", "net.ipv4.ping_group_range": "",
		"net.ipv4.ip_unprivileged_port_start": "", "net.ipv4.ip_local_reserved_ports": "3.16", "net.ipv4.tcp_keepalive_time": "4.5",
		"net.ipv4.tcp_fin_timeout": "4.6", "net.ipv4.tcp_keepalive_intvl": "4.5", "net.ipv4.tcp_keepalive_probes": "4.5", "net.ipv4.tcp_rmem": "4.15",
		"net.ipv4.tcp_wmem": "4.15", "net.ipv4.tcp_slow_start_after_idle": "4.15", "net.ipv4.tcp_notsent_lowat": "4.6",
	} {
		for _, kernel := range []string{"", "3.10.0", "4.5.1", "4.6.0", "4.14.9", "4.15.0", "6.1.0-18-amd64"} {
			r := admission.Request{Pod: pod(sysctl(name))}
			safe := since == ""
			if kernel != "" {
				r.Machine.Kernel = version.MustParseGeneric(kernel)
				safe = safe || r.Machine.Kernel.AtLeast(version.MustParseGeneric(since))
			}
			if refusal := admission.Check(r); (refusal == nil) != safe {
				t.Errorf("%s on the kernel %q: refused with %+v", name, kernel, refusal)
			}
		}
	}
}

func TestAppArmor(t *testing.T) {
	profile := func(kind v1.AppArmorProfileType, name *string) *v1.AppArmorProfile {
		return &v1.AppArmorProfile{Type: kind, LocalhostProfile: name}
	}
	ofPod := func(kind v1.AppArmorProfileType) func(*v1.Pod) {
		return func(p *v1.Pod) { p.Spec.SecurityContext = &v1.PodSecurityContext{AppArmorProfile: profile(kind, nil)} }
	}
	ofContainer := func(kind v1.AppArmorProfileType, name *string) func(*v1.Pod) {
		return func(p *v1.Pod) {
			p.Spec.Containers = []v1.Container{{Name: "a"}, {Name: "b", SecurityContext: &v1.SecurityContext{AppArmorProfile: profile(kind, name)}}}
		}
	}
	annotated := func(value string) func(*v1.Pod) {
		return func(p *v1.Pod) {
			p.Annotations = map[string]string{"container.apparmor.security.beta.kubernetes.io/a": value}
		}
	}
	const without = "AppArmor: Cannot enforce AppArmor: AppArmor is not enabled on the host"
	for name, tc := range map[string]struct {
		pod     *v1.Pod
		without string
		with    string
	}{
		"none":                           {pod: pod()},
		"unconfined":                     {pod: pod(ofPod(v1.AppArmorProfileTypeUnconfined))},
		"an unconfined container":        {pod: pod(ofContainer(v1.AppArmorProfileTypeUnconfined, nil))},
		"the runtime's of a pod":         {pod: pod(ofPod(v1.AppArmorProfileTypeRuntimeDefault)), without: without},
		"the runtime's of a container":   {pod: pod(ofContainer(v1.AppArmorProfileTypeRuntimeDefault, nil)), without: without},
		"one of the node's":              {pod: pod(ofContainer(v1.AppArmorProfileTypeLocalhost, ptr.To("web"))), without: without},
		"one of the node's with no name": {pod: pod(ofContainer(v1.AppArmorProfileTypeLocalhost, ptr.To(" "))), without: without, with: "invalid empty AppArmor profile name"},
		"by an annotation":               {pod: pod(annotated("runtime/default")), without: without},
		"unconfined by an annotation":    {pod: pod(annotated("unconfined"))},
		"of an init container": {pod: pod(func(p *v1.Pod) {
			p.Spec.InitContainers = []v1.Container{{Name: "i", SecurityContext: &v1.SecurityContext{AppArmorProfile: profile(v1.AppArmorProfileTypeRuntimeDefault, nil)}}}
		}), without: without},
	} {
		for has, want := range map[bool]string{false: tc.without, true: tc.with} {
			t.Run(fmt.Sprintf("%s, %v", name, has), func(t *testing.T) {
				got := ""
				if refusal := admission.Check(admission.Request{
					Pod: tc.pod, Machine: admission.Machine{AppArmor: has},
				}); refusal != nil {
					got = refusal.Reason + ": " + refusal.Message
				}
				if (got == "") != (want == "") || !strings.Contains(got, want) {
					t.Errorf("refused with %q, want %q", got, want)
				}
			})
		}
	}
}
