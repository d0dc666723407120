package executor_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/mount-utils"
	"k8s.io/utils/clock"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/boottime"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/claims"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/configobjects"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/hostips"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/runtimeclasses"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/servicelinks"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/gracebook"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/subpath"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
	"github.com/quartet-node/quartet/test/fakecri"
	"github.com/quartet-node/quartet/test/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testTimeout = time.Minute

// node is a runtime with a Manager. It observes pods as pleg does, by calling the runtime.
type node struct {
	t       testing.TB
	ctx     context.Context
	cri     *fakecri.Server
	runtime internalapi.RuntimeService
	manager *executor.Manager
	config  executor.Config
}

// newNode returns a node on a fake runtime that has image:1 and image:2.
func newNode(t testing.TB, change ...func(*executor.Config)) *node {
	t.Helper()
	fake := fakecri.New(t)
	fake.AddImage("image:1", 1)
	fake.AddImage("image:2", 1)
	n := connect(t, fake.Endpoint(), change...)
	n.cri = fake
	fake.ResetCalls()
	return n
}

func connect(t testing.TB, endpoint string, change ...func(*executor.Config)) *node {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	cri := harness.ConnectCRI(ctx, t, endpoint)
	dir := t.TempDir()
	resolvConf := filepath.Join(dir, "resolv.conf")
	if err := os.WriteFile(resolvConf, []byte("nameserver 192.0.2.53\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	addresses := hostips.New(func() []string { return []string{"192.0.2.1"} })
	addresses.Detect()
	config := executor.Config{
		Runtime: func() (internalapi.RuntimeService, error) { return cri.Runtime, nil },
		Images:  func() (internalapi.ImageManagerService, error) { return cri.Images, nil },
		Clock:   clock.RealClock{}, Endings: gracebook.InMemory(boottime.Now), Logger: slog.New(slog.DiscardHandler),
		NodeName: "node-1", HostIPs: addresses,
		Objects: configobjects.None{}, RuntimeClasses: runtimeclasses.ByName{}, Services: servicelinks.None{},
		Claims:     claims.None{},
		PodLogsDir: filepath.Join(dir, "logs"), RootDir: filepath.Join(dir, "root"),
		Kubelet: &kubeletconfigv1beta1.KubeletConfiguration{ResolverConfig: &resolvConf},
	}
	for _, f := range change {
		f(&config)
	}
	if config.Volumes == nil {
		config.Volumes = newVolumes(t, config, mount.NewFakeMounter(nil))
	}
	return &node{t: t, ctx: ctx, runtime: cri.Runtime, manager: executor.New(config), config: config}
}

// linked creates links instead of mounts of parts of volumes, which needs no root.
type symlinkMounter struct{}

func (symlinkMounter) Mounted(string) (bool, error) { return false, nil }
func (symlinkMounter) Detach(string) error          { return nil }
func (symlinkMounter) Bind(source *os.File, target string) error {
	return errors.Join(os.Remove(target), os.Symlink(source.Name(), target))
}

// newVolumes runs a volume manager in the folder of the pods' files. It has the kinds of volumes without dependencies,
// and those in more.
func newVolumes(
	t testing.TB,
	config executor.Config,
	mounter volumes.Mounter,
	more ...volumes.Plugin,
) *volumes.Manager {
	t.Helper()
	var subPaths subpath.Mounter = symlinkMounter{}
	if mounter == (volumes.Machine{}) {
		subPaths = subpath.Machine{}
	}
	manager, err := volumes.New(volumes.Config{
		PodsDir: filepath.Join(config.RootDir, "pods"), SubPaths: subPaths, Clock: clock.RealClock{}, Logger: config.Logger, Tracer: config.Tracer,
		Plugins: append([]volumes.Plugin{&volumes.EmptyDir{Mounter: mounter}, volumes.HostPath{}, volumes.Image{}}, more...),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = manager.Run(ctx) })
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	return manager
}

// newPod returns a pod of ordinary containers; a name that begins with "init-" is an init container.
func newPod(names ...string) *v1.Pod {
	grace := int64(30)
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: "u-1"},
		Spec: v1.PodSpec{
			RestartPolicy: v1.RestartPolicyAlways, TerminationGracePeriodSeconds: &grace, DNSPolicy: v1.DNSDefault,
		},
	}
	for _, name := range names {
		c := v1.Container{Name: name, Image: "image:1", ImagePullPolicy: v1.PullIfNotPresent}
		if strings.HasPrefix(name, "init-") {
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
		} else {
			pod.Spec.Containers = append(pod.Spec.Containers, c)
		}
	}
	return pod
}

