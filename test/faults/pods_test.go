package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubelet/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/livenode"
)

const namespace = "faults"

// full returns the name of a static pod: that of its manifest followed by the node's name.
func full(name string) string { return name + "-" + nodeName }

// place places a pod with one container, "main", that runs the example program until SIGTERM; change may change it.
// When the test ends the pod is removed, and nothing may be left of it.
func place(t *testing.T, name string, change ...func(*v1.Pod)) {
	t.Helper()
	pod := &v1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: v1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To[int64](1),
			Containers:                    []v1.Container{{Name: "main", Image: livenode.Image, Args: []string{"sleep"}}},
		},
	}
	for _, f := range change {
		f(pod)
	}
	manifest, err := yaml.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	if err := node.Place(name+".yaml", string(manifest)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, name) })
}

// takeAway removes a pod's manifest.
func takeAway(t *testing.T, name string) {
	t.Helper()
	if err := node.TakeAway(name + ".yaml"); err != nil {
		t.Fatal(err)
	}
}

// remove removes a pod and waits until nothing of it is left: on the node, in the runtime, on the disk.
func remove(t *testing.T, name string) {
	t.Helper()
	if err := node.TakeAway(name + ".yaml"); err != nil {
		t.Error(err)
	}
	var left []string
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		if left = leftOf(ctx, name); len(left) == 0 {
			return
		}
		select {
		case <-ctx.Done():
			t.Errorf("%v after pod %s was taken away there is left: %s", patience, name, strings.Join(left, ", "))
			return
		case <-time.After(interval):
		}
	}
}

// leftOf returns what is left of a pod.
func leftOf(ctx context.Context, name string) (left []string) {
	if pods, err := node.engine.ListPods(ctx, &enginev1.ListPodsRequest{}); err != nil {
		left = append(left, err.Error())
	} else {
		for _, p := range pods.GetPods() {
			if pod := (&v1.Pod{}); pod.Unmarshal(p.GetPod()) == nil && pod.Name == full(name) {
				left = append(left, "the pod itself, "+p.GetWorkerState().String())
			}
		}
	}
	for _, s := range sandboxes(ctx, name) {
		left = append(left, fmt.Sprintf("sandbox %s (%v)", s.GetId(), s.GetState()))
	}
	for _, c := range containers(ctx, name) {
		left = append(left, fmt.Sprintf("container %s (%v)", c.GetId(), c.GetState()))
	}
	logs, err := filepath.Glob(filepath.Join(node.Layout.PodLogs(), namespace+"_"+full(name)+"_*"))
	if err != nil {
		left = append(left, err.Error())
	}
	return append(left, logs...)
}

// sandboxes and containers return those of a pod, directly from the runtime.
func sandboxes(ctx context.Context, name string) []*runtimeapi.PodSandbox {
	answer, err := node.runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{
		LabelSelector: map[string]string{types.KubernetesPodNameLabel: full(name)},
	}})
	if err != nil {
		return []*runtimeapi.PodSandbox{{Id: err.Error()}}
	}
	return answer.GetItems()
}

func containers(ctx context.Context, name string) []*runtimeapi.Container {
	answer, err := node.runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		LabelSelector: map[string]string{types.KubernetesPodNameLabel: full(name)},
	}})
	if err != nil {
		return []*runtimeapi.Container{{Id: err.Error()}}
	}
	return answer.GetContainers()
}

// awaitThat polls until a condition holds.
func awaitThat(t *testing.T, what string, ok func() bool) {
	t.Helper()
	eventually.Wait{Patience: patience, Interval: interval}.That(t, what, ok)
}

// pod returns a pod as the node lists it; nil when it does not.
func pod(ctx context.Context, name string) (*v1.Pod, error) {
	items, err := node.Pods(ctx)
	if err != nil {
		return nil, err
	}
	for i := range items {
		if items[i].Namespace == namespace && items[i].Name == full(name) {
			return &items[i], nil
		}
	}
	return nil, nil
}

// await polls until a pod meets a condition, which what describes.
func await(t *testing.T, name, what string, ok func(*v1.Pod) bool) *v1.Pod {
	t.Helper()
	var last *v1.Pod
	end := time.Now().Add(patience)
	for {
		p, err := pod(t.Context(), name)
		if err == nil && p != nil {
			if last = p; ok(p) {
				return p
			}
		}
		if time.Now().After(end) {
			t.Fatalf("pod %s is not %s after %v; error %v; last seen:\n%s", name, what, patience, err, describe(t, last))
		}
		<-time.After(interval)
	}
}

// awaitOne waits until a pod is Ready and the runtime has exactly one ready sandbox and one running container of each
// name for it.
func awaitOne(t *testing.T, name string) *v1.Pod {
	t.Helper()
	p := await(t, name, "Ready", livenode.Ready)
	var wrong string
	end := time.Now().Add(patience)
	for {
		if wrong = moreOrLessThanOne(t.Context(), p, name); wrong == "" {
			return await(t, name, "Ready", livenode.Ready)
		}
		if time.Now().After(end) {
			t.Fatalf("pod %s is not as expected in time: %s", name, wrong)
		}
		<-time.After(interval)
	}
}

