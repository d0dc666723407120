// Package podevents records events about pods and the node: what syncloop does and what it cannot do. It defines how an
// event refers to a pod and its containers; package events stores the events.
package podevents

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/events"
)

// Config configures a Recorder.
type Config = events.Config

// Recorder records events about pods and, as an events.Recorder, about the node, and publishes them. Its methods may be
// called from any goroutine; none waits for I/O.
type Recorder struct{ *events.Recorder }

// New returns an empty Recorder.
func New(cfg Config) *Recorder { return &Recorder{Recorder: events.New(cfg)} }

// Normal records a normal event. Container is the name of the container that it is about; empty for the pod as a whole.
// Reason is a word in CamelCase, the kubelet's if it has one; message is for people.
func (r *Recorder) Normal(ctx context.Context, pod *v1.Pod, container, reason, message string) {
	r.Record(ctx, reference(pod, container), v1.EventTypeNormal, reason, message)
}

// Warning records a warning, with the parameters of Normal.
func (r *Recorder) Warning(ctx context.Context, pod *v1.Pod, container, reason, message string) {
	r.Record(ctx, reference(pod, container), v1.EventTypeWarning, reason, message)
}

// AnnotatedWarning records a warning with annotations for programs that read events.
func (r *Recorder) AnnotatedWarning(
	ctx context.Context, pod *v1.Pod, container, reason, message string, annotations map[string]string,
) {
	r.RecordAnnotated(ctx, reference(pod, container), v1.EventTypeWarning, reason, message, annotations)
}

// Claim records an event about a persistent volume claim, of type v1.EventTypeNormal or v1.EventTypeWarning, for the
// API server only: record the same about the pod.
func (r *Recorder) Claim(claim *v1.PersistentVolumeClaim, kind, reason, message string) {
	r.Publish(v1.ObjectReference{
		APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
		ResourceVersion: claim.ResourceVersion,
	}, kind, reason, message)
}

// reference returns a reference to a pod, or to one of its containers if container is not empty. It contains the UID of
// a static pod on this node: the mirror pod in the API server has it in an annotation, by which kubectl finds the
// events.
func reference(pod *v1.Pod, container string) v1.ObjectReference {
	return v1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
		ResourceVersion: pod.ResourceVersion,
		FieldPath:       fieldPath(pod, container),
	}
}

// fieldPath returns the path of a container in its pod's spec, as in the kubelet's events; empty for none.
func fieldPath(pod *v1.Pod, container string) string {
	if container == "" {
		return ""
	}
	named := func(c v1.Container) bool { return c.Name == container }
	list := "containers"
	switch {
	case slices.ContainsFunc(pod.Spec.InitContainers, named):
		list = "initContainers"
	case slices.ContainsFunc(pod.Spec.EphemeralContainers, func(c v1.EphemeralContainer) bool {
		return c.Name == container
	}):
		list = "ephemeralContainers"
	}
	return fmt.Sprintf("spec.%s{%s}", list, container)
}
