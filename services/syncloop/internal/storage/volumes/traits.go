package volumes

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// Traits are what containers need to know of a volume besides its path.
type Traits struct {
	// Group is a supplemental group that the containers of the pod get; nil for none.
	Group *int64
	// KeepsLabel is true if the runtime must not give the volume the pod's SELinux label.
	KeepsLabel bool
}

// Traited is a Plugin whose volumes have traits.
type Traited interface {
	// Traits returns the traits of a volume that is set up. dir is the directory that SetUp receives.
	Traits(dir string) Traits
}

// Groups returns the supplemental groups that the containers of a pod get because of its volumes, which must be set up,
// without those that its spec has.
func (m *Manager) Groups(pod *v1.Pod) []int64 {
	var groups []int64
	for _, v := range mounted(pod) {
		group := m.traits(pod, v).Group
		if group == nil || slices.Contains(groups, *group) {
			continue
		}
		if sc := pod.Spec.SecurityContext; sc != nil && slices.Contains(sc.SupplementalGroups, *group) {
			continue
		}
		groups = append(groups, *group)
	}
	slices.Sort(groups)
	return groups
}

// KeepsLabel reports whether the runtime must not give a volume, which must be set up, the pod's SELinux label.
func (m *Manager) KeepsLabel(pod *v1.Pod, v *v1.Volume) bool {
	return v.HostPath != nil || m.traits(pod, v).KeepsLabel
}

// traits returns the traits of a pod's volume.
func (m *Manager) traits(pod *v1.Pod, v *v1.Volume) Traits {
	plugin := m.pluginOf(v)
	if traited, ok := plugin.(Traited); ok {
		return traited.Traits(m.dir(key{pod: pod.UID, plugin: plugin.Name(), name: v.Name}))
	}
	return Traits{}
}
