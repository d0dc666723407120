package criproxy_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubelet/pkg/types"

	"github.com/quartet-node/quartet/test/criproxy"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/fakecri"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const image = "example.test/main:1"

// rig is a fake runtime with a proxy in front of it, and a client of the proxy.
type rig struct {
	ctx     context.Context //nolint:containedctx // of the test
	fake    *fakecri.Server
	proxy   *criproxy.Proxy
	runtime runtimeapi.RuntimeServiceClient
	images  runtimeapi.ImageServiceClient
}

func newRig(t *testing.T) *rig {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	r := &rig{ctx: ctx, fake: fakecri.New(t)}
	r.fake.AddImage(image, 1)
	dir, err := os.MkdirTemp("", "criproxy") // a socket's path has to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if r.proxy, err = criproxy.Start(r.fake.Endpoint(), filepath.Join(dir, "proxy.sock")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.proxy.Close(); err != nil {
			t.Error(err)
		}
	})
	conn := r.dial(t)
	r.runtime, r.images = runtimeapi.NewRuntimeServiceClient(conn), runtimeapi.NewImageServiceClient(conn)
	return r
}

func (r *rig) dial(t *testing.T) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(r.proxy.Endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return conn
}

func config(pod string) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: pod, Namespace: "default", Uid: "uid-" + pod},
		Labels:   map[string]string{types.KubernetesPodUIDLabel: "uid-" + pod, types.KubernetesPodNameLabel: pod},
	}
}

func (r *rig) sandbox(pod string) (string, error) {
	answer, err := r.runtime.RunPodSandbox(r.ctx, &runtimeapi.RunPodSandboxRequest{Config: config(pod)})
	return answer.GetPodSandboxId(), err
}

func (r *rig) container(pod, sandbox, name string) (string, error) {
	answer, err := r.runtime.CreateContainer(r.ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: sandbox, SandboxConfig: config(pod),
		Config: &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: name},
			Image: &runtimeapi.ImageSpec{Image: image}},
	})
	return answer.GetContainerId(), err
}

func (r *rig) start(id string) error {
	_, err := r.runtime.StartContainer(r.ctx, &runtimeapi.StartContainerRequest{ContainerId: id})
	return err
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	if status.Code(err) != want {
		t.Errorf("got %v, want %v", err, want)
	}
}

func TestWithoutFaultsNothingIsChanged(t *testing.T) {
	r := newRig(t)
	id, err := r.sandbox("web")
	must(t, err)
	container, err := r.container("web", id, "main")
	must(t, err)
	must(t, r.start(container))
	got, err := r.images.ImageStatus(r.ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: image}})
	must(t, err)
	if got.GetImage().GetId() == "" {
		t.Error("the answer of the image service is empty")
	}
	_, err = r.runtime.ContainerStatus(r.ctx, &runtimeapi.ContainerStatusRequest{ContainerId: "none"})
	wantCode(t, err, codes.NotFound)
	err = r.dial(t).Invoke(r.ctx, "/runtime.v2.Unheard/Of", &runtimeapi.VersionRequest{}, &runtimeapi.VersionResponse{})
	wantCode(t, err, codes.Unimplemented)

	const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	_, err = r.runtime.Version(metadata.AppendToOutgoingContext(r.ctx, "traceparent", traceparent),
		&runtimeapi.VersionRequest{})
	must(t, err)
	if calls := r.fake.Calls(); calls[len(calls)-1].Traceparent != traceparent {
		t.Errorf("the metadata of a call is lost: %+v, want Traceparent %v", calls[len(calls)-1], traceparent)
	}

	short, cancel := context.WithTimeout(r.ctx, 50*time.Millisecond)
	defer cancel()
	gate := r.fake.Hang("Status", "")
	defer gate.Open()
	_, err = r.runtime.Status(short, &runtimeapi.StatusRequest{})
	wantCode(t, err, codes.DeadlineExceeded)
	eventually.That(t, "the runtime hears that the client has given up", func() bool { return gate.Waiting() == 0 })
}

