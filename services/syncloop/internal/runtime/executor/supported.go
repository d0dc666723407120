package executor

import (
	v1 "k8s.io/api/core/v1"
)

// supported returns an error if this version cannot run a pod, an *UnsupportedError if the pod uses an unsupported
// field.
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
