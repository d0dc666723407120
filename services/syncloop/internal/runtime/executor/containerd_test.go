package executor_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podstatus"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/harness"
)

const containerdTimeout = 2 * time.Minute

// helloPod returns a pod of the hello image; each container runs one of its modes.
func helloPod(name string, init []string, modes ...string) *v1.Pod {
	pod := newPod()
	pod.Name, pod.UID = name, types.UID("uid-"+name)
	for i, mode := range append(slices.Clone(init), modes...) {
		c := v1.Container{
			Name: fmt.Sprintf("c%d-%s", i, strings.Fields(mode)[0]), Image: harness.HelloImage, ImagePullPolicy: v1.PullNever,
			Args: strings.Fields(mode), TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: v1.TerminationMessageReadFile,
		}
		if i < len(init) {
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
		} else {
			pod.Spec.Containers = append(pod.Spec.Containers, c)
		}
	}
	return pod
}

func newRealNode(t testing.TB) *node {
	t.Helper()
	containerd := harness.StartContainerd(t)
	n := connect(t, containerd.Endpoint, func(c *executor.Config) { c.Volumes = newVolumes(t, *c, volumes.Machine{}) })
	ctx, cancel := context.WithTimeout(context.Background(), containerdTimeout)
	t.Cleanup(cancel)
	n.ctx = ctx
	return n
}

// TestOnContainerd runs the whole life of a pod with an init container and two ordinary containers on a real runtime.
func TestOnContainerd(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a containerd")
	}
	n := newRealNode(t)
	pod := helloPod("hello", []string{"init"}, "serve", "sleep")
	main := &pod.Spec.Containers[0]
	main.Env = []v1.EnvVar{
		{Name: "IP", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "status.podIP"}}},
		{Name: "URL", Value: "http://$(IP)/"},
	}
	main.Resources.Limits = v1.ResourceList{
		v1.ResourceMemory: resource.MustParse("64Mi"), v1.ResourceCPU: resource.MustParse("500m"),
	}
	pod.Spec.Containers[1].SecurityContext = &v1.SecurityContext{
		ReadOnlyRootFilesystem: new(true), RunAsUser: new(int64(1000)), AllowPrivilegeEscalation: new(false),
		Capabilities: &v1.Capabilities{Drop: []v1.Capability{"ALL"}}, SeccompProfile: &v1.SeccompProfile{Type: v1.SeccompProfileTypeRuntimeDefault},
	}

	n.sync(pod)
	eventually.That(t, "the init container has ended", func() bool { return strings.Contains(n.describe(pod), "c0-init-0:exited(0)") })
	n.sync(pod)
	if got := n.describe(pod); !strings.Contains(got, "c1-serve-0:running") || !strings.Contains(got, "c2-sleep-0:running") {
		t.Fatalf("the runtime has %s, want text with %q and with %q", got, "c1-serve-0:running", "c2-sleep-0:running")
	}

	n.manager = executor.New(n.config)
	observed := n.observe(pod)
	if result := n.sync(pod); result.Wrote {
		t.Error("a new process changes a pod that needs no change")
	}
	status := podstatus.Generate(pod, observed, podstatus.Inputs{Now: time.Now()})
	if status.Phase != v1.PodRunning || status.PodIP == "" || !status.ContainerStatuses[0].Ready {
		t.Errorf("status %+v, want Phase %v, some PodIP and ContainerStatuses[0].Ready true", status, v1.PodRunning)
	}
	for _, name := range []string{"c1-serve", "c2-sleep"} { // a container that has logged a line handles signals, too
		eventually.That(t, name+" has a line in its log", func() bool {
			log, err := os.ReadFile(filepath.Join(n.config.PodLogsDir, "shop_hello_uid-hello", name, "0.log"))
			return err == nil && strings.Contains(string(log), " stdout F ")
		})
	}

	if err := n.manager.KillPod(n.ctx, pod, n.observe(pod), 30); err != nil {
		t.Fatal(err)
	}
	// Both end on SIGTERM within the grace period, so that none is killed.
	if got := n.describe(pod); strings.Contains(got, "running") || strings.Contains(got, "ready") || strings.Contains(got, "(137)") {
		t.Errorf("the runtime has %s, want text without %q, without %q and without %q", got, "running", "ready", "(137)")
	}
	if err := n.manager.CleanUpPod(n.ctx, pod, n.observe(pod)); err != nil {
		t.Fatal(err)
	}
	n.want(pod, "")
}

// BenchmarkOnePod measures the start of a pod with one container: by SyncPod, and by the bare CRI calls.
func BenchmarkOnePod(b *testing.B) {
	n := newRealNode(b)
	remove := func(pod *v1.Pod) {
		if err := n.manager.KillPod(n.ctx, pod, n.observe(pod), 1); err != nil {
			b.Fatal(err)
		}
		if err := n.manager.CleanUpPod(n.ctx, pod, n.observe(pod)); err != nil {
			b.Fatal(err)
		}
	}
	// They alternate, so that other load on the machine affects both.
	var bySync, bare time.Duration
	for i := range b.N {
		pod := helloPod(fmt.Sprintf("sync-%d", i), nil, "serve")
		start := time.Now()
		if _, err := n.manager.SyncPod(n.ctx, pod, &lifecyclev1.PodStatus{}); err != nil {
			b.Fatal(err)
		}
		bySync += time.Since(start)
		remove(pod)
		pod = helloPod(fmt.Sprintf("bare-%d", i), nil, "serve")
		start = time.Now()
		if err := n.bare(pod); err != nil {
			b.Fatal(err)
		}
		bare += time.Since(start)
		remove(pod)
	}
	b.ReportMetric(float64(bySync.Milliseconds())/float64(b.N), "ms/SyncPod")
	b.ReportMetric(float64(bare.Milliseconds())/float64(b.N), "ms/bare")
	b.ReportMetric(float64(bySync)/float64(bare), "ratio")
}

// bare starts a pod with one container by the three required calls only.
func (n *node) bare(pod *v1.Pod) error {
	labels := map[string]string{"io.kubernetes.pod.uid": string(pod.UID), "io.kubernetes.pod.name": pod.Name, "io.kubernetes.pod.namespace": pod.Namespace}
	sandbox := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID)},
		Hostname: pod.Name, Labels: labels, LogDirectory: filepath.Join(n.config.PodLogsDir, pod.Name),
		Linux: &runtimeapi.LinuxPodSandboxConfig{},
	}
	id, err := n.runtime.RunPodSandbox(n.ctx, sandbox, "")
	if err != nil {
		return err
	}
	container, err := n.runtime.CreateContainer(n.ctx, id, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Image: &runtimeapi.ImageSpec{Image: harness.HelloImage}, Labels: labels,
		Args: []string{"serve"}, LogPath: "c.log", Linux: &runtimeapi.LinuxContainerConfig{},
	}, sandbox)
	if err != nil {
		return err
	}
	return n.runtime.StartContainer(n.ctx, container)
}
