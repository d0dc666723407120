package admission

import "strings"

// features refuses a pod that requires a feature of Kubernetes that the node does not have.
func features(r Request) *Refusal {
	if r.Features == nil {
		return nil
	}
	missing, err := r.Features.Missing(r.Pod)
	switch {
	case err != nil:
		return &Refusal{Reason: ReasonFeature, Message: "Failed to match pod's feature requirements against the node: " + err.Error()}
	case len(missing) > 0:
		return &Refusal{Reason: ReasonFeature, Message: MissingFeatures(missing)}
	}
	return nil
}

// MissingFeatures returns the kubelet's message for features that the node does not have.
func MissingFeatures(names []string) string {
	return "Pod requires node features that are not available: " + strings.Join(names, ", ")
}
