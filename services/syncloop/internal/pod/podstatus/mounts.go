package podstatus

import (
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
)

// volumeMounts returns the status of a container's volume mounts. Whether one is recursively read-only is recorded on
// the container; before it exists, the spec's requirement is used.
func volumeMounts(c *v1.Container, made *lifecyclev1.Container) []v1.VolumeMountStatus {
	recursive := strings.Split(made.GetAnnotations()[podlabels.RecursiveReadOnly], ",")
	var mounts []v1.VolumeMountStatus
	for i, m := range c.VolumeMounts {
		mount := v1.VolumeMountStatus{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly}
		if m.ReadOnly {
			mode := v1.RecursiveReadOnlyDisabled
			insists := m.RecursiveReadOnly != nil && *m.RecursiveReadOnly == v1.RecursiveReadOnlyEnabled
			if made == nil && insists || slices.Contains(recursive, strconv.Itoa(i)) {
				mode = v1.RecursiveReadOnlyEnabled
			}
			mount.RecursiveReadOnly = &mode
		}
		mounts = append(mounts, mount)
	}
	return mounts
}
