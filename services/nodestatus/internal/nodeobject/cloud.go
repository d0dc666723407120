package nodeobject

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/nodeconfig"
)

const (
	// TaintUninitialized is what a cloud provider removes when it has initialised the Node. Until then few pods are scheduled there.
	TaintUninitialized = "node.cloudprovider.kubernetes.io/uninitialized"
	// AnnotationProvidedIPs tells a cloud provider which addresses the node was started with.
	AnnotationProvidedIPs = "alpha.kubernetes.io/provided-node-ip"
)

// taintsOf are the taints that a Node is registered with.
func taintsOf(cfg nodeconfig.Config) []v1.Taint {
	taints := slices.Clone(cfg.Kubelet.RegisterWithTaints)
	if cfg.ExternalCloud {
		taints = append(taints, v1.Taint{Key: TaintUninitialized, Value: "true", Effect: v1.TaintEffectNoSchedule})
	}
	return taints
}

// providedIPs are the annotations with the addresses for a cloud provider; nil when there is none, or none was given.
func providedIPs(s Settings) map[string]string {
	if !s.ExternalCloud || len(s.IPs) == 0 {
		return nil
	}
	var ips []string
	for _, ip := range s.IPs {
		ips = append(ips, ip.String())
	}
	return map[string]string{AnnotationProvidedIPs: strings.Join(ips, ",")}
}

// TakeAddresses replaces the addresses of a status by those that a cloud provider has given the Node in the API server, if it has.
func TakeAddresses(to *v1.NodeStatus, there v1.NodeStatus) {
	if len(there.Addresses) > 0 {
		to.Addresses = slices.Clone(there.Addresses)
	}
}
