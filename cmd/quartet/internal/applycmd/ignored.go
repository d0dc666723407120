package applycmd

import (
	"fmt"
	"io"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/podset"
)

// printIgnored prints the annotations that configmux has ignored in an accepted pod: those that only the agent sets.
// This is no error, because a pod that was read from a node has them. It is silent about annotations that identify the
// pod.
func printIgnored(out io.Writer, object fmt.Stringer, pod *v1.Pod) error {
	for _, key := range slices.Sorted(maps.Keys(pod.Annotations)) {
		if !podset.IsOwnAnnotation(key) {
			continue
		}
		if _, err := fmt.Fprintf(
			out,
			"%s: metadata.annotations[%s]: only the node's agent sets this annotation: it is ignored\n",
			object,
			key,
		); err != nil {
			return err
		}
	}
	return nil
}
