// Package podobjects says which config maps and secrets a pod names. syncloop gets them for the pod, and a configmux of
// a site for the nodes of its pods. It is pure.
package podobjects

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// The kinds of objects.
const (
	ConfigMap = "ConfigMap"
	Secret    = "Secret"
)

// Ref names an object.
type Ref struct{ Kind, Namespace, Name string }

// Used returns the objects that a pod's spec names for its environment, its volumes and its images, each once.
func Used(pod *v1.Pod) []Ref {
	var refs []Ref
	add := func(kind, name string) {
		if ref := (Ref{Kind: kind, Namespace: pod.Namespace, Name: name}); name != "" && !slices.Contains(refs, ref) {
			refs = append(refs, ref)
		}
	}
	for _, secret := range pod.Spec.ImagePullSecrets {
		add(Secret, secret.Name)
	}
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			environment(&list[i], add)
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		c := v1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		environment(&c, add)
	}
	for i := range pod.Spec.Volumes {
		volume(&pod.Spec.Volumes[i], add)
	}
	return refs
}

func environment(c *v1.Container, add func(kind, name string)) {
	for _, from := range c.EnvFrom {
		if from.ConfigMapRef != nil {
			add(ConfigMap, from.ConfigMapRef.Name)
		}
		if from.SecretRef != nil {
			add(Secret, from.SecretRef.Name)
		}
	}
	for _, e := range c.Env {
		if e.ValueFrom == nil {
			continue
		}
		if ref := e.ValueFrom.ConfigMapKeyRef; ref != nil {
			add(ConfigMap, ref.Name)
		}
		if ref := e.ValueFrom.SecretKeyRef; ref != nil {
			add(Secret, ref.Name)
		}
	}
}

func volume(v *v1.Volume, add func(kind, name string)) {
	switch {
	case v.ConfigMap != nil:
		add(ConfigMap, v.ConfigMap.Name)
	case v.Secret != nil:
		add(Secret, v.Secret.SecretName)
	case v.Projected != nil:
		for _, s := range v.Projected.Sources {
			if s.ConfigMap != nil {
				add(ConfigMap, s.ConfigMap.Name)
			}
			if s.Secret != nil {
				add(Secret, s.Secret.Name)
			}
		}
	}
}
