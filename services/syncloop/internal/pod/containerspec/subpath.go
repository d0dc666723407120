package containerspec

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/third_party/forked/golang/expansion"
)

// SubPaths returns the paths in the volumes that a container mounts, in the order of its volumeMounts; empty for the
// whole volume. It expands $(NAME) in a subPathExpr from the container's environment, and $$ to $, and fails for a name
// without a value. It does not check whether a path leads out of its volume.
func SubPaths(pod *v1.Pod, c *v1.Container, node Node, in Inputs) ([]string, error) {
	paths := make([]string, len(c.VolumeMounts))
	var env *environment
	for i, mount := range c.VolumeMounts {
		if paths[i] = mount.SubPath; mount.SubPathExpr == "" {
			continue
		}
		if env == nil {
			made, err := makeEnvironment(pod, c, in, node)
			if err != nil {
				return nil, err
			}
			env = made
		}
		missing := map[string]bool{}
		paths[i] = expansion.Expand(mount.SubPathExpr, func(name string) string {
			if env.values[name] == "" {
				missing[name] = true
			}
			return env.values[name]
		})
		if len(missing) > 0 {
			return nil, fmt.Errorf("missing value for %s", strings.Join(slices.Sorted(maps.Keys(missing)), ", "))
		}
	}
	return paths, nil
}
