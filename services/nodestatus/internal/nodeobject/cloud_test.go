package nodeobject

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

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
	if got, ok := node.Annotations["alpha.kubernetes.io/provided-node-ip"]; ok {
		t.Errorf("the annotation with addresses is %q, want none", got)
	}
}

// TestTheNodeSaysWhoAttachesItsVolumes: without the annotation no controller attaches a volume to the node.
func TestTheNodeSaysWhoAttachesItsVolumes(t *testing.T) {
	const annotation = "volumes.kubernetes.io/controller-managed-attach-detach"
	in := input(t)
	for configured, want := range map[*bool]string{nil: "true", ptr.To(true): "true", ptr.To(false): ""} {
		cfg, err := nodeconfig.Parse(nodeconfig.NodeStatus, []string{"--hostname-override=n"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Kubelet.EnableControllerAttachDetach = configured
		if in.Settings, err = SettingsOf(cfg, "v1.37.1"); err != nil {
			t.Fatal(err)
		}
		if got := Build(in).Node.Annotations[annotation]; got != want {
			t.Errorf("with enableControllerAttachDetach %v the annotation is %q, want %q", ptr.Deref(configured, true), got, want)
		}
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
