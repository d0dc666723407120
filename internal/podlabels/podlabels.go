// Package podlabels names the labels and annotations that Quartet puts on the sandboxes and containers of the runtime,
// writes them and reads them. They are all that is kept about a pod outside its source: after any restart, and for a pod
// that is in no source any more, everything is recovered from them. The names are the kubelet's wherever it has one, so
// that tools (and a kubelet that ran here before) find what they know. syncloop writes them; pleg and syncloop read them.
package podlabels

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubelet/pkg/types"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/telemetry"
)

// Labels on sandboxes and containers.
const (
	// PodName is the pod's name.
	PodName = types.KubernetesPodNameLabel
	// PodNamespace is the pod's namespace.
	PodNamespace = types.KubernetesPodNamespaceLabel
	// PodUID is the pod's UID.
	PodUID = types.KubernetesPodUIDLabel
	// ContainerName is the container's name in the pod's spec; on containers only.
	ContainerName = types.KubernetesContainerNameLabel
)

// Annotations on containers. Their values are text; numbers are decimal unless said otherwise.
const (
	// ContainerHash is the kubelet's hash of the container's name and image, in hexadecimal.
	ContainerHash = "io.kubernetes.container.hash"
	// ContainerSpecHash is SpecHash of the spec that the container was made from.
	ContainerSpecHash = "quartet.dev/container-spec-hash"
	// RestartCount is how often the container was restarted before.
	RestartCount = "io.kubernetes.container.restartCount"
	// BackoffStep is how many restarts of the present row of crashes came before this container: it gives the next
	// back-off, and unlike RestartCount begins again after a long run or a changed spec.
	BackoffStep = "quartet.dev/backoff-step"
	// StartCause says to people why a container was started, and on a sandbox why it was made.
	StartCause = "quartet.dev/start-cause"
	// ImageVolumes has the runtime's IDs of the images that are mounted in a container, with commas between them.
	ImageVolumes = "quartet.dev/image-volumes"
	// RecursiveReadOnly has the places among the container's volumeMounts, from 0, of those that are recursively read-only, with commas
	// between them.
	RecursiveReadOnly = "quartet.dev/recursive-read-only"
	// Resources are the requests and limits that the container was made with, in JSON. On a sandbox they are those of all containers
	// of the pod, by name, as they were when the sandbox was made.
	Resources = "quartet.dev/resources"
	// PodResources are the requests and limits of the pod as a whole that the container, or the sandbox, was made with, in JSON. There
	// is none for a pod without.
	PodResources = "quartet.dev/pod-resources"
	// InitContainer is "true" on a container that the pod's start waits for to end. How it ends well is part of that start.
	InitContainer = "quartet.dev/init-container"
	// TerminationMessagePath is the file in the container that its last words are read from.
	TerminationMessagePath = "io.kubernetes.container.terminationMessagePath"
	// TerminationMessagePolicy says whether the log is read when that file is empty.
	TerminationMessagePolicy = "io.kubernetes.container.terminationMessagePolicy"
	// PreStopHandler is the preStop hook, in JSON.
	PreStopHandler = "io.kubernetes.container.preStopHandler"
	// ContainerPorts are the ports of the spec, in JSON: an HTTP hook may name one of them.
	ContainerPorts = "io.kubernetes.container.ports"
	// PodDeletionGracePeriod is the grace period of the pod's deletion, in seconds, when it was being deleted.
	PodDeletionGracePeriod = "io.kubernetes.pod.deletionGracePeriod"
	// PodTerminationGracePeriod is the grace period of the pod's spec, in seconds.
	PodTerminationGracePeriod = "io.kubernetes.pod.terminationGracePeriod"
)

// Restart says where a new container stands in the row of its kind.
type Restart struct {
	// Count is how often the container was restarted before.
	Count int
	// Step is the value of BackoffStep.
	Step int
	// Cause is the value of StartCause; empty when nobody has said.
	Cause string
}

// Attempt is the count as the runtime and the pod's status take it.
func (r Restart) Attempt() uint32 {
	return uint32(min(max(r.Count, 0), math.MaxInt32))
}

