package podset

import (
	"time"

	v1 "k8s.io/api/core/v1"
)

// SourceAPI is the source of pods that an API server has bound to the node. Pods of every other source are static.
const SourceAPI = "api"

// IsStatic reports whether a pod is static, as the kubelet's IsStaticPod does: it comes from a source other than an API
// server. A pod without a source annotation is not static.
func IsStatic(pod *v1.Pod) bool {
	source := pod.Annotations[AnnotationSource]
	return source != "" && source != SourceAPI
}

// IsFromAPI reports whether an API server has bound a pod to the node.
func IsFromAPI(pod *v1.Pod) bool { return pod.Annotations[AnnotationSource] == SourceAPI }

// IsStaticSource reports whether the pods of a source are static. Unlike IsStatic, it treats an unknown source as
// static.
func IsStaticSource(source string) bool { return source != SourceAPI }

// Seen returns the time at which configmux first saw a pod; zero if the pod does not have it.
func Seen(pod *v1.Pod) time.Time {
	seen, err := time.Parse(time.RFC3339Nano, pod.Annotations[AnnotationSeen])
	if err != nil {
		return time.Time{} // the annotation is configmux's own; without it the pod is not timed
	}
	return seen
}

// IsSidecar reports whether an init container is a sidecar: it starts in the order of init containers and then runs as
// long as the pod (KEP-753). It must not be called for ordinary containers, which have the same field.
func IsSidecar(c *v1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
}
