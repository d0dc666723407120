package volumecontent

import (
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// containers returns all containers of a pod of every kind.
func containers(pod *v1.Pod) []v1.Container {
	all := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	for i := range pod.Spec.EphemeralContainers {
		all = append(all, v1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon))
	}
	return all
}

// onlyUser returns the common user of all containers of a pod; nil if one has none or they differ.
func onlyUser(pod *v1.Pod) *int64 {
	var only *int64
	for _, c := range containers(pod) {
		var user *int64
		if sc := pod.Spec.SecurityContext; sc != nil {
			user = sc.RunAsUser
		}
		if sc := c.SecurityContext; sc != nil && sc.RunAsUser != nil {
			user = sc.RunAsUser
		}
		if user == nil || (only != nil && *only != *user) {
			return nil
		}
		only = user
	}
	return only
}

// MountPoints returns the relative directories in a volume that containers mount other volumes on. The volumes of this
// package are read-only in containers, so that a runtime cannot create them.
func MountPoints(pod *v1.Pod, volume string) []string {
	var found []string
	for _, c := range containers(pod) {
		var all []string
		for _, mount := range c.VolumeMounts {
			all = append(all, path.Clean(mount.MountPath))
		}
		slices.Sort(all)
		for _, mount := range c.VolumeMounts {
			if mount.Name == volume {
				found = append(found, firstBelow(path.Clean(mount.MountPath), all)...)
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// firstBelow returns the paths below root that have no parent in the list, relative to root. The list has sorted, clean
// paths.
func firstBelow(root string, all []string) []string {
	var found []string
	for _, p := range all {
		rest, below := strings.CutPrefix(p, strings.TrimSuffix(root, "/")+"/")
		between := func(other string) bool { return strings.HasPrefix(rest, other+"/") }
		if below && rest != "" && !slices.ContainsFunc(found, between) {
			found = append(found, rest)
		}
	}
	return found
}
