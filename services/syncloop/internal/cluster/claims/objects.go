package claims

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/csimigration"
)

// kind is a kind of objects that are requested one by one. Its value is the singular resource name.
type kind string

const (
	claimKind      kind = "persistentvolumeclaim"
	volumeKind     kind = "persistentvolume"
	attachmentKind kind = "volumeattachment"
	secretKind     kind = "secret"
)

// key identifies an object. The namespace is empty for volumes and attachments.
type key struct {
	kind            kind
	namespace, name string
}

// String returns the words for the object in an error: "persistentvolumeclaim shop/data".
func (k key) String() string {
	if k.namespace == "" {
		return string(k.kind) + " " + k.name
	}
	return string(k.kind) + " " + k.namespace + "/" + k.name
}

// empty returns an empty object of a kind.
func (k kind) empty() runtime.Object {
	switch k {
	case claimKind:
		return &v1.PersistentVolumeClaim{}
	case volumeKind:
		return &v1.PersistentVolume{}
	case attachmentKind:
		return &storagev1.VolumeAttachment{}
	case secretKind:
		return &v1.Secret{}
	}
	return nil
}

// use is what the spec of a pod names.
type use struct {
	// names has the keys of claims, of the secrets of inline volumes, and of what is behind those of migrated kinds.
	names []key
	// drivers has the drivers of inline volumes.
	drivers []string
	// since is when the pod was registered.
	since time.Time
}

// useOf returns what a pod of a node names.
func useOf(pod *v1.Pod, nodeName string) use {
	var u use
	add := func(k key) {
		if k.name != "" && !slices.Contains(u.names, k) {
			u.names = append(u.names, k)
		}
	}
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		name, _ := ClaimName(pod, volume)
		add(key{kind: claimKind, namespace: pod.Namespace, name: name})
		if csimigration.IsInline(volume) {
			// One that cannot be translated fails when it is mounted.
			if pv, err := csimigration.Inline(volume, pod.Namespace); err == nil {
				u.drivers = append(u.drivers, pv.Spec.CSI.Driver)
				for _, k := range behind(pv.Spec.CSI, nodeName) {
					add(k)
				}
			}
		}
		if inline := volume.CSI; inline != nil {
			u.drivers = append(u.drivers, inline.Driver)
			if inline.NodePublishSecretRef != nil {
				add(key{kind: secretKind, namespace: pod.Namespace, name: inline.NodePublishSecretRef.Name})
			}
		}
	}
	return u
}

func (u use) empty() bool { return len(u.names) == 0 && len(u.drivers) == 0 }

func (u use) equal(other use) bool {
	return slices.Equal(u.names, other.names) && slices.Equal(u.drivers, other.drivers)
}

// reach returns every object that a pod depends on: what its spec names, the volumes of its claims, and the attachments
// and secrets of these volumes. The object of a key is nil if it is not known.
func reach(u use, nodeName string, object func(key) runtime.Object) []key {
	keys := slices.Clone(u.names)
	for _, name := range u.names {
		claim, _ := object(name).(*v1.PersistentVolumeClaim)
		if claim == nil || claim.Spec.VolumeName == "" {
			continue
		}
		k := key{kind: volumeKind, name: claim.Spec.VolumeName}
		keys = append(keys, k)
		if volume, _ := object(k).(*v1.PersistentVolume); volume != nil && volume.Spec.CSI != nil {
			keys = append(keys, behind(volume.Spec.CSI, nodeName)...)
		}
	}
	return keys
}

// behind returns the attachment and the secrets of a CSI volume that a node may read.
func behind(source *v1.CSIPersistentVolumeSource, nodeName string) []key {
	keys := []key{{kind: attachmentKind, name: AttachmentName(source.Driver, source.VolumeHandle, nodeName)}}
	for _, ref := range []*v1.SecretReference{
		source.NodeStageSecretRef, source.NodePublishSecretRef, source.NodeExpandSecretRef,
	} {
		if ref != nil {
			keys = append(keys, key{kind: secretKind, namespace: ref.Namespace, name: ref.Name})
		}
	}
	return keys
}
