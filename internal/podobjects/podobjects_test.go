package podobjects_test

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/quartet-node/quartet/internal/podobjects"
)

func TestEveryPlaceInAPodThatNamesAnObject(t *testing.T) {
	local := func(name string) v1.LocalObjectReference { return v1.LocalObjectReference{Name: name} }
	container := func(name string) v1.Container {
		return v1.Container{
			EnvFrom: []v1.EnvFromSource{
				{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: local(name)}},
				{SecretRef: &v1.SecretEnvSource{LocalObjectReference: local(name)}},
			},
			Env: []v1.EnvVar{
				{Name: "PLAIN", Value: "x"},
				{ValueFrom: &v1.EnvVarSource{
					ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: local(name + "-key")},
				}},
				{ValueFrom: &v1.EnvVarSource{
					SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: local(name + "-key")},
				}},
			},
		}
	}
	ephemeral := v1.EphemeralContainer{EphemeralContainerCommon: v1.EphemeralContainerCommon(container("ephemeral"))}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}, Spec: v1.PodSpec{
		ImagePullSecrets: []v1.LocalObjectReference{local("pull"), local("pull"), local("")},
		InitContainers:   []v1.Container{container("init")}, Containers: []v1.Container{container("main")},
		EphemeralContainers: []v1.EphemeralContainer{ephemeral},
		Volumes: []v1.Volume{
			{VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: local("volume")}}},
			{VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "volume"}}},
			{VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
				{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: local("projected")}},
				{Secret: &v1.SecretProjection{LocalObjectReference: local("projected")}},
			}}}},
		},
	}}
	want := []podobjects.Ref{{Kind: podobjects.Secret, Namespace: "shop", Name: "pull"}}
	for _, name := range []string{
		"init", "init-key", "main", "main-key", "ephemeral", "ephemeral-key", "volume", "projected",
	} {
		want = append(want, podobjects.Ref{Kind: podobjects.ConfigMap, Namespace: "shop", Name: name},
			podobjects.Ref{Kind: podobjects.Secret, Namespace: "shop", Name: name})
	}
	if got := podobjects.Used(pod); !slices.Equal(got, want) {
		t.Errorf("the pod names %v, want %v", got, want)
	}
}

// TestWhatVolumesAndEnvironmentsName: the claims of volumes, also of ephemeral ones, and the services of environments.
func TestWhatVolumesAndEnvironmentsName(t *testing.T) {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
	pod.Spec.Volumes = []v1.Volume{
		{Name: "data", VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "disk"},
		}},
		{Name: "scratch", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}},
		{Name: "inline", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{
			NodePublishSecretRef: &v1.LocalObjectReference{Name: "login"},
		}}},
		{Name: "empty", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
	}
	want := []podobjects.Ref{
		{Kind: "PersistentVolumeClaim", Namespace: "shop", Name: "disk"},
		{Kind: "PersistentVolumeClaim", Namespace: "shop", Name: "web-scratch"},
		{Kind: "Secret", Namespace: "shop", Name: "login"},
	}
	if got := podobjects.UsedByVolumes(pod); !slices.Equal(got, want) {
		t.Errorf("volumes name %v, want %v", got, want)
	}
	api := podobjects.Ref{Kind: "Service", Namespace: "default", Name: "kubernetes"}
	linked := []podobjects.Ref{api, {Kind: "ServiceList", Namespace: "shop"}}
	if got := podobjects.UsedServices(pod); !slices.Equal(got, linked) {
		t.Errorf("the environment names %v", got)
	}
	pod.Spec.EnableServiceLinks = new(bool)
	if got := podobjects.UsedServices(pod); !slices.Equal(got, []podobjects.Ref{api}) {
		t.Errorf("without links the environment names %v", got)
	}
}
