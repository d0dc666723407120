package registration

import (
	"context"
	"encoding/json"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/quartet-node/quartet/internal/resourcename"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/nodestatus/internal/nodeobject"
)

// ownLabels are the kubelet's labels of the machine's properties and, with --node-labels, its topology. They are
// corrected on a registered Node; other labels are not changed.
var ownLabels = []string{
	v1.LabelHostname, v1.LabelOSStable, v1.LabelArchStable, "beta.kubernetes.io/os", "beta.kubernetes.io/arch",
	v1.LabelTopologyZone, v1.LabelTopologyRegion, v1.LabelFailureDomainBetaZone, v1.LabelFailureDomainBetaRegion,
	v1.LabelInstanceTypeStable, v1.LabelInstanceType,
}

// toRegister returns the Node to create, which is not ready if delayed is the reason for that. The API server sets its
// times and, unless configured, its podCIDR.
func toRegister(computed *v1.Node, delayed string) *v1.Node {
	computed = computed.DeepCopy()
	if delayed != "" {
		nodeobject.Delay(&computed.Status, delayed)
	}
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: computed.Name, Labels: computed.Labels, Annotations: computed.Annotations},
		Spec:       v1.NodeSpec{ProviderID: computed.Spec.ProviderID, Taints: computed.Spec.Taints},
		Status:     computed.Status,
	}
}

// correct corrects the own labels and annotations of an existing Node, and returns the result. A failure is
// logged and retried with the next look, because the Node exists nevertheless.
func (r *Registrar) correct(ctx context.Context, node *v1.Node) *v1.Node {
	wrong := make(map[string]any)
	computed := r.latest()
	if labels := wrongLabels(node.Labels, computed.Labels); len(labels) > 0 {
		wrong["labels"] = labels
	}
	if annotations := wrongAnnotations(node.Annotations, computed.Annotations); len(annotations) > 0 {
		wrong["annotations"] = annotations
	}
	if len(wrong) == 0 {
		return node
	}
	corrected, err := r.patch(ctx, wrong)
	if err != nil {
		r.cfg.Logger.Warn("cannot correct labels or annotations of the Node in the API server", "metadata", wrong,
			telemetry.KeyError, err)
		return node
	}
	r.cfg.Logger.Info("corrected labels or annotations of the Node in the API server", "metadata", wrong)
	return corrected
}

// wrongAnnotations returns the correct values of own annotations that are wrong; nil for one that must be removed.
func wrongAnnotations(stored, computed map[string]string) map[string]any {
	wrong := make(map[string]any)
	for _, name := range []string{nodeobject.AnnotationProvidedIPs, nodeobject.AnnotationControllerAttaches} {
		want, ours := computed[name]
		switch current, found := stored[name]; {
		case ours && (!found || current != want):
			wrong[name] = want
		case !ours && found:
			wrong[name] = nil
		}
	}
	return wrong
}

// wrongLabels returns the correct values of own labels that are wrong.
func wrongLabels(stored, computed map[string]string) map[string]string {
	wrong := make(map[string]string)
	for _, label := range ownLabels {
		want, ours := computed[label]
		if current, ok := stored[label]; ours && (!ok || current != want) {
			wrong[label] = want
		}
	}
	return wrong
}

// patch changes the metadata of the Node.
func (r *Registrar) patch(ctx context.Context, metadata map[string]any) (*v1.Node, error) {
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return nil, err
	}
	return r.nodes.merge(ctx, r.cfg.Name, patch)
}

// resetResources sets the extended resources of an existing Node to 0 if the machine was set up anew, and returns the
// result. Those that are added later stay.
func (r *Registrar) resetResources(ctx context.Context, node *v1.Node) (*v1.Node, error) {
	if r.reset || !r.cfg.Recreated {
		return node, nil
	}
	none := map[v1.ResourceName]string{}
	for name, amount := range node.Status.Capacity {
		left := node.Status.Allocatable[name]
		if resourcename.IsExtended(string(name)) && (!amount.IsZero() || !left.IsZero()) {
			none[name] = "0"
		}
	}
	if len(none) > 0 {
		patch, err := json.Marshal(map[string]any{"status": map[string]any{"capacity": none, "allocatable": none}})
		if err != nil {
			return nil, err
		}
		if node, err = r.nodes.mergeStatus(ctx, r.cfg.Name, patch); err != nil {
			return nil, err
		}
		r.cfg.Logger.Info("set the extended resources of the Node in the API server to 0, because the machine was set up anew",
			"resources", slices.Sorted(maps.Keys(none)))
	}
	r.reset = true
	return node, nil
}
