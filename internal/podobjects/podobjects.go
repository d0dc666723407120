// Package podobjects says which config maps, secrets, claims and services a pod names. syncloop gets them for the pod,
// and a configmux of a site for the nodes of its pods. It is pure.
package podobjects

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// The kinds of objects.
const (
	ConfigMap = "ConfigMap"
	Secret    = "Secret"
	Claim     = "PersistentVolumeClaim"
	Service   = "Service"
	// Services are all services of a namespace. They have no name.
	Services = "ServiceList"
)

// APIService is the name of the service in the namespace default by which pods reach the API server.
const APIService = "kubernetes"

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

// ClaimName returns the name of the claim of a volume: that which it names, or for an ephemeral volume the pod's and
// the volume's name. It is empty for other kinds of volumes.
func ClaimName(pod *v1.Pod, volume *v1.Volume) (name string, ephemeral bool) {
	switch {
	case volume.PersistentVolumeClaim != nil:
		return volume.PersistentVolumeClaim.ClaimName, false
	case volume.Ephemeral != nil:
		return pod.Name + "-" + volume.Name, true
	}
	return "", false
}

// UsedByVolumes returns the claims of a pod's volumes, and the secrets of those that a CSI driver mounts without a
// claim, each once.
func UsedByVolumes(pod *v1.Pod) []Ref {
	var refs []Ref
	add := func(kind, name string) {
		if ref := (Ref{Kind: kind, Namespace: pod.Namespace, Name: name}); name != "" && !slices.Contains(refs, ref) {
			refs = append(refs, ref)
		}
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		name, _ := ClaimName(pod, v)
		add(Claim, name)
		if v.CSI != nil && v.CSI.NodePublishSecretRef != nil {
			add(Secret, v.CSI.NodePublishSecretRef.Name)
		}
		if v.AzureFile != nil { // of the kinds that a CSI driver mounts today, the only one with a secret
			add(Secret, v.AzureFile.SecretName)
		}
	}
	return refs
}

// UsedServices returns the services whose addresses are in the environment of a pod's containers: that of the API
// server, and all of the pod's namespace, unless the pod's enableServiceLinks is false.
func UsedServices(pod *v1.Pod) []Ref {
	refs := []Ref{{Kind: Service, Namespace: v1.NamespaceDefault, Name: APIService}}
	if LinksServices(pod) {
		refs = append(refs, Ref{Kind: Services, Namespace: pod.Namespace})
	}
	return refs
}

// LinksServices reports whether the services of a pod's namespace are in the environment of its containers.
func LinksServices(pod *v1.Pod) bool {
	return pod.Spec.EnableServiceLinks == nil || *pod.Spec.EnableServiceLinks
}
