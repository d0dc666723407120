// Package podevents tells what syncloop does for its pods and for the node, and what it cannot do. It knows how a pod
// and its containers are named in an event; package events keeps them.
package podevents

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/events"
)

// Config is what a Recorder needs.
type Config = events.Config

// Recorder takes in events of pods and, as an events.Recorder, of the node, and publishes them. All of its methods may
// be called at any time by anyone; none waits for I/O.
type Recorder struct{ *events.Recorder }

// New returns a recorder of nothing.
func New(cfg Config) *Recorder { return &Recorder{Recorder: events.New(cfg)} }

// Normal tells what went as it should. The container is the name of the one that it is about; empty for the pod as a
// whole. The reason is a word in CamelCase, the kubelet's where it has one; the message is for people.
func (r *Recorder) Normal(ctx context.Context, pod *v1.Pod, container, reason, message string) {
	r.Record(ctx, reference(pod, container), v1.EventTypeNormal, reason, message)
}

// Warning tells what did not go as it should, as Normal does.
func (r *Recorder) Warning(ctx context.Context, pod *v1.Pod, container, reason, message string) {
	r.Record(ctx, reference(pod, container), v1.EventTypeWarning, reason, message)
}

// AnnotatedWarning tells what Warning does, with annotations for programs that read events.
func (r *Recorder) AnnotatedWarning(ctx context.Context, pod *v1.Pod, container, reason, message string, annotations map[string]string) {
	r.RecordAnnotated(ctx, reference(pod, container), v1.EventTypeWarning, reason, message, annotations)
}

// reference names a pod, and one of its containers unless that is empty. A static pod has the UID that it has here: the
// mirror pod in an API server bears it in an annotation, by which kubectl finds its events.
func reference(pod *v1.Pod, container string) v1.ObjectReference {
	return v1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
		FieldPath: fieldPath(pod, container),
	}
}

// fieldPath is where a container stands in its pod's spec, as the kubelet says it in its events; empty for none.
func fieldPath(pod *v1.Pod, container string) string {
	if container == "" {
		return ""
	}
	named := func(c v1.Container) bool { return c.Name == container }
	list := "containers"
	switch {
	case slices.ContainsFunc(pod.Spec.InitContainers, named):
		list = "initContainers"
	case slices.ContainsFunc(pod.Spec.EphemeralContainers, func(c v1.EphemeralContainer) bool { return c.Name == container }):
		list = "ephemeralContainers"
	}
	return fmt.Sprintf("spec.%s{%s}", list, container)
}
