// Package nodefeatures has the features that this node declares in its Node, and decides whether a pod requires others.
// A scheduler and an API server read the list: a feature that some nodes of a cluster lack is only used on the others.
//
// Kubernetes' own code says which features can be declared, and which pods require them. Package nodeconfig says which
// of them this node has: nodestatus declares these, and syncloop refuses pods that require others.
package nodefeatures

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-helpers/nodedeclaredfeatures"
	"k8s.io/component-helpers/nodedeclaredfeatures/features/extendwebsocketstokubelet"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/nodeconfig"
)

// Features are the features of a node. They do not change while a process runs.
type Features struct {
	framework *nodedeclaredfeatures.Framework
	names     []string
	set       nodedeclaredfeatures.FeatureSet
	version   *version.Version
}

// Of returns the features of a node with a configuration and a version of Kubernetes, such as "v1.37.1". It fails if
// that is no version.
func Of(cfg *kubeletconfigv1beta1.KubeletConfiguration, kubernetes string) (*Features, error) {
	parsed, err := version.Parse(kubernetes)
	if err != nil {
		return nil, fmt.Errorf("parse the version of Kubernetes: %w", err)
	}
	framework := nodedeclaredfeatures.DefaultFramework
	// The runtime's features do not matter: Quartet has none of the features that depend on them.
	names := framework.DiscoverNodeFeatures(&nodedeclaredfeatures.NodeConfiguration{
		FeatureGates: gates{cfg}, Version: parsed,
	})
	return &Features{framework: framework, names: names, set: framework.MustMapSorted(names), version: parsed}, nil
}

// gates implements nodedeclaredfeatures.FeatureGate with the features that Quartet has.
type gates struct {
	cfg *kubeletconfigv1beta1.KubeletConfiguration
}

// Enabled implements nodedeclaredfeatures.FeatureGate. A node that does not serve the HTTP API serves no streams over
// WebSocket.
func (g gates) Enabled(name string) bool {
	if name == extendwebsocketstokubelet.ExtendWebSocketsToKubeletFeatureGate &&
		(!ptr.Deref(g.cfg.EnableServer, true) || g.cfg.Port == 0) {
		return false
	}
	return nodeconfig.HasFeature(g.cfg, name)
}

// Declared returns the names of the features, sorted. The caller must not change them.
func (f *Features) Declared() []string { return f.names }

// Missing returns the names of the features that a new pod requires and the node does not have. It fails if it cannot
// know them.
func (f *Features) Missing(pod *v1.Pod) ([]string, error) {
	required, err := f.framework.InferForPodScheduling(infoOf(pod), f.version)
	if err != nil {
		return nil, fmt.Errorf("infer the features that the pod requires: %w", err)
	}
	return f.lacking(required)
}

// MissingForUpdate returns the names of the features that a change of a pod requires and the node does not have. It
// fails if it cannot know them.
func (f *Features) MissingForUpdate(before, after *v1.Pod) ([]string, error) {
	if len(before.Spec.InitContainers) != len(after.Spec.InitContainers) {
		return nil, nil // no API server allows that change; Kubernetes' code compares them one by one
	}
	required, err := f.framework.InferForPodUpdate(infoOf(before), infoOf(after), f.version)
	if err != nil {
		return nil, fmt.Errorf("infer the features that the change of the pod requires: %w", err)
	}
	return f.lacking(required)
}

func infoOf(pod *v1.Pod) *nodedeclaredfeatures.PodInfo {
	return &nodedeclaredfeatures.PodInfo{Spec: &pod.Spec, Status: &pod.Status}
}

func (f *Features) lacking(required nodedeclaredfeatures.FeatureSet) ([]string, error) {
	result, err := f.framework.MatchNodeFeatureSet(required, f.set)
	if err != nil {
		return nil, fmt.Errorf("compare the features that the pod requires with the node's: %w", err)
	}
	return result.UnsatisfiedRequirements, nil
}
