package nodeobject

import (
	"cmp"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// Runtime is what pleg says of the container runtime.
type Runtime struct {
	// Name and Version are the runtime's own.
	Name, Version string
	// Ready is true when it can run pods.
	Ready bool
	// Handlers are its handlers, the default one with the name "".
	Handlers []Handler
	// SupplementalGroupsPolicy says whether it takes pods whose groups are only those that they name; nil when it does not say.
	SupplementalGroupsPolicy *bool
}

// Handler is a way in which the runtime can run pods, with what it can.
type Handler struct {
	Name                                    string
	RecursiveReadOnlyMounts, UserNamespaces bool
}

// handlers lists the runtime's handlers, those of last time while pleg does not say.
func handlers(in Input) []v1.NodeRuntimeHandler {
	if in.PLEG.Runtime == nil {
		if in.Previous.Node != nil {
			return in.Previous.Node.Status.RuntimeHandlers
		}
		return nil
	}
	var all []v1.NodeRuntimeHandler
	for _, handler := range in.PLEG.Runtime.Handlers {
		all = append(all, v1.NodeRuntimeHandler{Name: handler.Name, Features: &v1.NodeRuntimeHandlerFeatures{
			RecursiveReadOnlyMounts: &handler.RecursiveReadOnlyMounts, UserNamespaces: &handler.UserNamespaces,
		}})
	}
	return all
}

// features are those of the runtime that count for the whole node, of last time while pleg does not say.
func features(in Input) *v1.NodeFeatures {
	if in.PLEG.Runtime == nil {
		if in.Previous.Node != nil {
			return in.Previous.Node.Status.Features
		}
		return nil
	}
	if policy := in.PLEG.Runtime.SupplementalGroupsPolicy; policy != nil {
		return &v1.NodeFeatures{SupplementalGroupsPolicy: policy}
	}
	return nil
}

// Image is an image on the node.
type Image struct {
	// Names are by tag and by digest.
	Names []string
	// Bytes is its size.
	Bytes int64
}

// maxImageNames is how many names an image has in the Node, as with a kubelet: those by digest come first.
const maxImageNames = 5

// images lists the largest images on the node, those of last time while syncloop does not say.
func images(in Input) []v1.ContainerImage {
	if in.Images == nil {
		if in.Previous.Node != nil {
			return in.Previous.Node.Status.Images
		}
		return nil
	}
	sorted := slices.Clone(in.Images)
	slices.SortStableFunc(sorted, func(a, b Image) int { return cmp.Compare(b.Bytes, a.Bytes) })
	if most := int(in.Settings.MaxImages); most >= 0 {
		sorted = sorted[:min(most, len(sorted))]
	}
	var all []v1.ContainerImage
	for _, image := range sorted {
		names := slices.Clone(image.Names)
		slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(rank(a), rank(b)) })
		all = append(all, v1.ContainerImage{Names: names[:min(maxImageNames, len(names))], SizeBytes: image.Bytes})
	}
	return all
}

func rank(name string) int {
	if strings.Contains(name, "@") {
		return 0
	}
	return 1
}
