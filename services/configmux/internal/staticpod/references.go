package staticpod

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// forbidden says why a static pod must not name an object of the API.
func forbidden(what string) string {
	return fmt.Sprintf("a static pod must not use %s: it runs without an API server", what)
}

// refuseReferences finds every place where a pod, as its manifest gives it, needs an object of the API.
func refuseReferences(pod *v1.Pod) field.ErrorList {
	spec := field.NewPath("spec")
	r := refusals{}
	r.when(pod.Spec.ServiceAccountName != "", spec.Child("serviceAccountName"), "service accounts")
	r.when(pod.Spec.DeprecatedServiceAccount != "", spec.Child("serviceAccount"), "service accounts")
	r.when(len(pod.Spec.ImagePullSecrets) > 0, spec.Child("imagePullSecrets"), "secrets")
	r.when(len(pod.Spec.ResourceClaims) > 0, spec.Child("resourceClaims"), "resource claims")
	for i := range pod.Spec.InitContainers {
		r.container(&pod.Spec.InitContainers[i], spec.Child("initContainers").Index(i))
	}
	for i := range pod.Spec.Containers {
		r.container(&pod.Spec.Containers[i], spec.Child("containers").Index(i))
	}
	for i := range pod.Spec.Volumes {
		r.volume(&pod.Spec.Volumes[i].VolumeSource, spec.Child("volumes").Index(i))
	}
	return field.ErrorList(r)
}

type refusals field.ErrorList

// when refuses a field if the condition holds.
func (r *refusals) when(is bool, path *field.Path, what string) {
	if is {
		*r = append(*r, field.Forbidden(path, forbidden(what)))
	}
}

func (r *refusals) container(c *v1.Container, path *field.Path) {
	for i := range c.EnvFrom {
		from := path.Child("envFrom").Index(i)
		r.when(c.EnvFrom[i].ConfigMapRef != nil, from.Child("configMapRef"), "config maps")
		r.when(c.EnvFrom[i].SecretRef != nil, from.Child("secretRef"), "secrets")
	}
	for i := range c.Env {
		from := c.Env[i].ValueFrom
		if from == nil {
			continue
		}
		at := path.Child("env").Index(i).Child("valueFrom")
		r.when(from.ConfigMapKeyRef != nil, at.Child("configMapKeyRef"), "config maps")
		r.when(from.SecretKeyRef != nil, at.Child("secretKeyRef"), "secrets")
	}
}

// volume refuses the kinds of volume that need the API, and the secrets of those that may do without.
func (r *refusals) volume(v *v1.VolumeSource, path *field.Path) {
	r.when(v.ConfigMap != nil, path.Child("configMap"), "config maps")
	r.when(v.Secret != nil, path.Child("secret"), "secrets")
	r.when(v.PersistentVolumeClaim != nil, path.Child("persistentVolumeClaim"), "persistent volume claims")
	r.when(v.Ephemeral != nil, path.Child("ephemeral"), "persistent volume claims")
	r.when(v.CSI != nil, path.Child("csi"), "CSI drivers")
	r.when(v.Glusterfs != nil, path.Child("glusterfs"), "endpoints")
	r.when(v.AzureFile != nil, path.Child("azureFile"), "secrets")
	r.when(v.CephFS != nil && v.CephFS.SecretRef != nil, path.Child("cephfs", "secretRef"), "secrets")
	r.when(v.Cinder != nil && v.Cinder.SecretRef != nil, path.Child("cinder", "secretRef"), "secrets")
	r.when(v.FlexVolume != nil && v.FlexVolume.SecretRef != nil, path.Child("flexVolume", "secretRef"), "secrets")
	r.when(v.ISCSI != nil && v.ISCSI.SecretRef != nil, path.Child("iscsi", "secretRef"), "secrets")
	r.when(v.RBD != nil && v.RBD.SecretRef != nil, path.Child("rbd", "secretRef"), "secrets")
	r.when(v.ScaleIO != nil && v.ScaleIO.SecretRef != nil, path.Child("scaleIO", "secretRef"), "secrets")
	r.when(v.StorageOS != nil && v.StorageOS.SecretRef != nil, path.Child("storageos", "secretRef"), "secrets")
	if v.Projected == nil {
		return
	}
	for i := range v.Projected.Sources {
		s, at := &v.Projected.Sources[i], path.Child("projected", "sources").Index(i)
		r.when(s.ConfigMap != nil, at.Child("configMap"), "config maps")
		r.when(s.Secret != nil, at.Child("secret"), "secrets")
		r.when(s.ServiceAccountToken != nil, at.Child("serviceAccountToken"), "service account tokens")
		r.when(s.ClusterTrustBundle != nil, at.Child("clusterTrustBundle"), "cluster trust bundles")
		r.when(s.PodCertificate != nil, at.Child("podCertificate"), "pod certificates")
	}
}
