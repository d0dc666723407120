// Package nodeobject computes the Node. Its inputs are the facts about the machine and the peers, the time and the
// previous Node; its output is the next Node. It has no clock, disk or network.
//
// The names of conditions and reasons are the kubelet's, so that they match existing alerts.
package nodeobject

import (
	"fmt"
	"maps"
	"net"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/nodefeatures"
	"github.com/quartet-node/quartet/internal/nodeip"
	"github.com/quartet-node/quartet/services/nodestatus/internal/eviction"
	"github.com/quartet-node/quartet/services/nodestatus/internal/facts"
)

const (
	labelOSBefore   = "beta.kubernetes.io/os"
	labelArchBefore = "beta.kubernetes.io/arch"
)

// Settings holds the configuration of the Node. It does not change while the process runs.
type Settings struct {
	// Name is the name of the node.
	Name string
	// IPs are the addresses to report, at most two; empty for the address that is found.
	IPs []net.IP
	// ChoosesIP is true if the operator named addresses or a family. A Node of a cloud provider has an address then.
	ChoosesIP bool
	// ExternalCloud is true if an external cloud provider initializes the Node and sets its addresses.
	ExternalCloud bool
	// ControllerAttaches is true if a controller of the cluster attaches the volumes of the node.
	ControllerAttaches bool
	// Labels are the additional labels of the Node.
	Labels map[string]string
	// Taints are the taints of the spec.
	Taints []v1.Taint
	// ProviderID and PodCIDR are fields of the spec; each may be empty.
	ProviderID, PodCIDR string
	// MaxPods is the capacity for pods, and PodsPerCore its limit for each processor; 0 for no limit.
	MaxPods, PodsPerCore int64
	// MaxImages is the number of images to list; -1 for all.
	MaxImages int32
	// Port is the port of the API for the API server; 0 if it is not served.
	Port int32
	// Reserved are the reserved resources.
	Reserved v1.ResourceList
	// Thresholds are the eviction thresholds.
	Thresholds []eviction.Threshold
	// PressureTransition is how long a pressure is reported after it was last observed, so that a condition does not flap.
	PressureTransition time.Duration
	// KubernetesVersion is the reported version of Kubernetes, for example "v1.37.1".
	KubernetesVersion string
	// HugePageAware subtracts huge pages from the available memory, because no working set has them.
	HugePageAware bool
	// Declared are the features that the Node declares, by name.
	Declared []string
}

// SettingsOf returns the settings of a validated configuration.
func SettingsOf(cfg nodeconfig.Config, kubernetesVersion string) (Settings, error) {
	k := cfg.Kubelet
	s := Settings{
		Name:               cfg.NodeName,
		IPs:                nodeip.Given(cfg.NodeIP),
		ChoosesIP:          cfg.NodeIP != "",
		ExternalCloud:      cfg.ExternalCloud,
		ControllerAttaches: ptr.Deref(k.EnableControllerAttachDetach, true),
		Labels:             cfg.NodeLabels,
		Taints:             taintsOf(cfg),
		ProviderID:         k.ProviderID,
		PodCIDR:            k.PodCIDR,
		MaxPods:            int64(k.MaxPods),
		PodsPerCore:        int64(k.PodsPerCore),
		MaxImages:          *k.NodeStatusMaxImages,
		Reserved:           v1.ResourceList{},
		PressureTransition: k.EvictionPressureTransitionPeriod.Duration,
		KubernetesVersion:  kubernetesVersion,
		HugePageAware:      nodeconfig.SubtractsHugePages(&k),
	}
	features, err := nodefeatures.Of(&k, kubernetesVersion)
	if err != nil {
		return Settings{}, err
	}
	s.Declared = features.Declared()
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
	s.Thresholds, err = eviction.ThresholdsOf(&k)
	return s, err
}

// Input holds all inputs to the Node.
type Input struct {
	Settings Settings
	Machine  facts.Machine
	Readings facts.Readings
	// PLEG and SyncLoop are the states of the peers.
	PLEG, SyncLoop Peer
	// Images are the images on the node; nil while syncloop has not reported them.
	Images []Image
	// Devices are the amounts of the resources of device plugins; nil while they are unknown, and then the previous ones
	// stay.
	Devices map[string]Amounts
	// ShuttingDown is true while the machine is shutting down and the pods are terminated first.
	ShuttingDown bool
	// Previous is the last result of Build, possibly of an earlier process; zero if there is none.
	Previous State
	// StartedAt is the time at which this process started to poll its peers.
	StartedAt time.Time
	// Now is the time of the heartbeat.
	Now time.Time
}