func TestAStreamOfAnswersGoesThrough(t *testing.T) {
	r := newRig(t)
	stream, err := r.runtime.GetContainerEvents(r.ctx, &runtimeapi.GetEventsRequest{})
	must(t, err)
	_, err = r.sandbox("web")
	must(t, err)
	for _, want := range []runtimeapi.ContainerEventType{runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT,
		runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT} {
		event, err := stream.Recv()
		must(t, err)
		if event.GetContainerEventType() != want {
			t.Errorf("got the event %v, want %v", event, want)
		}
	}
	r.fake.BreakEvents(status.Error(codes.Aborted, "over"))
	_, err = stream.Recv()
	wantCode(t, err, codes.Aborted)
}

func TestAFaultIsForThoseItNames(t *testing.T) {
	r := newRig(t)
	failing := r.proxy.Fail("RunPodSandbox", codes.Internal, criproxy.For("web"), criproxy.Times(2))
	for range 2 {
		_, err := r.sandbox("web")
		wantCode(t, err, codes.Internal)
	}
	web, err := r.sandbox("web")
	must(t, err)
	other, err := r.sandbox("other")
	must(t, err)
	if got := r.fake.Count("RunPodSandbox", "uid-web"); got != 1 || failing.Met() != 2 {
		t.Errorf("the runtime saw %d calls and the fault %d, want 1 and 2", got, failing.Met())
	}

	// The proxy knows the IDs from the answers.
	ids := map[string]string{}
	for _, name := range []string{"main", "side"} {
		ids[name], err = r.container("web", web, name)
		must(t, err)
	}
	lifted := r.proxy.Fail("StartContainer", codes.Unknown, criproxy.For("uid-web"), criproxy.Container("main"))
	wantCode(t, r.start(ids["main"]), codes.Unknown)
	must(t, r.start(ids["side"]))
	lifted.Lift()
	must(t, r.start(ids["main"]))
	r.proxy.Fail("StopPodSandbox", codes.Unknown, criproxy.For("web"))
	_, err = r.runtime.StopPodSandbox(r.ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: other})
	must(t, err)
	_, err = r.runtime.StopPodSandbox(r.ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: web})
	wantCode(t, err, codes.Unknown)
	r.proxy.Fail("ImageStatus", codes.Unknown, criproxy.Image("example.test/bad:1"))
	_, err = r.images.ImageStatus(r.ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: image}})
	must(t, err)

	for method, want := range map[string]int{"RunPodSandbox": 3, "CreateContainer": 2, "StartContainer": 3, "StopPodSandbox": 1} {
		if got := r.proxy.Count(method, criproxy.For("web")); got != want {
			t.Errorf("%d calls of %s about the pod were counted, want %d", got, method, want)
		}
	}
	if got := r.proxy.Count("StartContainer", criproxy.Container("side")); got != 1 {
		t.Errorf("%d starts of the other container were counted, want 1", got)
	}
}

func TestIDsOfBeforeAreKnownFromALook(t *testing.T) {
	r := newRig(t)
	sandbox, ids := r.fake.RunPod(fakecri.Pod{UID: "uid-old", Name: "old", Containers: []string{"main"}})
	_, err := r.runtime.ListPodSandbox(r.ctx, &runtimeapi.ListPodSandboxRequest{})
	must(t, err)
	_, err = r.runtime.ListContainers(r.ctx, &runtimeapi.ListContainersRequest{})
	must(t, err)
	r.proxy.Fail("PodSandboxStatus", codes.Unknown, criproxy.For("old"))
	_, err = r.runtime.PodSandboxStatus(r.ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: sandbox})
	wantCode(t, err, codes.Unknown)
	r.proxy.Fail("ContainerStatus", codes.Unknown, criproxy.For("old"), criproxy.Container("main"))
	_, err = r.runtime.ContainerStatus(r.ctx, &runtimeapi.ContainerStatusRequest{ContainerId: ids["main"]})
	wantCode(t, err, codes.Unknown)
	r.proxy.Fail("ListContainers", codes.Unknown, criproxy.For("old"))
	_, err = r.runtime.ListContainers(r.ctx, &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{LabelSelector: map[string]string{types.KubernetesPodUIDLabel: "uid-old"}},
	})
	wantCode(t, err, codes.Unknown)
}