func moreOrLessThanOne(ctx context.Context, p *v1.Pod, name string) string {
	ready, running := 0, map[string]int{}
	for _, s := range sandboxes(ctx, name) {
		if s.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY {
			ready++
		}
	}
	for _, c := range containers(ctx, name) {
		switch c.GetState() {
		case runtimeapi.ContainerState_CONTAINER_RUNNING:
			running[c.GetMetadata().GetName()]++
		case runtimeapi.ContainerState_CONTAINER_CREATED:
			return "container " + c.GetId() + " was created and is not started"
		case runtimeapi.ContainerState_CONTAINER_EXITED, runtimeapi.ContainerState_CONTAINER_UNKNOWN:
		}
	}
	for _, c := range p.Spec.Containers {
		if running[c.Name] != 1 {
			return fmt.Sprintf("%d containers %s run", running[c.Name], c.Name)
		}
	}
	if ready != 1 {
		return fmt.Sprintf("%d sandboxes are ready", ready)
	}
	return ""
}

// awaitGone waits until a removed pod is gone from the node.
func awaitGone(t *testing.T, name string) {
	t.Helper()
	awaitThat(t, "pod "+name+" is gone", func() bool { return len(leftOf(t.Context(), name)) == 0 })
}

// only returns the status of a pod's only container.
func only(p *v1.Pod) v1.ContainerStatus {
	if len(p.Status.ContainerStatuses) == 0 {
		return v1.ContainerStatus{}
	}
	return p.Status.ContainerStatuses[0]
}

// waits matches a pod whose container waits for a reason, with a message that contains all parts.
func waits(reason string, parts ...string) func(*v1.Pod) bool {
	return func(p *v1.Pod) bool {
		w := only(p).State.Waiting
		return w != nil && w.Reason == reason && hasAll(w.Message, parts)
	}
}

func hasAll(text string, parts []string) bool {
	return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) })
}

// awaitEvent waits until the node has an event of a pod, with a message that contains all parts.
func awaitEvent(t *testing.T, name, kind, reason string, parts ...string) {
	t.Helper()
	var reported []string
	end := time.Now().Add(patience)
	for {
		reported = nil
		list, err := events(t.Context())
		for _, e := range list {
			if e.InvolvedObject.Name != full(name) {
				continue
			}
			if e.Type == kind && e.Reason == reason && hasAll(e.Message, parts) {
				return
			}
			reported = append(reported, fmt.Sprintf("%s %s: %s", e.Type, e.Reason, e.Message))
		}
		if time.Now().After(end) {
			t.Errorf("pod %[4]s has no event %[1]s %[2]s with %[3]q; error %[5]v; there are:\n%s", kind, reason, parts, name, err, strings.Join(reported, "\n"))
			return
		}
		<-time.After(interval)
	}
}

// events returns the node's events so far.
func events(ctx context.Context) (list []v1.Event, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := node.engine.WatchPodEvents(ctx, &enginev1.WatchPodEventsRequest{})
	for err == nil {
		var answer *enginev1.WatchPodEventsResponse
		if answer, err = stream.Recv(); err != nil {
			break
		}
		switch answer.GetFrame().GetKind() { //nolint:exhaustive // the others say nothing of what there is
		case streamv1.Kind_KIND_SYNCED:
			return list, nil
		case streamv1.Kind_KIND_SNAPSHOT:
			var e v1.Event
			err = e.Unmarshal(answer.GetEvent().GetEvent())
			list = append(list, e)
		}
	}
	return list, err
}

// awaitWorkerError waits until the pod's worker reports an error.
func awaitWorkerError(t *testing.T, name, part string) {
	t.Helper()
	awaitThat(t, "the worker of "+name+" says "+part, func() bool {
		answer, err := node.engine.ListWorkers(t.Context(), &enginev1.ListWorkersRequest{})
		return err == nil && slices.ContainsFunc(answer.GetWorkers(), func(w *enginev1.Worker) bool {
			return w.GetName() == full(name) && strings.Contains(w.GetLastError(), part)
		})
	})
}

func describe(t *testing.T, p *v1.Pod) string {
	t.Helper()
	if p == nil {
		return "(never)"
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	if err := enc.Encode(p.Status); err != nil {
		t.Error(err)
	}
	return b.String()
}

// kill ends a container by a signal to its process.
func kill(t *testing.T, name string) {
	t.Helper()
	p := await(t, name, "Ready", livenode.Ready)
	_, id, _ := strings.Cut(only(p).ContainerID, "://")
	if _, err := node.runtime.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
}

// folder creates a directory for the test that containers can mount.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(node.Layout.StateDir(), "given-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
	})
	return dir
}
