package kubeletapi

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/exec"

	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/telemetry"
)

// at inserts a path into a pattern.
func at(path, pattern string) string { return strings.ReplaceAll(pattern, "%", path) }

// run runs a command in a container and answers with its output as text.
func (n *node) run(w http.ResponseWriter, r *http.Request) {
	text := r.URL.Query().Get("cmd")
	if text == "" {
		http.Error(w, "you must specify a command by cmd", http.StatusBadRequest)
		return
	}
	pod, container, err := n.containerOf(r)
	var id string
	if err == nil {
		id, err = n.runningContainer(r, pod, container.Name)
	}
	if err != nil {
		n.refuse(w, r, err)
		return
	}
	runtime, err := n.Runtime()
	if err != nil {
		n.refuse(w, r, err)
		return
	}
	command := strings.Split(text, " ")
	n.audit(r, "run", pod, telemetry.KeyContainer, container.Name, "program", program(command))
	stdout, stderr, err := runtime.ExecSync(r.Context(), id, command, n.Kubelet.RuntimeRequestTimeout.Duration)
	var ended exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		n.refuse(w, r, fmt.Errorf("running a command: %w", err))
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if ended != nil {
		w.WriteHeader(http.StatusInternalServerError)
		stderr = fmt.Appendf(stderr, "command terminated with exit code %d\n", ended.ExitStatus())
	}
	if _, err := untilDone(w, n.idle()).Write(append(stdout, stderr...)); err != nil {
		n.Logger.DebugContext(r.Context(), "the output of a command could not be written", telemetry.KeyError, err)
	}
}

const (
	checkpointMode = 0o700
	// checkpointTime is the format of the time in the name of a checkpoint.
	checkpointTime = "2006-01-02T15:04:05.000000000Z07:00"
)

// checkpoint makes the runtime save a running container and answers with the path: {"items": [PATH]}.
func (n *node) checkpoint(w http.ResponseWriter, r *http.Request) {
	timeout, err := int64(0), error(nil)
	if text := r.URL.Query().Get("timeout"); text != "" {
		if timeout, err = strconv.ParseInt(text, 10, 64); err != nil || timeout < 0 {
			http.Error(w, fmt.Sprintf("timeout: %q must be a number of seconds", text), http.StatusBadRequest)
			return
		}
	}
	pod, container, err := n.containerOf(r)
	var id string
	if err == nil {
		id, err = n.runningContainer(r, pod, container.Name)
	}
	if err != nil {
		n.refuse(w, r, err)
		return
	}
	runtime, err := n.Runtime()
	if err == nil {
		err = os.MkdirAll(n.Checkpoints, checkpointMode)
	}
	if err != nil {
		n.refuse(w, r, err)
		return
	}
	n.audit(r, "checkpoint", pod, telemetry.KeyContainer, container.Name)
	name := fmt.Sprintf("checkpoint-%s_%s-%s-%s.tar", pod.Name, pod.Namespace, container.Name,
		n.Clock.Now().Format(checkpointTime))
	request := &runtimeapi.CheckpointContainerRequest{
		ContainerId: id, Location: filepath.Join(n.Checkpoints, name), Timeout: timeout,
	}
	if err := runtime.CheckpointContainer(r.Context(), request); err != nil {
		n.refuse(w, r, fmt.Errorf("checkpointing of %s/%s/%s failed: %w", pod.Namespace, pod.Name, container.Name, err))
		return
	}
	n.read.writeJSON(w, map[string][]string{"items": {request.GetLocation()}})
}

// configz answers with the configuration. The headers of staticPodURL are removed, because they may contain
// credentials.
func (n *node) configz(w http.ResponseWriter, _ *http.Request) {
	shown := *n.Kubelet
	shown.StaticPodURLHeader = maps.Clone(shown.StaticPodURLHeader)
	for name := range shown.StaticPodURLHeader {
		shown.StaticPodURLHeader[name] = []string{"<masked>"}
	}
	n.read.writeJSON(w, map[string]*kubeletconfigv1beta1.KubeletConfiguration{"kubeletconfig": &shown})
}

// runningPods answers with the pods that the runtime runs and their running containers. Nothing else is known of them.
func (n *node) runningPods(w http.ResponseWriter, r *http.Request) {
	runtime, err := n.Runtime()
	if err != nil {
		n.refuse(w, r, err)
		return
	}
	sandboxes, err := runtime.ListPodSandbox(r.Context(), &runtimeapi.PodSandboxFilter{
		State: &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY},
	})
	if err != nil {
		n.refuse(w, r, fmt.Errorf("asking the runtime for its sandboxes: %w", err))
		return
	}
	containers, err := runtime.ListContainers(r.Context(), &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	})
	if err != nil {
		n.refuse(w, r, fmt.Errorf("asking the runtime for its containers: %w", err))
		return
	}
	n.read.writeJSON(w, podList(running(sandboxes, containers)))
}

// running converts sandboxes and containers to pods.
func running(sandboxes []*runtimeapi.PodSandbox, containers []*runtimeapi.Container) []*v1.Pod {
	pods := map[types.UID]*v1.Pod{}
	podOf := func(labels map[string]string) *v1.Pod {
		uid := types.UID(labels[podlabels.PodUID])
		if uid == "" {
			return nil
		}
		if pods[uid] == nil {
			pods[uid] = &v1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: labels[podlabels.PodName], Namespace: labels[podlabels.PodNamespace], UID: uid},
			}
		}
		return pods[uid]
	}
	for _, sandbox := range sandboxes {
		podOf(sandbox.GetLabels())
	}
	for _, c := range containers {
		if pod := podOf(c.GetLabels()); pod != nil {
			pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{
				Name: c.GetMetadata().GetName(), Image: c.GetImage().GetImage(),
			})
		}
	}
	return slices.SortedFunc(maps.Values(pods), func(a, b *v1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
}
