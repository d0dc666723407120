package applycmd

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/quartet-node/quartet/internal/podset"
)

// tellIgnored says what configmux has left out of a pod that it took: the annotations that only the node's agent sets. It
// is no error, for a pod that was read from a node has them.
func tellIgnored(out io.Writer, d document) error {
	for _, key := range slices.Sorted(maps.Keys(d.pod.Annotations)) {
		if !podset.IsOwnAnnotation(key) {
			continue
		}
		if _, err := fmt.Fprintf(out, "%s: metadata.annotations[%s]: only the node's agent sets this annotation: it is ignored\n", d, key); err != nil {
			return err
		}
	}
	return nil
}
