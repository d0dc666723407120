package staticpod

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
)

// forbidden returns why a static pod must not refer to an object of the API.
func forbidden(object string) string {
	return fmt.Sprintf("a static pod must not use %s: it runs without an API server", object)
}

// NamesObjects reports whether a pod refers to a config map, a secret, a claim or a CSI driver, which only a pod of a
// node without an API server may do.
func NamesObjects(pod *v1.Pod) bool {
	return len(refuseReferences(pod, false)) > len(refuseReferences(pod, true))
}

// refuseReferences reports every reference to an object of the API in a pod as given. On a node without an API server,
// references to config maps, secrets, claims and CSI drivers are allowed, because these may stand beside the pod.
func refuseReferences(pod *v1.Pod, standalone bool) field.ErrorList {
	spec := field.NewPath("spec")
	r := refusals{standalone: standalone}
	r.refuseIf(pod.Spec.ServiceAccountName != "", spec.Child("serviceAccountName"), "service accounts")
	r.refuseIf(pod.Spec.DeprecatedServiceAccount != "", spec.Child("serviceAccount"), "service accounts")
	r.unlessStandalone(len(pod.Spec.ImagePullSecrets) > 0, spec.Child("imagePullSecrets"), "secrets")
	r.refuseIf(len(pod.Spec.ResourceClaims) > 0, spec.Child("resourceClaims"), "resource claims")
	for i := range pod.Spec.InitContainers {
		r.container(&pod.Spec.InitContainers[i], spec.Child("initContainers").Index(i))
	}
	for i := range pod.Spec.Containers {
		r.container(&pod.Spec.Containers[i], spec.Child("containers").Index(i))
	}
	for i := range pod.Spec.Volumes {
		r.volume(&pod.Spec.Volumes[i].VolumeSource, spec.Child("volumes").Index(i))
	}
	return r.errs
}

// refusals collects the refused references of a pod.
type refusals struct {
	standalone bool
	errs       field.ErrorList
}

// refuseIf refuses a field if the condition holds.
func (r *refusals) refuseIf(condition bool, path *field.Path, object string) {
	if condition {
		r.errs = append(r.errs, field.Forbidden(path, forbidden(object)))
	}
}

// unlessStandalone refuses a field if the condition holds and the node has an API server.
func (r *refusals) unlessStandalone(condition bool, path *field.Path, object string) {
	if condition && !r.standalone {
		r.errs = append(r.errs, field.Forbidden(path, fmt.Sprintf(
			"a static pod must not use %s: on a node with an API server they are that server's; without --kubeconfig they may stand beside the pod",
			object,
		)))
	}
}

func (r *refusals) container(c *v1.Container, path *field.Path) {
	for i := range c.EnvFrom {
		from := path.Child("envFrom").Index(i)
		r.unlessStandalone(c.EnvFrom[i].ConfigMapRef != nil, from.Child("configMapRef"), "config maps")
		r.unlessStandalone(c.EnvFrom[i].SecretRef != nil, from.Child("secretRef"), "secrets")
	}
	for i := range c.Env {
		from := c.Env[i].ValueFrom
		if from == nil {
			continue
		}
		at := path.Child("env").Index(i).Child("valueFrom")
		r.unlessStandalone(from.ConfigMapKeyRef != nil, at.Child("configMapKeyRef"), "config maps")
		r.unlessStandalone(from.SecretKeyRef != nil, at.Child("secretKeyRef"), "secrets")
	}
}

