package chaos

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/internal/podlabels"
)

// runtime inspects the runtime and harms its containers.
type runtime struct {
	client runtimeapi.RuntimeServiceClient
}

// dialRuntime returns a client that reconnects as soon as a killed runtime is back: cri-client gives up when it cannot
// connect.
func dialRuntime(t *testing.T, endpoint string) runtime {
	t.Helper()
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return runtime{client: runtimeapi.NewRuntimeServiceClient(conn)}
}

func (r runtime) containers(ctx context.Context) ([]*runtimeapi.Container, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := r.client.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	return resp.GetContainers(), err
}

func (r runtime) sandboxes(ctx context.Context) ([]*runtimeapi.PodSandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := r.client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	return resp.GetItems(), err
}

func runningTwice(list []*runtimeapi.Container) []string {
	running := map[string]string{}
	var twice []string
	for _, c := range list {
		if c.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
			continue
		}
		name := c.GetLabels()[podlabels.PodNamespace] + "/" + c.GetLabels()[podlabels.PodName] + "/" + c.GetLabels()[podlabels.ContainerName]
		one := fmt.Sprintf("%s of pod %s", c.GetId(), c.GetLabels()[podlabels.PodUID])
		if other, ok := running[name]; ok {
			twice = append(twice, name+": "+other+" and "+one)
		}
		running[name] = one
	}
	return twice
}

// check returns the differences between the runtime and the node's directories and the pods that the node lists.
func (n *testNode) check(ctx context.Context, r runtime, wanted map[string]kind) []string {
	list, err := n.listPods(ctx)
	if err != nil {
		return []string{err.Error()}
	}
	problems, pods := checkPods(list, wanted)
	sandboxes, err := r.sandboxes(ctx)
	if err != nil {
		return append(problems, err.Error())
	}
	containers, err := r.containers(ctx)
	if err != nil {
		return append(problems, err.Error())
	}
	problems = append(problems, checkSandboxes(sandboxes, pods)...)
	problems = append(problems, checkContainers(containers, pods)...)
	return append(problems, n.checkDirectories(pods)...)
}

// checkPods returns the errors in the node's list of pods, and the pods by UID.
func checkPods(list []v1.Pod, wanted map[string]kind) (problems []string, pods map[string]*v1.Pod) {
	pods = map[string]*v1.Pod{}
	listed := map[string]bool{}
	for i := range list {
		pod := &list[i]
		pods[string(pod.UID)] = pod
		name, _, _ := strings.Cut(pod.Name, "-")
		listed[name] = true
		k, ok := wanted[name]
		switch {
		case !ok:
			problems = append(problems, "the node lists "+pod.Name+", which is not wanted")
		case k.name == "job" && pod.Status.Phase != v1.PodSucceeded, k.name != "job" && !isReady(pod):
			problems = append(problems, fmt.Sprintf("pod %s (%s) is %s, reason %q %q, containers %s",
				pod.Name, pod.UID, pod.Status.Phase, pod.Status.Reason, pod.Status.Message, states(pod)))
		}
	}
	for name := range wanted {
		if !listed[name] {
			problems = append(problems, "the node does not list "+name)
		}
	}
	return problems, pods
}

func states(pod *v1.Pod) string {
	var out []string
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		out = append(out, c.Name+": "+c.State.String())
	}
	return strings.Join(out, "; ")
}

func isReady(pod *v1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.PodReady && c.Status == v1.ConditionTrue
	})
}

func checkSandboxes(sandboxes []*runtimeapi.PodSandbox, pods map[string]*v1.Pod) (problems []string) {
	ready := map[string]int{}
	for _, s := range sandboxes {
		uid := s.GetMetadata().GetUid()
		if pods[uid] == nil {
			problems = append(problems, fmt.Sprintf("sandbox %s (%s) of pod %s (%s) is left over", s.GetId(), s.GetState(), s.GetMetadata().GetName(), uid))
		}
		if s.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY {
			ready[uid]++
		}
	}
	for uid, pod := range pods {
		want := 1
		if pod.Status.Phase == v1.PodSucceeded {
			want = 0
		}
		if ready[uid] != want {
			problems = append(problems, fmt.Sprintf("pod %s (%s) has %d ready sandboxes, want %d", pod.Name, uid, ready[uid], want))
		}
	}
	return problems
}

func checkContainers(containers []*runtimeapi.Container, pods map[string]*v1.Pod) (problems []string) {
	problems = runningTwice(containers)
	running := map[string]int{}
	for _, c := range containers {
		uid, name := c.GetLabels()[podlabels.PodUID], c.GetLabels()[podlabels.ContainerName]
		switch {
		case pods[uid] == nil:
			problems = append(problems, fmt.Sprintf("container %s (%s, %s) of pod %s is left over", c.GetId(), name, c.GetState(), uid))
		case c.GetState() == runtimeapi.ContainerState_CONTAINER_CREATED:
			problems = append(problems, fmt.Sprintf("container %s (%s) of pod %s was created and never started", c.GetId(), name, pods[uid].Name))
		case c.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING:
			running[uid]++
		}
	}
	for uid, pod := range pods {
		want := len(pod.Spec.Containers)
		if pod.Status.Phase == v1.PodSucceeded {
			want = 0
		}
		if running[uid] != want {
			problems = append(problems, fmt.Sprintf("pod %s (%s) has %d running containers, want %d", pod.Name, uid, running[uid], want))
		}
	}
	return problems
}

// checkDirectories returns the directories that remain of removed pods.
func (n *testNode) checkDirectories(pods map[string]*v1.Pod) (problems []string) {
	for _, dir := range []string{filepath.Join(n.Layout.Root(), "pods"), n.Layout.PodLogs()} {
		entries, err := os.ReadDir(dir)
		if err != nil && !os.IsNotExist(err) {
			return append(problems, err.Error())
		}
		for _, entry := range entries {
			uid := entry.Name()[strings.LastIndex(entry.Name(), "_")+1:]
			if pods[uid] == nil {
				problems = append(problems, "left over: "+filepath.Join(dir, entry.Name()))
			}
		}
	}
	return problems
}
