package staticpod

import (
	"maps"
	"slices"

	"github.com/quartet-node/quartet/internal/podset"
)

// dropOwnAnnotations removes the annotations reserved for the agent from a pod in a manifest, and returns their keys,
// sorted. It does so before the UID is computed: a manifest that was saved from a running pod, and has them, means the
// same pod as one without. It changes the object, but nothing that the object shares with others.
func dropOwnAnnotations(object map[string]any) []string {
	metadata, _ := object["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	var forged []string
	for key := range annotations {
		if podset.IsOwnAnnotation(key) {
			forged = append(forged, key)
		}
	}
	if len(forged) == 0 {
		return nil
	}
	slices.Sort(forged)
	metadata, annotations = maps.Clone(metadata), maps.Clone(annotations)
	for _, key := range forged {
		delete(annotations, key)
	}
	object["metadata"], metadata["annotations"] = metadata, annotations
	if len(annotations) == 0 {
		delete(metadata, "annotations")
	}
	return forged
}
