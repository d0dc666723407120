// Package nodeobject makes the Node: it decides, and nothing else. What is known of the machine and of the peers comes
// in, with the time and the Node of last time; the Node comes out. There is no clock, disk or network in it.
//
// The names of conditions and reasons are the kubelet's, so that an operator and their alerts find what they know.
package nodeobject

import (
	"fmt"
	"maps"
	"net"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/services/nodestatus/internal/eviction"
	"github.com/quartet-node/quartet/services/nodestatus/internal/facts"
)

const (
	labelOSBefore   = "beta.kubernetes.io/os"
	labelArchBefore = "beta.kubernetes.io/arch"
)

// Settings is what the configuration says about the Node. It does not change while the process runs.
type Settings struct {
	// Name is the name of the node.
	Name string
	// IPs are the addresses to report, two at most; none to report the one of the default route.
	IPs []net.IP
	// ExternalCloud says that a cloud provider outside of the node initialises the Node and gives it its addresses.
	ExternalCloud bool
	// Labels are set besides those that every node has.
	Labels map[string]string
	// Taints are put into the spec.
	Taints []v1.Taint
	// ProviderID and PodCIDR are put into the spec; each may be empty.
	ProviderID, PodCIDR string
	// MaxPods is the capacity for pods, and PodsPerCore what it is at most for each processor; 0 for any number.
	MaxPods, PodsPerCore int64
	// MaxImages is how many images are listed; -1 for all.
	MaxImages int32
	// Port is where the API for the API server is served; 0 when it is not.
	Port int32
	// Reserved is held back from pods.
	Reserved v1.ResourceList
	// Thresholds are those of evictions.
	Thresholds []eviction.Threshold
	// PressureTransition is how long pressure is reported after it was last seen, so that a condition does not flap.
	PressureTransition time.Duration
	// KubernetesVersion is the version of Kubernetes that the node behaves as, for example "v1.37.1".
	KubernetesVersion string
	// ResizesPodLevel is true for a node that changes the resources of a pod as a whole while it runs.
	ResizesPodLevel bool
}

// SettingsOf takes the settings out of a configuration, which has been validated.
func SettingsOf(cfg nodeconfig.Config, kubernetesVersion string) (Settings, error) {
	k := cfg.Kubelet
	s := Settings{
		Name: cfg.NodeName, IPs: ipsOf(cfg.NodeIP), ExternalCloud: cfg.ExternalCloud, Labels: cfg.NodeLabels,
		Taints: taintsOf(cfg), ProviderID: k.ProviderID, PodCIDR: k.PodCIDR,
		MaxPods: int64(k.MaxPods), PodsPerCore: int64(k.PodsPerCore), MaxImages: *k.NodeStatusMaxImages, Reserved: v1.ResourceList{},
		PressureTransition: k.EvictionPressureTransitionPeriod.Duration, KubernetesVersion: kubernetesVersion,
		ResizesPodLevel: nodeconfig.ResizesPodLevel(&k),
	}
	if *k.EnableServer {
		s.Port = k.Port
	}
	for _, reserved := range []map[string]string{k.SystemReserved, k.KubeReserved} {
		for name, text := range reserved {
			quantity, err := resource.ParseQuantity(text)
			if err != nil {
				return Settings{}, fmt.Errorf("reserved %s %q: %w", name, text, err)
			}
			sum := s.Reserved[v1.ResourceName(name)]
			sum.Add(quantity)
			s.Reserved[v1.ResourceName(name)] = sum
		}
	}
	var err error
	s.Thresholds, err = eviction.ThresholdsOf(&k)
	return s, err
}

// Input is everything that the Node depends on.
type Input struct {
	Settings Settings
	Machine  facts.Machine
	Readings facts.Readings
	// PLEG and SyncLoop are what is known of the peers.
	PLEG, SyncLoop Peer
	// Images are those on the node; nil when syncloop has not said.
	Images []Image
	// ShuttingDown is true when the machine is about to go down and the pods are ended before.
	ShuttingDown bool
	// Previous is what Build returned last time, or before the process was restarted; the zero value when there is none.
	Previous State
	// StartedAt is when this process began to ask its peers.
	StartedAt time.Time
	// Now is the time of the heartbeat.
	Now time.Time
}

// State is the Node and what has to be remembered to make the next.
type State struct {
	// Node is the Node; nil before the first time.
	Node *v1.Node
	// Eviction is what has run short.
	Eviction eviction.State
	// ShuttingDown is that of the Input.
	ShuttingDown bool
}

