package staticpod

import (
	"maps"
	"slices"

	"github.com/quartet-node/quartet/internal/podset"
)

// dropOwnAnnotations takes the annotations that only the agent sets out of a pod as its manifest gives it, and returns
// their keys, sorted. They are out before anything is made of the pod, its UID too: a manifest that was saved from a running
// pod, and so has them, means the same pod as one without. The object is changed, and nothing that it shares with others.
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
