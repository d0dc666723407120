package nodeobject

import (
	"fmt"
	"net"
	"slices"
	"testing"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// TestTheLargestImagesAreListed: the names by digest come first, and the last list stays while syncloop does not
// answer.
func TestTheLargestImagesAreListed(t *testing.T) {
	in := input(t)
	in.Settings.MaxImages = 2
	in.Images = []Image{
		{
			Names: []string{"a:1"},
			Bytes: 1,
		},
		{Names: []string{"c:1", "c:2", "c:3", "c:4", "c:5", "c@sha256:1"}, Bytes: 3},
		{Names: []string{"b:1"}, Bytes: 2},
	}
	state := Build(in)
	images := state.Node.Status.Images
	if len(images) != 2 || images[0].SizeBytes != 3 || images[1].SizeBytes != 2 ||
		!slices.Equal(images[0].Names, []string{"c@sha256:1", "c:1", "c:2", "c:3", "c:4"}) {
		t.Errorf("the images are %v, want 2 entries, images[0].SizeBytes 3, images[1].SizeBytes 2 and images[0].Names %v",
			images, []string{"c@sha256:1", "c:1", "c:2", "c:3", "c:4"})
	}
	in.Previous, in.Images = state, nil
	if got := Build(in).Node.Status.Images; len(got) != 2 {
		t.Errorf("while syncloop is away they are %v, want 2 entries", got)
	}
	in.Images = []Image{}
	if got := Build(in).Node.Status.Images; len(got) != 0 {
		t.Errorf("when there are none they are %v", got)
	}
	in.Settings.MaxImages, in.Images = -1, make([]Image, 100)
	if got := Build(in).Node.Status.Images; len(got) != 100 {
		t.Errorf("without a limit there are %d of 100", len(got))
	}
}

// TestTheFeaturesOfTheRuntimeAreReported checks that it stays while pleg does not answer.
func TestTheFeaturesOfTheRuntimeAreReported(t *testing.T) {
	in := input(t)
	in.PLEG.Runtime.SupplementalGroupsPolicy = ptr.To(true)
	state := Build(in)
	look := func(node *v1.Node) string {
		text := ""
		for _, h := range node.Status.RuntimeHandlers {
			text += fmt.Sprintf("%q ro=%t users=%t ", h.Name, *h.Features.RecursiveReadOnlyMounts, *h.Features.UserNamespaces)
		}
		return text + fmt.Sprintf("groups=%t", *node.Status.Features.SupplementalGroupsPolicy)
	}
	const want = `"" ro=false users=false "runc" ro=false users=true groups=true`
	if got := look(state.Node); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	in.Previous, in.PLEG = state, Peer{State: PeerAway, Reasons: []string{"pleg is away"}}
	if got := look(Build(in).Node); got != want {
		t.Errorf("while pleg is away got %s, want %s", got, want)
	}
}

// TestTheMachineAndItsPlaceAreReported: swap, the API's port, two addresses, and fewer pods on few processors.
func TestTheMachineAndItsPlaceAreReported(t *testing.T) {
	in := input(t)
	in.Machine.SwapBytes, in.Settings.Port, in.Settings.PodsPerCore = gibi, 10250, 10
	in.Settings.IPs = []net.IP{net.ParseIP("198.51.100.7"), net.ParseIP("2001:db8::7")}
	status := Build(in).Node.Status
	if *status.NodeInfo.Swap.Capacity != gibi || status.DaemonEndpoints.KubeletEndpoint.Port != 10250 ||
		status.Capacity.Pods().Value() != 40 {
		t.Errorf("the status is %+v, want *status.NodeInfo.Swap.Capacity %v, DaemonEndpoints.KubeletEndpoint.Port 10250 and Capacity.Pods.Value 40",
			status, gibi)
	}
	want := []v1.NodeAddress{
		{
			Type:    v1.NodeInternalIP,
			Address: "198.51.100.7",
		},
		{Type: v1.NodeInternalIP, Address: "2001:db8::7"},
		{Type: v1.NodeHostName, Address: "node-1"},
	}
	if !slices.Equal(status.Addresses, want) {
		t.Errorf("the addresses are %v, want %v", status.Addresses, want)
	}
	// The default route is lost, but the address stays.
	in = input(t)
	in.Previous = Build(in)
	in.Readings.IP = nil
	if got := Build(in).Node.Status.Addresses; len(got) != 2 || got[0].Address != "10.0.0.5" {
		t.Errorf("without a way out the addresses are %v", got)
	}
}

// TestFeaturesAreDeclared checks that the Node declares what the configuration has, see package nodefeatures.
func TestFeaturesAreDeclared(t *testing.T) {
	for gate, want := range map[bool][]string{
		true: {
			"ExtendWebSocketsToKubelet", "InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers",
			"RestartAllContainersOnContainerExits",
		},
		false: {
			"ExtendWebSocketsToKubelet", "InPlacePodVerticalScalingInitContainers", "RestartAllContainersOnContainerExits",
		},
	} {
		in := input(t)
		cfg, err := nodeconfig.Parse(nodeconfig.NodeStatus, []string{"--hostname-override=n"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Kubelet.FeatureGates = map[string]bool{"InPlacePodLevelResourcesVerticalScaling": gate}
		if in.Settings, err = SettingsOf(cfg, "v1.37.1"); err != nil {
			t.Fatal(err)
		}
		if got := Build(in).Node.Status.DeclaredFeatures; !slices.Equal(got, want) {
			t.Errorf("with the gate %t the node declares %q, want %q", gate, got, want)
		}
	}
}

// TestTheVersionOfTheRuntimeIsWrittenAsAKubeletWritesIt, also that of a runtime that reports it with a leading v, as
// containerd does.
func TestTheVersionOfTheRuntimeIsWrittenAsAKubeletWritesIt(t *testing.T) {
	for version, want := range map[string]string{
		"v2.4.2": "2.4.2", "2.4.2": "2.4.2", "v2.4.2-rc.1+build": "2.4.2-rc.1+build", "1.30": "1.30", "v2.0.0.m": "2.0.0", "unknown": "unknown",
	} {
		in := input(t)
		in.PLEG.Runtime.Version = version
		if got := Build(in).Node.Status.NodeInfo.ContainerRuntimeVersion; got != in.PLEG.Runtime.Name+"://"+want {
			t.Errorf("%s: got %s, want %s", version, got, in.PLEG.Runtime.Name+"://"+want)
		}
	}
}
