package podset

import (
	"bytes"
	"maps"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"
)

// Compare says what has become of one pod: Add when there was none, Remove when there is none any more, None when
// nothing that matters has changed. Equality is semantic: an empty list equals none, and 1000m equals 1.
func Compare(old, new *v1.Pod) Op {
	switch {
	case old == new:
		return None
	case old == nil:
		return Add
	case new == nil:
		return Remove
	case !sameDesire(old, new):
		if new.DeletionTimestamp != nil {
			return Delete
		}
		return Update
	case !sameStatus(&old.Status, &new.Status):
		return Reconcile
	default:
		return None
	}
}

// Equal reports whether a subscriber who holds one pod needs not hear of the other.
func Equal(a, b *v1.Pod) bool { return Compare(a, b) == None }

// sameDesire reports whether two versions of a pod ask for the same thing.
func sameDesire(a, b *v1.Pod) bool {
	return sameSpec(&a.Spec, &b.Spec) &&
		maps.Equal(a.Labels, b.Labels) &&
		sameAnnotations(a.Annotations, b.Annotations) &&
		a.DeletionTimestamp.Equal(b.DeletionTimestamp) &&
		ptr.Equal(a.DeletionGracePeriodSeconds, b.DeletionGracePeriodSeconds)
}

// sameSpec reports whether two specs mean the same.
func sameSpec(a, b *v1.PodSpec) bool { return sameBytes(a, b) || equality.Semantic.DeepEqual(a, b) }

// sameStatus reports whether two statuses mean the same.
func sameStatus(a, b *v1.PodStatus) bool {
	return sameBytes(a, b) || equality.Semantic.DeepEqual(a, b)
}

// encoded is a part of a pod that can be encoded.
type encoded interface {
	Size() int
	MarshalToSizedBuffer([]byte) (int, error)
}

// sameBytes reports whether two parts of pods have the same encoding, in which an empty list is none, and the keys of a map
// have an order. Most of those that mean the same have, and it costs a tenth of comparing what each field means: a source that
// has decoded all its pods anew has mostly such.
func sameBytes(a, b encoded) bool {
	size := a.Size()
	if size != b.Size() {
		return false
	}
	both := make([]byte, 2*size)
	one, other := both[:size], both[size:]
	if _, err := a.MarshalToSizedBuffer(one); err != nil {
		return false
	}
	_, err := b.MarshalToSizedBuffer(other)
	return err == nil && bytes.Equal(one, other)
}

// sameAnnotations compares all annotations but the agent's own.
func sameAnnotations(a, b map[string]string) bool {
	return coveredBy(a, b) && coveredBy(b, a)
}

// coveredBy reports whether b has every annotation of a, with its value, the agent's own left aside.
func coveredBy(a, b map[string]string) bool {
	for key, value := range a {
		if IsOwnAnnotation(key) {
			continue
		}
		if other, has := b[key]; !has || other != value {
			return false
		}
	}
	return true
}

// The annotations that the agent itself sets on a pod; their names are the kubelet's.
const (
	// AnnotationSource names the source that a pod came from.
	AnnotationSource = "kubernetes.io/config.source"
	// AnnotationSeen has the time at which the pod was first seen, as RFC 3339 with nanoseconds.
	AnnotationSeen = "kubernetes.io/config.seen"
	// AnnotationHash is set on static pods: their UID, which is a hash of their content when the manifest gives none.
	AnnotationHash = "kubernetes.io/config.hash"
	// AnnotationMirror is set on the mirror pods of static pods, and holds the hash of the pod that they mirror.
	AnnotationMirror = v1.MirrorPodAnnotationKey

	// ownPrefix is that of the annotations which only this agent knows.
	ownPrefix = "quartet.dev/"
)

// ConditionRuntimeStateUnknown is a condition that the agent adds to a pod's status, and a kubelet does not: it is there, and
// True, for as long as the runtime does not answer for the pod. Its transition is since when, its message why. The rest of
// the status is as it was last seen.
const ConditionRuntimeStateUnknown v1.PodConditionType = "quartet.dev/RuntimeStateUnknown"

// IsOwnAnnotation reports whether the agent sets this annotation itself, so that no source can give it and comparing
// ignores it.
func IsOwnAnnotation(key string) bool {
	switch key {
	case AnnotationSource, AnnotationSeen, AnnotationHash, AnnotationMirror:
		return true
	default:
		return strings.HasPrefix(key, ownPrefix)
	}
}

// StripOwnAnnotations returns the annotations without the agent's own. The map that is given is left as it was.
func StripOwnAnnotations(annotations map[string]string) map[string]string {
	if annotations == nil {
		return nil
	}
	out := make(map[string]string, len(annotations))
	for key, value := range annotations {
		if !IsOwnAnnotation(key) {
			out[key] = value
		}
	}
	return out
}