// Sandbox returns the labels and annotations of a pod's sandbox: those of the pod, and the agent's own over them. An
// empty traceparent leaves its annotation out. It fails only when the resources cannot be written as JSON.
func Sandbox(pod *v1.Pod, traceparent string) (labels, annotations map[string]string, err error) {
	labels = make(map[string]string, len(pod.Labels)+3)
	maps.Copy(labels, pod.Labels)
	maps.Copy(labels, podLabels(pod))
	annotations = make(map[string]string, len(pod.Annotations)+1)
	maps.Copy(annotations, pod.Annotations)
	for _, own := range []string{telemetry.AnnotationTraceparent, StartCause, Resources, PodResources} {
		delete(annotations, own)
	}
	if traceparent != "" {
		annotations[telemetry.AnnotationTraceparent] = traceparent
	}
	if err := putAllResources(annotations, pod); err != nil {
		return nil, nil, err
	}
	return labels, annotations, nil
}

// putAllResources notes the requests and limits of a pod and its containers; nothing for a pod without.
func putAllResources(annotations map[string]string, pod *v1.Pod) error {
	all := map[string]v1.ResourceRequirements{}
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if r := &list[i].Resources; len(r.Requests)+len(r.Limits) > 0 {
				all[list[i].Name] = v1.ResourceRequirements{Requests: r.Requests, Limits: r.Limits}
			}
		}
	}
	if len(all) > 0 {
		if err := putJSON(annotations, Resources, all); err != nil {
			return err
		}
	}
	return putPodResources(annotations, pod)
}

func putPodResources(annotations map[string]string, pod *v1.Pod) error {
	r := pod.Spec.Resources
	if r == nil || len(r.Requests)+len(r.Limits) == 0 {
		return nil
	}
	return putJSON(annotations, PodResources, v1.ResourceRequirements{Requests: r.Requests, Limits: r.Limits})
}

// Container returns the labels and annotations of a container of a pod. An empty traceparent leaves its annotation out.
// It fails only when a hook, the resources or the ports cannot be written as JSON.
func Container(pod *v1.Pod, c *v1.Container, restart Restart, traceparent string) (labels, annotations map[string]string, err error) {
	labels = podLabels(pod)
	labels[ContainerName] = c.Name
	annotations = map[string]string{
		ContainerHash:            kubeletHash(c),
		ContainerSpecHash:        SpecHash(c),
		RestartCount:             strconv.Itoa(restart.Count),
		BackoffStep:              strconv.Itoa(restart.Step),
		TerminationMessagePath:   c.TerminationMessagePath,
		TerminationMessagePolicy: string(c.TerminationMessagePolicy),
	}
	if traceparent != "" {
		annotations[telemetry.AnnotationTraceparent] = traceparent
	}
	if restart.Cause != "" {
		annotations[StartCause] = restart.Cause
	}
	if isInit(pod, c.Name) {
		annotations[InitContainer] = "true"
	}
	if pod.DeletionGracePeriodSeconds != nil {
		annotations[PodDeletionGracePeriod] = strconv.FormatInt(*pod.DeletionGracePeriodSeconds, 10)
	}
	if pod.Spec.TerminationGracePeriodSeconds != nil {
		annotations[PodTerminationGracePeriod] = strconv.FormatInt(*pod.Spec.TerminationGracePeriodSeconds, 10)
	}
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
		if err := putJSON(annotations, PreStopHandler, c.Lifecycle.PreStop); err != nil {
			return nil, nil, fmt.Errorf("container %q: %w", c.Name, err)
		}
	}
	if err := putJSON(annotations, Resources, v1.ResourceRequirements{Requests: c.Resources.Requests, Limits: c.Resources.Limits}); err != nil {
		return nil, nil, fmt.Errorf("container %q: %w", c.Name, err)
	}
	if err := putPodResources(annotations, pod); err != nil {
		return nil, nil, fmt.Errorf("container %q: %w", c.Name, err)
	}
	if len(c.Ports) > 0 {
		if err := putJSON(annotations, ContainerPorts, c.Ports); err != nil {
			return nil, nil, fmt.Errorf("container %q: %w", c.Name, err)
		}
	}
	return labels, annotations, nil
}

// isInit is true for an init container, and false for one that runs beside the others (restartPolicy Always).
func isInit(pod *v1.Pod, name string) bool {
	return slices.ContainsFunc(pod.Spec.InitContainers, func(c v1.Container) bool {
		return c.Name == name && !podset.IsSidecar(&c)
	})
}