// volume refuses volume types that need the API, and optional secrets of others.
func (r *refusals) volume(v *v1.VolumeSource, path *field.Path) {
	r.unlessStandalone(v.ConfigMap != nil, path.Child("configMap"), "config maps")
	r.unlessStandalone(v.Secret != nil, path.Child("secret"), "secrets")
	r.unlessStandalone(v.PersistentVolumeClaim != nil, path.Child("persistentVolumeClaim"), "persistent volume claims")
	r.unlessStandalone(v.Ephemeral != nil, path.Child("ephemeral"), "persistent volume claims")
	if r.standalone && v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil {
		template := path.Child("ephemeral", "volumeClaimTemplate", "spec")
		r.errs = append(r.errs, apiobject.CheckClaimSpec(&v.Ephemeral.VolumeClaimTemplate.Spec, template)...)
	}
	r.unlessStandalone(v.CSI != nil, path.Child("csi"), "CSI drivers")
	r.refuseIf(v.Glusterfs != nil, path.Child("glusterfs"), "endpoints")
	r.refuseIf(v.AzureFile != nil, path.Child("azureFile"), "secrets")
	r.refuseIf(v.CephFS != nil && v.CephFS.SecretRef != nil, path.Child("cephfs", "secretRef"), "secrets")
	r.refuseIf(v.Cinder != nil && v.Cinder.SecretRef != nil, path.Child("cinder", "secretRef"), "secrets")
	r.refuseIf(v.FlexVolume != nil && v.FlexVolume.SecretRef != nil, path.Child("flexVolume", "secretRef"), "secrets")
	r.refuseIf(v.ISCSI != nil && v.ISCSI.SecretRef != nil, path.Child("iscsi", "secretRef"), "secrets")
	r.refuseIf(v.RBD != nil && v.RBD.SecretRef != nil, path.Child("rbd", "secretRef"), "secrets")
	r.refuseIf(v.ScaleIO != nil && v.ScaleIO.SecretRef != nil, path.Child("scaleIO", "secretRef"), "secrets")
	r.refuseIf(v.StorageOS != nil && v.StorageOS.SecretRef != nil, path.Child("storageos", "secretRef"), "secrets")
	if v.Projected == nil {
		return
	}
	for i := range v.Projected.Sources {
		s, at := &v.Projected.Sources[i], path.Child("projected", "sources").Index(i)
		r.unlessStandalone(s.ConfigMap != nil, at.Child("configMap"), "config maps")
		r.unlessStandalone(s.Secret != nil, at.Child("secret"), "secrets")
		r.refuseIf(s.ServiceAccountToken != nil, at.Child("serviceAccountToken"), "service account tokens")
		r.refuseIf(s.ClusterTrustBundle != nil, at.Child("clusterTrustBundle"), "cluster trust bundles")
		r.refuseIf(s.PodCertificate != nil, at.Child("podCertificate"), "pod certificates")
	}
}

// withoutObjects returns a copy of a valid pod without the permitted references to config maps, secrets, claims and CSI
// drivers, to check its other references.
func withoutObjects(pod *core.Pod) *core.Pod {
	pod = pod.DeepCopy()
	pod.Spec.ImagePullSecrets = nil
	podutil.VisitContainers(&pod.Spec, podutil.AllContainers, func(c *core.Container, _ podutil.ContainerType) bool {
		c.EnvFrom = slices.DeleteFunc(
			c.EnvFrom,
			func(from core.EnvFromSource) bool { return from.ConfigMapRef != nil || from.SecretRef != nil },
		)
		c.Env = slices.DeleteFunc(c.Env, func(e core.EnvVar) bool {
			return e.ValueFrom != nil && (e.ValueFrom.ConfigMapKeyRef != nil || e.ValueFrom.SecretKeyRef != nil)
		})
		return true
	})
	pod.Spec.Volumes = slices.DeleteFunc(
		pod.Spec.Volumes,
		func(v core.Volume) bool {
			return v.ConfigMap != nil || v.Secret != nil || v.PersistentVolumeClaim != nil || v.Ephemeral != nil || v.CSI != nil
		},
	)
	for i := range pod.Spec.Volumes {
		if from := pod.Spec.Volumes[i].Projected; from != nil {
			from.Sources = slices.DeleteFunc(
				from.Sources,
				func(s core.VolumeProjection) bool { return s.ConfigMap != nil || s.Secret != nil },
			)
		}
	}
	return pod
}