// Build makes the Node. It changes nothing that it was given.
func Build(in Input) State {
	capacity := capacityOf(in.Settings, in.Machine, in.Readings)
	state := State{Eviction: eviction.Step(in.Settings.Thresholds, in.Previous.Eviction, readings(in), in.Now), ShuttingDown: in.ShuttingDown}
	node := &v1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: in.Settings.Name, Labels: labels(in), CreationTimestamp: metav1.NewTime(in.Now).Rfc3339Copy()},
		Spec:       v1.NodeSpec{ProviderID: in.Settings.ProviderID, Taints: in.Settings.Taints},
		Status: v1.NodeStatus{
			Capacity: capacity, Allocatable: allocatable(in.Settings, capacity),
			Addresses: addresses(in), NodeInfo: nodeInfo(in), RuntimeHandlers: handlers(in),
			Features: features(in), DeclaredFeatures: declared(in), Images: images(in),
			DaemonEndpoints: v1.NodeDaemonEndpoints{KubeletEndpoint: v1.DaemonEndpoint{Port: in.Settings.Port}},
		},
	}
	if in.Settings.PodCIDR != "" {
		node.Spec.PodCIDR, node.Spec.PodCIDRs = in.Settings.PodCIDR, []string{in.Settings.PodCIDR}
	}
	if in.Previous.Node != nil {
		node.CreationTimestamp = in.Previous.Node.CreationTimestamp
	}
	node.Annotations = providedIPs(in.Settings)
	node.Status.Conditions = conditions(in, state.Eviction)
	state.Node = node
	return state
}

// ipsOf reads --node-ip, which has been validated.
func ipsOf(text string) (ips []net.IP) {
	for part := range strings.SplitSeq(text, ",") {
		if ip := net.ParseIP(part); ip != nil {
			ips = append(ips, ip)
		}
	}
	return ips
}

func labels(in Input) map[string]string {
	all := map[string]string{
		v1.LabelHostname:   in.Settings.Name,
		v1.LabelOSStable:   in.Machine.OperatingSystem,
		v1.LabelArchStable: in.Machine.Architecture,
		// The names that these had before, which a kubelet still sets.
		labelOSBefore:   in.Machine.OperatingSystem,
		labelArchBefore: in.Machine.Architecture,
	}
	maps.Copy(all, in.Settings.Labels)
	return all
}

func addresses(in Input) []v1.NodeAddress {
	var all []v1.NodeAddress
	ips := in.Settings.IPs
	if in.Settings.ExternalCloud && len(ips) == 0 {
		return []v1.NodeAddress{{Type: v1.NodeHostName, Address: in.Settings.Name}}
	}
	if len(ips) == 0 && in.Readings.IP != nil {
		ips = []net.IP{in.Readings.IP}
	}
	for _, ip := range ips {
		all = append(all, v1.NodeAddress{Type: v1.NodeInternalIP, Address: ip.String()})
	}
	if len(ips) == 0 && in.Previous.Node != nil {
		// A machine that has lost its way out for a while has not lost its address.
		for _, address := range in.Previous.Node.Status.Addresses {
			if address.Type == v1.NodeInternalIP {
				all = append(all, address)
			}
		}
	}
	return append(all, v1.NodeAddress{Type: v1.NodeHostName, Address: in.Settings.Name})
}

// plainVersion is the version of a runtime as a kubelet writes it: without a v before it. One that is no version stays as it is.
func plainVersion(text string) string {
	if parsed, err := version.ParseSemantic(text); err == nil {
		return parsed.String()
	}
	if parsed, err := version.ParseGeneric(text); err == nil {
		return parsed.String()
	}
	return text
}

func nodeInfo(in Input) v1.NodeSystemInfo {
	m := in.Machine
	info := v1.NodeSystemInfo{
		MachineID: m.MachineID, SystemUUID: m.SystemUUID, BootID: m.BootID, KernelVersion: m.KernelVersion, OSImage: m.OSImage,
		OperatingSystem: m.OperatingSystem, Architecture: m.Architecture, KubeletVersion: in.Settings.KubernetesVersion,
		RunningInUserNamespace: &m.UserNamespace,
	}
	if m.SwapBytes > 0 {
		info.Swap = &v1.NodeSwapStatus{Capacity: &m.SwapBytes}
	}
	if r := in.PLEG.Runtime; r != nil && r.Name != "" {
		info.ContainerRuntimeVersion = r.Name + "://" + plainVersion(r.Version)
	} else if in.Previous.Node != nil {
		info.ContainerRuntimeVersion = in.Previous.Node.Status.NodeInfo.ContainerRuntimeVersion
	}
	return info
}