func podLabels(pod *v1.Pod) map[string]string {
	return map[string]string{PodName: pod.Name, PodNamespace: pod.Namespace, PodUID: string(pod.UID)}
}

func putJSON(annotations map[string]string, key string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("annotation %s: %w", key, err)
	}
	annotations[key] = string(text)
	return nil
}

// RestartOf reads Restart from a container's annotations. Without them (a container that something else has made) the
// count is the attempt that the runtime has, and the step is the count.
func RestartOf(annotations map[string]string, attempt uint32) Restart {
	r := Restart{Count: int(attempt), Cause: annotations[StartCause]}
	if n, err := strconv.Atoi(annotations[RestartCount]); err == nil && n >= 0 {
		r.Count = n
	}
	r.Step = r.Count
	if n, err := strconv.Atoi(annotations[BackoffStep]); err == nil && n >= 0 {
		r.Step = n
	}
	return r
}

// ResourcesOf reads the requests and limits that a container was made with from its annotations; ok is false when they do not say.
func ResourcesOf(annotations map[string]string) (resources v1.ResourceRequirements, ok bool) {
	text, ok := annotations[Resources]
	if !ok || json.Unmarshal([]byte(text), &resources) != nil {
		return v1.ResourceRequirements{}, false
	}
	return resources, true
}

// PodResourcesOf reads the requests and limits of the pod as a whole that a container or a sandbox was made with; nil when there were
// none, or they cannot be read.
func PodResourcesOf(annotations map[string]string) *v1.ResourceRequirements {
	var resources v1.ResourceRequirements
	text, ok := annotations[PodResources]
	if !ok || json.Unmarshal([]byte(text), &resources) != nil {
		return nil
	}
	return &resources
}

// AllResourcesOf reads the requests and limits of all containers of a pod from the annotations of its sandbox, by name. A container
// that had none is not among them; ok is false when they do not say.
func AllResourcesOf(annotations map[string]string) (all map[string]v1.ResourceRequirements, ok bool) {
	text, ok := annotations[Resources]
	if !ok || json.Unmarshal([]byte(text), &all) != nil {
		return nil, false
	}
	return all, true
}

// Recovered is what a container's annotations say about the spec that it was made from.
type Recovered struct {
	// PodTerminationGracePeriod is the grace period of the pod's spec, in seconds; nil when not recorded.
	PodTerminationGracePeriod *int64
	// PreStop is the preStop hook; nil when there is none.
	PreStop *v1.LifecycleHandler
	// Ports are the container's ports.
	Ports []v1.ContainerPort
	// TerminationMessagePath and TerminationMessagePolicy are as in the spec.
	TerminationMessagePath   string
	TerminationMessagePolicy v1.TerminationMessagePolicy
}

// Recover reads a container's annotations. What cannot be read is left out and named in the error; the rest is valid
// all the same.
func Recover(annotations map[string]string) (Recovered, error) {
	r := Recovered{
		TerminationMessagePath:   annotations[TerminationMessagePath],
		TerminationMessagePolicy: v1.TerminationMessagePolicy(annotations[TerminationMessagePolicy]),
	}
	var errs []error
	if text, ok := annotations[PodTerminationGracePeriod]; ok {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			errs = append(errs, fmt.Errorf("annotation %s: %w", PodTerminationGracePeriod, err))
		} else {
			r.PodTerminationGracePeriod = &seconds
		}
	}
	if text, ok := annotations[PreStopHandler]; ok {
		hook := &v1.LifecycleHandler{}
		if err := json.Unmarshal([]byte(text), hook); err != nil {
			errs = append(errs, fmt.Errorf("annotation %s: %w", PreStopHandler, err))
		} else {
			r.PreStop = hook
		}
	}
	if text, ok := annotations[ContainerPorts]; ok {
		var ports []v1.ContainerPort
		if err := json.Unmarshal([]byte(text), &ports); err != nil {
			errs = append(errs, fmt.Errorf("annotation %s: %w", ContainerPorts, err))
		} else {
			r.Ports = ports
		}
	}
	return r, errors.Join(errs...)
}