// observe returns the runtime's state of a pod, newest first.
func (n *node) observe(pod *v1.Pod) *lifecyclev1.PodStatus {
	n.t.Helper()
	status := &lifecyclev1.PodStatus{Uid: string(pod.UID), Name: pod.Name, Namespace: pod.Namespace}
	selector := map[string]string{podlabels.PodUID: string(pod.UID)}
	sandboxes, err := n.runtime.ListPodSandbox(n.ctx, &runtimeapi.PodSandboxFilter{LabelSelector: selector})
	if err != nil {
		n.t.Fatal(err)
	}
	for _, item := range sandboxes {
		response, err := n.runtime.PodSandboxStatus(n.ctx, item.GetId(), false)
		if err != nil {
			n.t.Fatal(err)
		}
		s := response.GetStatus()
		sandbox := &lifecyclev1.Sandbox{
			Id: s.GetId(), Attempt: s.GetMetadata().GetAttempt(), CreatedAt: timestamppb.New(time.Unix(0, s.GetCreatedAt())),
			State: lifecyclev1.SandboxState_SANDBOX_STATE_NOT_READY, Labels: s.GetLabels(), Annotations: s.GetAnnotations(),
			RuntimeHandler: s.GetRuntimeHandler(),
			HostNetwork:    s.GetLinux().GetNamespaces().GetOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE,
		}
		if s.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY {
			sandbox.State = lifecyclev1.SandboxState_SANDBOX_STATE_READY
			sandbox.Ips = []string{s.GetNetwork().GetIp()}
			status.Ips = sandbox.Ips
		}
		status.Sandboxes = append(status.Sandboxes, sandbox)
	}
	slices.SortFunc(status.Sandboxes, func(a, b *lifecyclev1.Sandbox) int {
		return b.CreatedAt.AsTime().Compare(a.CreatedAt.AsTime())
	})
	containers, err := n.runtime.ListContainers(n.ctx, &runtimeapi.ContainerFilter{LabelSelector: selector})
	if err != nil {
		n.t.Fatal(err)
	}
	for _, item := range containers {
		status.Containers = append(status.Containers, n.observeContainer(item))
	}
	slices.SortFunc(status.Containers, func(a, b *lifecyclev1.Container) int {
		return b.CreatedAt.AsTime().Compare(a.CreatedAt.AsTime())
	})
	return status
}

func (n *node) observeContainer(item *runtimeapi.Container) *lifecyclev1.Container {
	n.t.Helper()
	response, err := n.runtime.ContainerStatus(n.ctx, item.GetId(), false)
	if err != nil {
		n.t.Fatal(err)
	}
	s := response.GetStatus()
	at := func(nanos int64) *timestamppb.Timestamp {
		if nanos == 0 {
			return nil
		}
		return timestamppb.New(time.Unix(0, nanos))
	}
	states := map[runtimeapi.ContainerState]lifecyclev1.ContainerState{
		runtimeapi.ContainerState_CONTAINER_CREATED: lifecyclev1.ContainerState_CONTAINER_STATE_CREATED,
		runtimeapi.ContainerState_CONTAINER_RUNNING: lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING,
		runtimeapi.ContainerState_CONTAINER_EXITED:  lifecyclev1.ContainerState_CONTAINER_STATE_EXITED,
		runtimeapi.ContainerState_CONTAINER_UNKNOWN: lifecyclev1.ContainerState_CONTAINER_STATE_UNKNOWN,
	}
	return &lifecyclev1.Container{
		Id: s.GetId(), SandboxId: item.GetPodSandboxId(), Name: s.GetMetadata().GetName(),
		Attempt: s.GetMetadata().GetAttempt(),
		State:   states[s.GetState()], CreatedAt: at(s.GetCreatedAt()), StartedAt: at(s.GetStartedAt()),
		FinishedAt: at(s.GetFinishedAt()),
		ExitCode:   s.GetExitCode(), Reason: s.GetReason(), Labels: s.GetLabels(), Annotations: s.GetAnnotations(),
		LogPath: s.GetLogPath(),
	}
}

// sync runs SyncPod on the current observation, and fails the test on an error.
func (n *node) sync(pod *v1.Pod) executor.Result {
	n.t.Helper()
	result, err := n.manager.SyncPod(n.ctx, pod, n.observe(pod))
	if err != nil {
		n.t.Fatalf("SyncPod: %v", err)
	}
	return result
}

// describe returns the runtime's state of a pod as one line, oldest first.
func (n *node) describe(pod *v1.Pod) string {
	n.t.Helper()
	status := n.observe(pod)
	var words []string
	for _, s := range slices.Backward(status.Sandboxes) {
		state := "dead"
		if s.State == lifecyclev1.SandboxState_SANDBOX_STATE_READY {
			state = "ready"
		}
		words = append(words, fmt.Sprintf("sandbox-%d:%s", s.Attempt, state))
	}
	for _, c := range slices.Backward(status.Containers) {
		state := strings.ToLower(strings.TrimPrefix(c.State.String(), "CONTAINER_STATE_"))
		if c.State == lifecyclev1.ContainerState_CONTAINER_STATE_EXITED {
			state = fmt.Sprintf("exited(%d)", c.ExitCode)
		}
		words = append(words, fmt.Sprintf("%s-%d:%s", c.Name, podlabels.RestartOf(c.Annotations, c.Attempt).Count, state))
	}
	return strings.Join(words, " ")
}

func (n *node) want(pod *v1.Pod, want string) {
	n.t.Helper()
	if got := n.describe(pod); got != want {
		n.t.Fatalf("\nthe runtime has %s\nwant            %s", got, want)
	}
}

// id returns the runtime's ID of the newest container of a name.
func (n *node) id(pod *v1.Pod, name string) string {
	n.t.Helper()
	for _, c := range n.observe(pod).Containers {
		if c.Name == name {
			return c.Id
		}
	}
	n.t.Fatalf("the runtime has no container %q", name)
	return ""
}

// created returns the configuration of the newest container of a name.
func (n *node) created(pod *v1.Pod, name string) *runtimeapi.ContainerConfig {
	n.t.Helper()
	id := n.id(pod, name)
	for _, c := range n.cri.Containers() {
		if c.ID == id {
			return c.Config
		}
	}
	n.t.Fatalf("the runtime has lost %s", id)
	return nil
}

// methods returns the calls that change something, and those for images, in their order.
func (n *node) methods() string {
	var names []string
	for _, call := range n.cri.Calls() {
		switch call.Method {
		case "ListPodSandbox", "ListContainers", "ContainerStatus", "Version", "Status":
		default:
			names = append(names, call.Method)
		}
	}
	return strings.Join(names, " ")
}