func TestALostAnswerIsThatOfACallThatWasMade(t *testing.T) {
	r := newRig(t)
	r.proxy.Fail("RunPodSandbox", codes.Unavailable, criproxy.AfterCall(), criproxy.Times(1))
	_, err := r.sandbox("web")
	wantCode(t, err, codes.Unavailable)
	sandboxes, err := r.runtime.ListPodSandbox(r.ctx, &runtimeapi.ListPodSandboxRequest{})
	must(t, err)
	if len(sandboxes.GetItems()) != 1 {
		t.Fatalf("the runtime has %d sandboxes, want 1", len(sandboxes.GetItems()))
	}
	// The proxy has seen the answer, and the client has not.
	hung := r.proxy.Hang("StopPodSandbox", criproxy.For("web"), criproxy.AfterCall())
	short, cancel := context.WithTimeout(r.ctx, 200*time.Millisecond)
	defer cancel()
	_, err = r.runtime.StopPodSandbox(short,
		&runtimeapi.StopPodSandboxRequest{PodSandboxId: sandboxes.GetItems()[0].GetId()})
	wantCode(t, err, codes.DeadlineExceeded)
	if got := r.fake.Count("StopPodSandbox", ""); got != 1 || hung.Met() != 1 {
		t.Errorf("the runtime saw %d calls and the fault %d, want 1 and 1", got, hung.Met())
	}
}

func TestACallHangsUntilItIsLetGoAndADelayIsALongerCall(t *testing.T) {
	r := newRig(t)
	hung := r.proxy.Hang("RunPodSandbox", criproxy.For("web"))
	ended := make(chan error, 1)
	go func() {
		_, err := r.sandbox("web")
		ended <- err
	}()
	eventually.That(t, "the call hangs", func() bool { return hung.Waiting() == 1 })
	_, err := r.sandbox("other")
	must(t, err)
	if r.proxy.InFlight("RunPodSandbox") != 1 || r.fake.Count("RunPodSandbox", "uid-web") != 0 {
		t.Error("the call that hangs is not under way, or came to the runtime")
	}
	hung.Lift()
	must(t, <-ended)
	eventually.That(t, "nothing is under way", func() bool { return r.proxy.InFlight("RunPodSandbox") == 0 && hung.Waiting() == 0 })

	const delay = 100 * time.Millisecond
	r.proxy.Delay("Version", delay, criproxy.Times(1))
	begun := time.Now()
	_, err = r.runtime.Version(r.ctx, &runtimeapi.VersionRequest{})
	must(t, err)
	if took := time.Since(begun); took < delay {
		t.Errorf("a call that is delayed by %v took %v", delay, took)
	}
}

func TestABrokenConnectionBreaksEveryCallOnItAndNoOther(t *testing.T) {
	r := newRig(t)
	mine, err := r.runtime.GetContainerEvents(r.ctx, &runtimeapi.GetEventsRequest{})
	must(t, err)
	theirs, err := runtimeapi.NewRuntimeServiceClient(r.dial(t)).GetContainerEvents(r.ctx, &runtimeapi.GetEventsRequest{})
	must(t, err)
	eventually.That(t, "both streams are open", func() bool { return r.fake.EventSubscribers() == 2 })
	r.proxy.Drop("RunPodSandbox", criproxy.AfterCall(), criproxy.Times(1))
	_, err = r.sandbox("web")
	wantCode(t, err, codes.Unavailable)
	for err == nil || status.Code(err) == codes.OK {
		_, err = mine.Recv()
	}
	wantCode(t, err, codes.Unavailable)
	if event, err := theirs.Recv(); err != nil ||
		event.GetContainerEventType() != runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT {
		t.Errorf("another connection was broken too: %v, %v", event, err)
	}
	eventually.That(t, "the client is connected again", func() bool {
		_, err := r.runtime.Version(r.ctx, &runtimeapi.VersionRequest{})
		return err == nil
	})
}

func TestARuntimeThatIsAwayAndComesBack(t *testing.T) {
	r := newRig(t)
	r.fake.Stop()
	_, err := r.runtime.Version(r.ctx, &runtimeapi.VersionRequest{})
	wantCode(t, err, codes.Unavailable)
	must(t, r.fake.Start())
	eventually.That(t, "the runtime answers again", func() bool {
		_, err := r.runtime.Version(r.ctx, &runtimeapi.VersionRequest{})
		return err == nil
	})
}

func TestAStartWithoutADirectoryFails(t *testing.T) {
	if _, err := criproxy.Start("unix:///nowhere.sock", filepath.Join(t.TempDir(), "no", "such", "dir.sock")); err == nil {
		t.Error("a socket that cannot be made is no error")
	}
}
