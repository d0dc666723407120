package configobjects

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/podobjects"
)

// Used returns the objects that a pod's spec names for its environment, its volumes and its images, each once.
func Used(pod *v1.Pod) []Key {
	var keys []Key
	for _, ref := range podobjects.Used(pod) {
		keys = append(keys, Key{Kind: Kind(ref.Kind), Namespace: ref.Namespace, Name: ref.Name})
	}
	return keys
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
