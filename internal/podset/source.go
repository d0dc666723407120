package podset

import (
	"time"

	v1 "k8s.io/api/core/v1"
)

// SourceAPI is the source of pods that an API server has bound to the node. Pods of every other source are static.
const SourceAPI = "api"

// IsStatic reports whether a pod is static, as the kubelet's IsStaticPod does: it comes from a source other than an API server.
// A pod whose source is not known is not static.
func IsStatic(pod *v1.Pod) bool {
	source := pod.Annotations[AnnotationSource]
	return source != "" && source != SourceAPI
}

// IsStaticSource reports whether the pods of a source are static. Unlike IsStatic it takes a source that is not known for static.
func IsStaticSource(source string) bool { return source != SourceAPI }

// Seen returns when configmux first saw a pod; the zero time when the pod does not say.
func Seen(pod *v1.Pod) time.Time {
	seen, err := time.Parse(time.RFC3339Nano, pod.Annotations[AnnotationSeen])
	if err != nil {
		return time.Time{} // the annotation is configmux's own; without it the pod is not timed
	}
	return seen
}

// IsSidecar reports whether an init container is a sidecar: it is started in its turn and then runs as long as the pod does
// (KEP-753). Ordinary containers have the same field and must not be asked.
func IsSidecar(c *v1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
}
