package configobjects

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Used returns the objects that a pod's spec names for its environment, its volumes and its images, each once.
func Used(pod *v1.Pod) []Key {
	var keys []Key
	add := func(kind Kind, name string) {
		if k := (Key{Kind: kind, Namespace: pod.Namespace, Name: name}); name != "" && !slices.Contains(keys, k) {
			keys = append(keys, k)
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
	return keys
}

func environment(c *v1.Container, add func(Kind, string)) {
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

func volume(v *v1.Volume, add func(Kind, string)) {
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

// usedByVolumes returns the claims that a pod's spec names, and the secrets of its inline CSI volumes, each once.
func usedByVolumes(pod *v1.Pod) []Key {
	var keys []Key
	add := func(kind Kind, name string) {
		if k := (Key{Kind: kind, Namespace: pod.Namespace, Name: name}); !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		switch {
		case v.PersistentVolumeClaim != nil:
			add(Claim, v.PersistentVolumeClaim.ClaimName)
		case v.CSI != nil && v.CSI.NodePublishSecretRef != nil:
			add(Secret, v.CSI.NodePublishSecretRef.Name)
		}
	}
	return keys
}

// users records which pods use which objects. It is not safe for concurrent use.
type users struct {
	pods  map[types.UID][]Key
	byKey map[Key]map[types.UID]bool
}

func newUsers() users { return users{pods: map[types.UID][]Key{}, byKey: map[Key]map[types.UID]bool{}} }

// use sets the objects that a pod uses.
func (u users) use(uid types.UID, keys []Key) {
	if slices.Equal(u.pods[uid], keys) {
		return
	}
	u.forget(uid)
	u.pods[uid] = keys
	for _, k := range keys {
		if u.byKey[k] == nil {
			u.byKey[k] = map[types.UID]bool{}
		}
		u.byKey[k][uid] = true
	}
}

func (u users) forget(uid types.UID) {
	for _, k := range u.pods[uid] {
		if delete(u.byKey[k], uid); len(u.byKey[k]) == 0 {
			delete(u.byKey, k)
		}
	}
	delete(u.pods, uid)
}
