package nodeobject

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/nodeconfig"
)

const (
	// TaintUninitialized is the taint that a cloud provider removes when it has initialized the Node. Until then few pods
	// are scheduled there.
	TaintUninitialized = "node.cloudprovider.kubernetes.io/uninitialized"
	// AnnotationControllerAttaches is "true" on a Node whose volumes a controller of the cluster attaches and detaches.
	AnnotationControllerAttaches = "volumes.kubernetes.io/controller-managed-attach-detach"
	// AnnotationProvidedIPs contains the addresses of --node-ip for a cloud provider.
	AnnotationProvidedIPs = "alpha.kubernetes.io/provided-node-ip"
)

// taintsOf returns the initial taints of a Node.
func taintsOf(cfg nodeconfig.Config) []v1.Taint {
	taints := slices.Clone(cfg.Kubelet.RegisterWithTaints)
	if cfg.ExternalCloud {
		taints = append(taints, v1.Taint{Key: TaintUninitialized, Value: "true", Effect: v1.TaintEffectNoSchedule})
	}
	return taints
}

// annotations returns the annotations of the Node: that a controller attaches its volumes, and the addresses for a
// cloud provider, if there are both.
func annotations(s Settings) map[string]string {
	all := map[string]string{}
	if s.ControllerAttaches {
		all[AnnotationControllerAttaches] = "true"
	}
	if s.ExternalCloud && len(s.IPs) > 0 {
		var ips []string
		for _, ip := range s.IPs {
			ips = append(ips, ip.String())
		}
		all[AnnotationProvidedIPs] = strings.Join(ips, ",")
	}
	return all
}

// TakeAddresses replaces the addresses of a status by those that a cloud provider has set on the Node in the API
// server, if it has.
func TakeAddresses(to *v1.NodeStatus, stored v1.NodeStatus) {
	if len(stored.Addresses) > 0 {
		to.Addresses = slices.Clone(stored.Addresses)
	}
}
