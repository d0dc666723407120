package fakecri_test

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubelet/pkg/types"

	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/fakecri"
	"github.com/quartet-node/quartet/test/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// connect returns a runtime service on the fake, as the services of the project use it.
func connect(t *testing.T, fake *fakecri.Server) (context.Context, *cri.Client, internalapi.RuntimeService) {
	t.Helper()
	ctx, cancel := context.WithTimeout(cri.Quiet(t.Context()), time.Minute)
	t.Cleanup(cancel)
	c := harness.ConnectCRI(ctx, t, fake.Endpoint())
	return ctx, c.Client, c.Runtime
}

func sandboxConfig(uid string, attempt uint32) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "default", Uid: uid, Attempt: attempt},
		Labels:   map[string]string{types.KubernetesPodUIDLabel: uid},
	}
}

func TestAContainerLivesAndDiesByTheCRI(t *testing.T) {
	fake := fakecri.New(t)
	ctx, client, runtime := connect(t, fake)
	images, err := client.Images(ctx)
	if err != nil {
		t.Fatal(err)
	}
	sandbox := sandboxConfig("uid-1", 0)
	sandboxID, err := runtime.RunPodSandbox(ctx, sandbox, "")
	if err != nil {
		t.Fatal(err)
	}
	config := &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: "app"},
		Image: &runtimeapi.ImageSpec{Image: "example/app"}}
	if _, err := runtime.CreateContainer(ctx, sandboxID, config, sandbox); status.Code(err) != codes.NotFound {
		t.Errorf("a container of an image that is not there: got %v, want NotFound", err)
	}
	if _, err := images.PullImage(ctx, config.Image, nil, sandbox); err != nil {
		t.Fatal(err)
	}
	containerID, err := runtime.CreateContainer(ctx, sandboxID, config, sandbox)
	if err != nil {
		t.Fatal(err)
	}
	if err := runtime.StartContainer(ctx, containerID); err != nil {
		t.Fatal(err)
	}
	fake.ExitWithReason(containerID, 137, "OOMKilled")
	got, err := runtime.ContainerStatus(ctx, containerID, false)
	if err != nil {
		t.Fatal(err)
	}
	st := got.GetStatus()
	if st.State != runtimeapi.ContainerState_CONTAINER_EXITED || st.ExitCode != 137 || st.Reason != "OOMKilled" ||
		st.FinishedAt <= st.StartedAt {
		t.Errorf("after an exit the status is %v", st)
	}
	for range 2 {
		if err := runtime.RemovePodSandbox(ctx, sandboxID); err != nil {
			t.Errorf("removing a sandbox can be repeated, got %v", err)
		}
	}
	if _, err := runtime.ContainerStatus(ctx, containerID, false); status.Code(err) != codes.NotFound {
		t.Errorf("status of a removed container: got %v, want NotFound", err)
	}
}

func TestNamesAreTakenAndAddressesGoWithTheNetwork(t *testing.T) {
	fake := fakecri.New(t)
	ctx, _, runtime := connect(t, fake)
	id, err := runtime.RunPodSandbox(ctx, sandboxConfig("uid-1", 0), "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := runtime.RunPodSandbox(ctx, sandboxConfig("uid-1", 0), ""); err == nil {
		t.Error("a second sandbox of the same name and attempt was not refused")
	}
	if _, err := runtime.RunPodSandbox(ctx, sandboxConfig("uid-1", 1), ""); err != nil {
		t.Errorf("the next attempt was refused: %v", err)
	}
	address := func() string {
		resp, err := runtime.PodSandboxStatus(ctx, id, false)
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetStatus().GetNetwork().GetIp()
	}
	if address() == "" {
		t.Error("a ready sandbox has no address")
	}
	fake.KillSandbox(id)
	if got := address(); got != "" {
		t.Errorf("a sandbox that is not ready still has the address %s", got)
	}
}

func TestStopTakesTheGracePeriodOfAContainerThatIgnoresTerm(t *testing.T) {
	fake := fakecri.New(t)
	ctx, _, runtime := connect(t, fake)
	fake.IgnoreTerm("deaf")
	_, ids := fake.RunPod(fakecri.Pod{UID: "uid-1", Containers: []string{"deaf", "polite"}})
	begin := time.Now()
	if err := runtime.StopContainer(ctx, ids["polite"], 50); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > 30*time.Second {
		t.Errorf("stopping a container that heeds SIGTERM took %v", took)
	}
	begin = time.Now()
	if err := runtime.StopContainer(ctx, ids["deaf"], 1); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took < time.Second {
		t.Errorf("stopping a container that ignores SIGTERM took %v, less than its grace period", took)
	}
	for _, c := range fake.Containers() {
		if want := map[string]int32{"deaf": 137, "polite": 143}[c.Name]; c.ExitCode != want {
			t.Errorf("%s exited with %d, want %d", c.Name, c.ExitCode, want)
		}
	}
}

