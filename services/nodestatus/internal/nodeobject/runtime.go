package nodeobject

import (
	"cmp"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// Runtime is the state of the container runtime from pleg.
type Runtime struct {
	// Name and Version are the runtime's own.
	Name, Version string
	// Ready is true if it can run pods.
	Ready bool
	// Handlers are its handlers; the default one has the name "".
	Handlers []Handler
	// SupplementalGroupsPolicy reports whether it supports the field of that name; nil if unknown.
	SupplementalGroupsPolicy *bool
}

// Handler is a runtime handler and its features.
type Handler struct {
	Name                                    string
	RecursiveReadOnlyMounts, UserNamespaces bool
}

// handlers returns the runtime's handlers; the previous ones while they are unknown.
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

// features returns the runtime's features of the whole node; the previous ones while they are unknown.
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
	// Names are the names by tag and by digest.
	Names []string
	// Bytes is the size.
	Bytes int64
}

// maxImageNames is the maximum number of names of an image in the Node, as in the kubelet: digests come first.
const maxImageNames = 5

// images returns the largest images on the node; the previous ones while they are unknown.
func images(in Input) []v1.ContainerImage {
	if in.Images == nil {
		if in.Previous.Node != nil {
			return in.Previous.Node.Status.Images
		}
		return nil
	}
	sorted := slices.Clone(in.Images)
	slices.SortStableFunc(sorted, func(a, b Image) int { return cmp.Compare(b.Bytes, a.Bytes) })
	if maxImages := int(in.Settings.MaxImages); maxImages >= 0 {
		sorted = sorted[:min(maxImages, len(sorted))]
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
