package applycmd

import (
	"fmt"
	"io"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/podset"
)

// tellIgnored says what configmux has left out of a pod that it took: the annotations that only the node's agent sets. It
// is no error, for a pod that was read from a node has them. What says where the pod stands and which it is.
func tellIgnored(out io.Writer, what fmt.Stringer, pod *v1.Pod) error {
	for _, key := range slices.Sorted(maps.Keys(pod.Annotations)) {
		if !podset.IsOwnAnnotation(key) {
			continue
		}
		if _, err := fmt.Fprintf(out, "%s: metadata.annotations[%s]: only the node's agent sets this annotation: it is ignored\n", what, key); err != nil {
			return err
		}
	}
	return nil
}
