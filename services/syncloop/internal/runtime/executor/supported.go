package executor

import (
	v1 "k8s.io/api/core/v1"
)

// supported returns an error if this version cannot run a pod, an *UnsupportedError if the pod uses an unsupported
// field.
func (m *Manager) supported(pod *v1.Pod) error {
	if _, none := m.cfg.ResourceClaims.(noClaims); none && len(pod.Spec.ResourceClaims) > 0 {
		return &UnsupportedError{Field: "spec.resourceClaims", Message: "this node has no API server that has resource claims; leave them out"}
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
