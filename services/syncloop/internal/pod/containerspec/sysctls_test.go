package containerspec_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/containerspec"
)

// TestSysctlsOfTheNode checks that the node's sysctls are set in pods with the namespace of the sysctl, unless the pod
// sets them itself.
func TestSysctlsOfTheNode(t *testing.T) {
	node := containerspec.Node{Sysctls: map[string]string{
		"net.core.somaxconn": "1024", "net/ipv4/ip_local_port_range": "1024 65535", "kernel.shmmax": "1", "fs.mqueue.msg_max": "2", "user.max_user_namespaces": "3",
	}}
	net := map[string]string{"net.core.somaxconn": "1024", "net.ipv4.ip_local_port_range": "1024 65535"}
	ipc := map[string]string{"kernel.shmmax": "1", "fs.mqueue.msg_max": "2"}
	user := map[string]string{"user.max_user_namespaces": "3"}
	own := map[string]string{"net.core.somaxconn": "4096"}
	for _, test := range []struct {
		name string
		spec v1.PodSpec
		want []map[string]string
	}{
		{"pod", v1.PodSpec{}, []map[string]string{net, ipc}},
		{"of the host's network", v1.PodSpec{HostNetwork: true}, []map[string]string{ipc}},
		{"of the host's IPC", v1.PodSpec{HostIPC: true}, []map[string]string{net}},
		{"of users of its own", v1.PodSpec{HostUsers: new(false)}, []map[string]string{net, ipc, user}},
		{"of the host's users", v1.PodSpec{HostUsers: new(true)}, []map[string]string{net, ipc}},
		{"with its own", v1.PodSpec{SecurityContext: &v1.PodSecurityContext{Sysctls: []v1.Sysctl{{Name: "net/core/somaxconn", Value: "4096"}}}},
			[]map[string]string{net, ipc, own}},
	} {
		t.Run(test.name, func(t *testing.T) {
			pod := testPod(v1.Container{Name: "a"})
			containers := pod.Spec.Containers
			pod.Spec = test.spec
			pod.Spec.Containers = containers
			config, err := containerspec.Sandbox(pod, node, containerspec.SandboxInputs{})
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]string{}
			for _, some := range test.want {
				for name, value := range some {
					want[name] = value
				}
			}
			if diff := cmp.Diff(want, config.GetLinux().GetSysctls()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
