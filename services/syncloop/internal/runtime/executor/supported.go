package executor

import (
	v1 "k8s.io/api/core/v1"
)

// supported says whether this version can run a pod at all. It fails with an *UnsupportedError.
func (m *Manager) supported(pod *v1.Pod) error {
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
	return m.supportedVolumes(pod)
}
