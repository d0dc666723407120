package nodeobject

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/nodeconfig"
)

// cloudSettings returns the settings of a node that an external cloud provider initializes.
func cloudSettings(t *testing.T, args ...string) Settings {
	t.Helper()
	cfg, err := nodeconfig.Parse(
		nodeconfig.NodeStatus,
		append(args, "--hostname-override=n", "--cloud-provider=external"),
		nil,
	)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Kubelet.RegisterWithTaints = []v1.Taint{{Key: "only", Effect: v1.TaintEffectNoExecute}}
	settings, err := SettingsOf(cfg, "v1.37.1")
	if err != nil {
		t.Fatal(err)
	}
	return settings
}

func TestACloudProviderInitialisesTheNode(t *testing.T) {
	in := input(t)
	in.Settings = cloudSettings(t)
	node := Build(in).Node
	want := []v1.Taint{
		{Key: "only", Effect: v1.TaintEffectNoExecute},
		{Key: "node.cloudprovider.kubernetes.io/uninitialized", Value: "true", Effect: v1.TaintEffectNoSchedule},
	}
	if diff := cmp.Diff(want, node.Spec.Taints); diff != "" {
		t.Errorf("taints (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]v1.NodeAddress{{Type: v1.NodeHostName, Address: "n"}}, node.Status.Addresses); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
	if len(node.Annotations) > 0 {
		t.Errorf("annotations = %v, want none", node.Annotations)
	}
}

func TestACloudProviderGetsTheAddressesOfTheFlag(t *testing.T) {
	in := input(t)
	in.Settings = cloudSettings(t, "--node-ip=192.0.2.1,2001:db8::1")
	node := Build(in).Node
	if got := node.Annotations["alpha.kubernetes.io/provided-node-ip"]; got != "192.0.2.1,2001:db8::1" {
		t.Errorf("the annotation is %q, want %q", got, "192.0.2.1,2001:db8::1")
	}
	want := []v1.NodeAddress{
		{
			Type:    v1.NodeInternalIP,
			Address: "192.0.2.1",
		},
		{Type: v1.NodeInternalIP, Address: "2001:db8::1"},
		{Type: v1.NodeHostName, Address: "n"},
	}
	if diff := cmp.Diff(want, node.Status.Addresses); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
}
