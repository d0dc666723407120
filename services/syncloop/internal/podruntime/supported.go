package podruntime

import (
	"strings"

	v1 "k8s.io/api/core/v1"
)

// supported says whether this version can run a pod at all. It fails with an *UnsupportedError.
func supported(pod *v1.Pod) error {
	switch {
	case len(pod.Spec.ResourceClaims) > 0:
		return &UnsupportedError{Field: "spec.resourceClaims", Message: "resource claims are not supported by this version of Quartet; leave them out"}
	}
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if err := supportedMounts(pod, &list[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// probed names the containers of a pod that ask for probes, which this version does not run: such a container counts as
// ready, and is not restarted, by whether it runs alone.
func probed(pod *v1.Pod) string {
	var names []string
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if c := &list[i]; c.LivenessProbe != nil || c.ReadinessProbe != nil || c.StartupProbe != nil {
				names = append(names, c.Name)
			}
		}
	}
	return strings.Join(names, ", ")
}
