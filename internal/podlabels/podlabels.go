// Package podlabels defines the labels and annotations that Quartet sets on sandboxes and containers in the runtime,
// writes them and reads them. They are the only record of a pod outside of its source: after any restart, and for a pod
// that is in no source any more, the state is recovered from them. The names are the kubelet's where it has one, so
// that existing tools, and a kubelet that ran here before, recognize them. syncloop writes them; pleg and syncloop read
// them.
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

// Annotations on containers. Their values are text; numbers are decimal unless stated otherwise.
const (
	// ContainerHash is the kubelet's hash of the container's name and image, in hexadecimal.
	ContainerHash = "io.kubernetes.container.hash"
	// ContainerSpecHash is the SpecHash of the spec that the container was created from.
	ContainerSpecHash = "quartet.dev/container-spec-hash"
	// RestartCount is the number of previous restarts of the container.
	RestartCount = "io.kubernetes.container.restartCount"
	// BackoffStep is the number of consecutive crashes before this container. It determines the next back-off, and unlike
	// RestartCount is reset after a long run or a changed spec.
	BackoffStep = "quartet.dev/backoff-step"
	// StartCause is the reason for starting the container, or for creating the sandbox, for people.
	StartCause = "quartet.dev/start-cause"
	// ImageVolumes lists the runtime's IDs of the images that are mounted in a container, separated by commas.
	ImageVolumes = "quartet.dev/image-volumes"
	// RecursiveReadOnly lists the indexes, from 0, of the container's volumeMounts that are recursively read-only,
	// separated by commas.
	RecursiveReadOnly = "quartet.dev/recursive-read-only"
	// Devices has the devices of device plugins that the container was created with: JSON, IDs by resource.
	Devices = "quartet.dev/devices"
	// CPUs are the CPUs that the container was created with for itself, as a list of the kernel's; absent if it shares
	// them.
	CPUs = "quartet.dev/cpus"
	// Memory is the memory of NUMA nodes that the container was created with: JSON, sizes and nodes; absent if it may
	// have memory of any node.
	Memory = "quartet.dev/memory"
	// Claims has the resource claims of a pod with their devices when the sandbox was created: JSON, as in the checkpoint.
	Claims = "quartet.dev/claims"
	// Resources are the requests and limits that the container was created with, in JSON. On a sandbox they are those of
	// all containers of the pod, by name, at the time when the sandbox was created.
	Resources = "quartet.dev/resources"
	// PodResources are the pod-level requests and limits that the container or the sandbox was created with, in JSON. It
	// is absent for a pod without them.
	PodResources = "quartet.dev/pod-resources"
	// InitContainer is "true" on a container that must succeed before the pod's main containers start.
	InitContainer = "quartet.dev/init-container"
	// TerminationMessagePath is the path of the termination message in the container.
	TerminationMessagePath = "io.kubernetes.container.terminationMessagePath"
	// TerminationMessagePolicy says whether the log is used if that file is empty.
	TerminationMessagePolicy = "io.kubernetes.container.terminationMessagePolicy"
	// PreStopHandler is the preStop hook, in JSON.
	PreStopHandler = "io.kubernetes.container.preStopHandler"
	// ContainerPorts are the ports of the spec, in JSON, because an HTTP hook may refer to one of them by name.
	ContainerPorts = "io.kubernetes.container.ports"
	// PodDeletionGracePeriod is the grace period of the pod's deletion, in seconds, if the container was created during
	// it.
	PodDeletionGracePeriod = "io.kubernetes.pod.deletionGracePeriod"
	// PodTerminationGracePeriod is the grace period of the pod's spec, in seconds.
	PodTerminationGracePeriod = "io.kubernetes.pod.terminationGracePeriod"
)

// Restart holds the restart count and back-off of a new container.
type Restart struct {
	// Count is the number of previous restarts of the container.
	Count int
	// Step is the value of BackoffStep.
	Step int
	// Cause is the value of StartCause; empty if unknown.
	Cause string
}

// Attempt returns the count as the type of the runtime and the pod's status.
func (r Restart) Attempt() uint32 {
	return uint32(min(max(r.Count, 0), math.MaxInt32))
}

// Sandbox returns the labels and annotations of a pod's sandbox: those of the pod, overridden by the agent's own. An
// empty traceparent omits its annotation. It fails only if the resources cannot be encoded as JSON.
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

// putAllResources adds the requests and limits of a pod and its containers; it is a no-op for a pod without.
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

// Container returns the labels and annotations of a container of a pod. An empty traceparent omits its annotation. It
// fails only if a hook, the resources or the ports cannot be encoded as JSON.
func Container(
	pod *v1.Pod,
	c *v1.Container,
	restart Restart,
	traceparent string,
) (labels, annotations map[string]string, err error) {
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
	if err := putJSON(
		annotations,
		Resources,
		v1.ResourceRequirements{Requests: c.Resources.Requests, Limits: c.Resources.Limits},
	); err != nil {
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

// isInit reports whether a container is an init container that is not a sidecar.
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

// RestartOf reads Restart from a container's annotations. Without them, as for a container of another program, the
// count is the runtime's attempt, and the step is the count.
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

// ResourcesOf reads the requests and limits that a container was created with from its annotations; ok is false if they
// are absent.
func ResourcesOf(annotations map[string]string) (resources v1.ResourceRequirements, ok bool) {
	text, ok := annotations[Resources]
	if !ok || json.Unmarshal([]byte(text), &resources) != nil {
		return v1.ResourceRequirements{}, false
	}
	return resources, true
}

// PodResourcesOf reads the pod-level requests and limits that a container or a sandbox was created with; nil if there
// were none, or they cannot be read.
func PodResourcesOf(annotations map[string]string) *v1.ResourceRequirements {
	var resources v1.ResourceRequirements
	text, ok := annotations[PodResources]
	if !ok || json.Unmarshal([]byte(text), &resources) != nil {
		return nil
	}
	return &resources
}

// AllResourcesOf reads the requests and limits of all containers of a pod, by name, from the annotations of its
// sandbox. Containers without requests and limits are omitted; ok is false if the annotation is absent.
func AllResourcesOf(annotations map[string]string) (all map[string]v1.ResourceRequirements, ok bool) {
	text, ok := annotations[Resources]
	if !ok || json.Unmarshal([]byte(text), &all) != nil {
		return nil, false
	}
	return all, true
}

// Recovered holds the parts of a container's original spec that its annotations record.
type Recovered struct {
	// PodTerminationGracePeriod is the grace period of the pod's spec, in seconds; nil if not recorded.
	PodTerminationGracePeriod *int64
	// PreStop is the preStop hook; nil when there is none.
	PreStop *v1.LifecycleHandler
	// Ports are the container's ports.
	Ports []v1.ContainerPort
	// TerminationMessagePath and TerminationMessagePolicy are as in the spec.
	TerminationMessagePath   string
	TerminationMessagePolicy v1.TerminationMessagePolicy
}

// Recover reads a container's annotations. Invalid annotations are omitted and named in the error; the other fields are
// valid.
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
