package registration

import (
	"context"
	"encoding/json"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/quartet-node/quartet/internal/telemetry"
)

// ownLabels are those that say what the machine is or, where --node-labels has them, where it stands: a kubelet's own. They are
// put right on a Node that is registered; every other label of it is left as it is.
var ownLabels = []string{
	v1.LabelHostname, v1.LabelOSStable, v1.LabelArchStable, "beta.kubernetes.io/os", "beta.kubernetes.io/arch",
	v1.LabelTopologyZone, v1.LabelTopologyRegion, v1.LabelFailureDomainBetaZone, v1.LabelFailureDomainBetaRegion,
	v1.LabelInstanceTypeStable, v1.LabelInstanceType,
}

// toRegister makes what is sent to an API server that has no Node. Its own times and addresses of pods are the API
// server's to give: podCIDR is for nodes without one.
func toRegister(computed *v1.Node) *v1.Node {
	computed = computed.DeepCopy()
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: computed.Name, Labels: computed.Labels},
		Spec:       v1.NodeSpec{ProviderID: computed.Spec.ProviderID, Taints: computed.Spec.Taints},
		Status:     computed.Status,
	}
}

// mendLabels puts the own labels of a Node right that was there already, and returns the Node as it is then. When that
// fails the Node is there nevertheless: it is logged, and tried again with the next look.
func (r *Registrar) mendLabels(ctx context.Context, node *v1.Node) *v1.Node {
	wrong := make(map[string]string)
	computed := r.latest().Labels
	for _, label := range ownLabels {
		should, ours := computed[label]
		if is, there := node.Labels[label]; ours && (!there || is != should) {
			wrong[label] = should
		}
	}
	if len(wrong) == 0 {
		return node
	}
	mended, err := r.patchLabels(ctx, wrong)
	if err != nil {
		r.cfg.Logger.Warn("labels of the Node in the API server are wrong and cannot be mended", "labels", wrong, telemetry.KeyError, err)
		return node
	}
	r.cfg.Logger.Info("mended labels of the Node in the API server", "labels", wrong)
	return mended
}

func (r *Registrar) patchLabels(ctx context.Context, labels map[string]string) (*v1.Node, error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	if err != nil {
		return nil, err
	}
	return r.nodes.merge(ctx, r.cfg.Name, patch)
}