func TestCallsFailHangAndAreCountedByID(t *testing.T) {
	fake := fakecri.New(t)
	ctx, _, runtime := connect(t, fake)
	a, _ := fake.RunPod(fakecri.Pod{UID: "a"})
	b, _ := fake.RunPod(fakecri.Pod{UID: "b"})
	fake.Fail("PodSandboxStatus", a, 1, status.Error(codes.Internal, "scripted"))
	if _, err := runtime.PodSandboxStatus(ctx, a, false); status.Code(err) != codes.Internal {
		t.Errorf("the scripted failure did not come: %v", err)
	}
	if _, err := runtime.PodSandboxStatus(ctx, a, false); err != nil {
		t.Errorf("the failure came more often than once: %v", err)
	}
	gate := fake.Hang("PodSandboxStatus", a)
	released := make(chan error, 1)
	go func() {
		_, err := runtime.PodSandboxStatus(ctx, a, false)
		released <- err
	}()
	eventually.That(t, "the call hangs", func() bool { return gate.Waiting() == 1 })
	if _, err := runtime.PodSandboxStatus(ctx, b, false); err != nil {
		t.Errorf("a call for another sandbox failed: %v", err)
	}
	gate.Open()
	if err := <-released; err != nil {
		t.Errorf("the call that had hung failed: %v", err)
	}
	if got := fake.Count("PodSandboxStatus", a); got != 3 {
		t.Errorf("%d calls for a were counted, want 3", got)
	}
	if got := fake.Count("PodSandboxStatus", ""); got != 4 {
		t.Errorf("%d calls were counted, want 4", got)
	}
}

func TestEventsComeWithABacklogForTheFirstSubscriber(t *testing.T) {
	fake := fakecri.New(t)
	ctx, client, _ := connect(t, fake)
	_, ids := fake.RunPod(fakecri.Pod{UID: "uid-1", Containers: []string{"app"}})
	events := make(chan *runtimeapi.ContainerEventResponse, 100)
	ended := make(chan error, 1)
	go func() {
		ended <- client.Events(ctx, func() {}, func(e *runtimeapi.ContainerEventResponse) { events <- e })
	}()
	for i, want := range []runtimeapi.ContainerEventType{
		runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT,
		runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT,
	} {
		if got := (<-events).ContainerEventType; got != want {
			t.Errorf("event %d of the backlog is %v, want %v", i, got, want)
		}
	}
	fake.Kill(ids["app"])
	if e := <-events; e.ContainerEventType != runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT ||
		e.GetPodSandboxStatus().GetMetadata().GetUid() != "uid-1" {
		t.Errorf("an exit is reported as %v, want ContainerEventType %v and PodSandboxStatus.Metadata.Uid %q",
			e, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, "uid-1")
	}
	fake.SetEventsSupported(false)
	if err := <-ended; status.Code(err) != codes.Unimplemented {
		t.Errorf("the stream ended with %v, want Unimplemented", err)
	}
	if err := client.Events(ctx, func() {}, nil); status.Code(err) != codes.Unimplemented {
		t.Errorf("a runtime without events answers %v, want Unimplemented", err)
	}
}

func TestStateSurvivesARestart(t *testing.T) {
	fake := fakecri.New(t)
	ctx, _, runtime := connect(t, fake)
	fake.RunPod(fakecri.Pod{UID: "uid-1", Containers: []string{"app"}})
	fake.Stop()
	if _, err := runtime.ListContainers(ctx, nil); status.Code(err) != codes.Unavailable {
		t.Errorf("a stopped runtime answers %v, want Unavailable", err)
	}
	if err := fake.Start(); err != nil {
		t.Fatal(err)
	}
	eventually.That(t, "the client has reconnected", func() bool {
		containers, err := runtime.ListContainers(ctx, nil)
		return err == nil && len(containers) == 1 && containers[0].State == runtimeapi.ContainerState_CONTAINER_RUNNING
	})
}

func TestOnStartMakesContainersEnd(t *testing.T) {
	fake := fakecri.New(t)
	fake.OnStart(func(c fakecri.Container) (int32, bool) { return 3, c.Name == "init" })
	fake.RunPod(fakecri.Pod{UID: "uid-1", Containers: []string{"init", "app"}})
	for _, c := range fake.Containers() {
		exited := c.State == runtimeapi.ContainerState_CONTAINER_EXITED
		if exited != (c.Name == "init") || (exited && c.ExitCode != 3) {
			t.Errorf("container %s is %v with code %d", c.Name, c.State, c.ExitCode)
		}
	}
}