// State is the Node and the inputs to the next one.
type State struct {
	// Node is the Node; nil before the first one.
	Node *v1.Node
	// Eviction is the state of the eviction thresholds.
	Eviction eviction.State
	// ShuttingDown is the value of the Input.
	ShuttingDown bool
}

// Build computes the Node. It does not change its input.
func Build(in Input) State {
	capacity := capacityOf(in.Settings, in.Machine, in.Readings)
	read := readings(in)
	thresholds := eviction.WithContainerFS(in.Settings.Thresholds, read)
	state := State{
		Eviction:     eviction.Step(thresholds, in.Previous.Eviction, read, in.Now),
		ShuttingDown: in.ShuttingDown,
	}
	node := &v1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{
			Name:              in.Settings.Name,
			Labels:            labels(in),
			CreationTimestamp: metav1.NewTime(in.Now).Rfc3339Copy(),
		},
		Spec: v1.NodeSpec{ProviderID: in.Settings.ProviderID, Taints: in.Settings.Taints},
		Status: v1.NodeStatus{
			Capacity: capacity, Allocatable: allocatable(in.Settings, capacity),
			Addresses: addresses(in), NodeInfo: nodeInfo(in), RuntimeHandlers: handlers(in),
			Features: features(in), DeclaredFeatures: in.Settings.Declared, Images: images(in),
			DaemonEndpoints: v1.NodeDaemonEndpoints{KubeletEndpoint: v1.DaemonEndpoint{Port: in.Settings.Port}},
		},
	}
	addDevices(in, &node.Status)
	if in.Settings.PodCIDR != "" {
		node.Spec.PodCIDR, node.Spec.PodCIDRs = in.Settings.PodCIDR, []string{in.Settings.PodCIDR}
	}
	if in.Previous.Node != nil {
		node.CreationTimestamp = in.Previous.Node.CreationTimestamp
	}
	node.Annotations = annotations(in.Settings)
	node.Status.Conditions = conditions(in, state.Eviction)
	state.Node = node
	return state
}

func labels(in Input) map[string]string {
	all := map[string]string{
		v1.LabelHostname:   in.Settings.Name,
		v1.LabelOSStable:   in.Machine.OperatingSystem,
		v1.LabelArchStable: in.Machine.Architecture,
		// The former names of these labels, which the kubelet still sets.
		labelOSBefore:   in.Machine.OperatingSystem,
		labelArchBefore: in.Machine.Architecture,
	}
	maps.Copy(all, in.Settings.Labels)
	return all
}

func addresses(in Input) []v1.NodeAddress {
	var all []v1.NodeAddress
	ips := in.Settings.IPs
	if in.Settings.ExternalCloud && !in.Settings.ChoosesIP {
		return []v1.NodeAddress{{Type: v1.NodeHostName, Address: in.Settings.Name}}
	}
	if len(ips) == 0 && in.Readings.IP != nil {
		ips = []net.IP{in.Readings.IP}
	}
	for _, ip := range ips {
		all = append(all, v1.NodeAddress{Type: v1.NodeInternalIP, Address: ip.String()})
	}
	if len(ips) == 0 && in.Previous.Node != nil {
		// A machine without a route at present keeps its addresses.
		for _, address := range in.Previous.Node.Status.Addresses {
			if address.Type == v1.NodeInternalIP {
				all = append(all, address)
			}
		}
	}
	return append(all, v1.NodeAddress{Type: v1.NodeHostName, Address: in.Settings.Name})
}

// plainVersion returns the version of a runtime as the kubelet formats it: without a leading v. Other texts are
// unchanged.
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
		MachineID:              m.MachineID,
		SystemUUID:             m.SystemUUID,
		BootID:                 m.BootID,
		KernelVersion:          m.KernelVersion,
		OSImage:                m.OSImage,
		OperatingSystem:        m.OperatingSystem,
		Architecture:           m.Architecture,
		KubeletVersion:         in.Settings.KubernetesVersion,
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
