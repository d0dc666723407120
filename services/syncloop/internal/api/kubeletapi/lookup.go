package kubeletapi

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/internal/podlabels"
)

// problem is an error with the HTTP status code of the answer.
type problem struct {
	code int
	text string
}

func (p *problem) Error() string { return p.text }

func notFound(format string, args ...any) *problem {
	return &problem{http.StatusNotFound, fmt.Sprintf(format, args...)}
}

func wrong(format string, args ...any) *problem {
	return &problem{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

// podOf returns the pod that a request's path names. If the path contains a UID, it must match.
func (n *node) podOf(r *http.Request) (*v1.Pod, error) {
	pods, err := n.Pods.Pods()
	if err != nil {
		return nil, err
	}
	namespace, name, uid := r.PathValue("namespace"), r.PathValue("pod"), types.UID(r.PathValue("uid"))
	for _, pod := range pods {
		if pod.Namespace == namespace && pod.Name == name && (uid == "" || pod.UID == uid) {
			return pod, nil
		}
	}
	return nil, notFound("there is no pod %s/%s on this node", namespace, name)
}

// containerOf returns the pod and the container's spec that a request's path names.
func (n *node) containerOf(r *http.Request) (*v1.Pod, *v1.Container, error) {
	pod, err := n.podOf(r)
	if err != nil {
		return nil, nil, err
	}
	name := r.PathValue("container")
	for _, containers := range [][]v1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range containers {
			if containers[i].Name == name {
				return pod, &containers[i], nil
			}
		}
	}
	for _, c := range pod.Spec.EphemeralContainers {
		if c.Name == name {
			common := v1.Container(c.EphemeralContainerCommon)
			return pod, &common, nil
		}
	}
	return nil, nil, notFound("container %q not found in pod %q", name, pod.Name)
}

// runningContainer asks the runtime for the running container of a pod's container.
func (n *node) runningContainer(r *http.Request, pod *v1.Pod, name string) (string, error) {
	runtime, err := n.Runtime()
	if err != nil {
		return "", err
	}
	running, err := runtime.ListContainers(r.Context(), &runtimeapi.ContainerFilter{
		LabelSelector: map[string]string{podlabels.PodUID: string(pod.UID), podlabels.ContainerName: name},
		State:         &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	})
	if err != nil {
		return "", fmt.Errorf("asking the runtime for the container: %w", err)
	}
	if len(running) == 0 {
		return "", notFound("container not found (%q): it does not run", name)
	}
	return slices.MaxFunc(running, func(a, b *runtimeapi.Container) int {
		return cmp.Compare(a.GetCreatedAt(), b.GetCreatedAt())
	}).GetId(), nil
}

// readySandbox asks the runtime for the ready sandbox of a pod.
func (n *node) readySandbox(r *http.Request, pod *v1.Pod) (string, error) {
	runtime, err := n.Runtime()
	if err != nil {
		return "", err
	}
	ready, err := runtime.ListPodSandbox(r.Context(), &runtimeapi.PodSandboxFilter{
		LabelSelector: map[string]string{podlabels.PodUID: string(pod.UID)},
		State:         &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY},
	})
	if err != nil {
		return "", fmt.Errorf("asking the runtime for the sandbox: %w", err)
	}
	if len(ready) == 0 {
		return "", notFound("pod %s/%s does not run", pod.Namespace, pod.Name)
	}
	return slices.MaxFunc(ready, func(a, b *runtimeapi.PodSandbox) int {
		return cmp.Compare(a.GetCreatedAt(), b.GetCreatedAt())
	}).GetId(), nil
}
