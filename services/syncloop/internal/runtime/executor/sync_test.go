package executor_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/terminationmessages"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/fakecri"
)

func TestANewPodTakesTheFewestCalls(t *testing.T) {
	n := newNode(t)
	pod := newPod("a")
	result, err := n.manager.SyncPod(n.ctx, pod, nil)
	if err != nil || !result.Wrote || len(result.Reasons) > 0 || result.RetryAfter != 0 {
		t.Fatalf("result %+v, error %v", result, err)
	}
	// PodSandboxStatus returns the address for the hosts file.
	if got, want := n.methods(), "RunPodSandbox ImageStatus PodSandboxStatus CreateContainer StartContainer"; got != want {
		t.Errorf("calls %s, want %s", got, want)
	}
	n.want(pod, "sandbox-0:ready a-0:running")
	n.cri.ResetCalls()
	if result := n.sync(pod); result.Wrote || result.RetryAfter != 0 {
		t.Errorf("a pod that needs no change is changed: %+v", result)
	}
}

func TestInitContainersRunOneAfterAnotherBeforeTheOthers(t *testing.T) {
	n := newNode(t)
	n.cri.OnStart(func(c fakecri.Container) (int32, bool) { return 0, strings.HasPrefix(c.Name, "init-") })
	pod := newPod("init-1", "init-2", "a", "b")
	n.sync(pod)
	n.want(pod, "sandbox-0:ready init-1-0:exited(0)")
	n.sync(pod)
	n.want(pod, "sandbox-0:ready init-1-0:exited(0) init-2-0:exited(0)")
	n.sync(pod)
	got := n.describe(pod)
	if !strings.Contains(got, "a-0:running") || !strings.Contains(got, "b-0:running") {
		t.Fatalf("the runtime has %s, want text with %q and with %q", got, "a-0:running", "b-0:running")
	}
	if result := n.sync(pod); result.Wrote {
		t.Error("nothing was left to be done")
	}
}

func TestARestartedAgentGoesOnFromTheRuntimeAlone(t *testing.T) {
	n := newNode(t)
	pod := newPod("a", "b")
	n.sync(pod)
	id := n.id(pod, "a")
	n.manager = executor.New(n.config)
	if result := n.sync(pod); result.Wrote {
		t.Error("the new process changes a pod that needs no change")
	}
	n.cri.Exit(id, 1)
	n.sync(pod)
	if got := n.describe(pod); !strings.Contains(got, "a-0:exited(1)") || !strings.Contains(got, "a-1:running") {
		t.Errorf("the runtime has %s, want text with %q and with %q", got, "a-0:exited(1)", "a-1:running")
	}
}

func TestCrashesBackOffAlsoInANewProcess(t *testing.T) {
	n := newNode(t)
	n.cri.OnStart(func(fakecri.Container) (int32, bool) { return 1, true })
	pod := newPod("a")
	n.sync(pod)
	n.sync(pod) // the first restart is immediate
	n.manager = executor.New(n.config)
	result := n.sync(pod)
	n.want(pod, "sandbox-0:ready a-0:exited(1) a-1:exited(1)")
	reason := result.Reasons["a"]
	if reason.Reason != "CrashLoopBackOff" || reason.Message != "back-off 10s restarting failed container=a pod=web_shop(u-1)" {
		t.Errorf("reason %+v, want Reason %q and Message %q",
			reason, "CrashLoopBackOff", "back-off 10s restarting failed container=a pod=web_shop(u-1)")
	}
	if result.Wrote || result.RetryAfter <= 0 || result.RetryAfter > 10*time.Second {
		t.Errorf("result %+v, want a retry within 10 s", result)
	}
}

func TestAChangedContainerIsReplacedAlone(t *testing.T) {
	n := newNode(t)
	pod := newPod("a", "b")
	n.sync(pod)
	before := n.id(pod, "b")
	pod.Spec.Containers[0].Image = "image:2"
	replaced := n.id(pod, "a")
	n.sync(pod)
	if got := n.describe(pod); !strings.Contains(got, "a-0:exited(143)") || !strings.Contains(got, "a-1:running") || !strings.Contains(got, "b-0:running") {
		t.Errorf("the runtime has %s, want text with %q, with %q and with %q",
			got, "a-0:exited(143)", "a-1:running", "b-0:running")
	}
	if !n.config.Endings.Replaced(pod.UID, replaced) || n.config.Endings.Replaced(pod.UID, before) {
		t.Error("the replaced container is not recorded")
	}
	if n.id(pod, "b") != before {
		t.Error("the other container was replaced, too")
	}
}

func TestALostSandboxIsRecreated(t *testing.T) {
	n := newNode(t)
	pod := newPod("a")
	n.sync(pod)
	n.cri.KillSandbox(n.observe(pod).Sandboxes[0].Id)
	n.sync(pod)
	got := n.describe(pod)
	if !strings.HasPrefix(got, "sandbox-0:dead sandbox-1:ready") || !strings.HasSuffix(got, "a-1:running") {
		t.Fatalf("the runtime has %s, want text beginning with %q and ending with %q",
			got, "sandbox-0:dead sandbox-1:ready", "a-1:running")
	}
	if n.cri.Count("StopPodSandbox", "") == 0 {
		t.Error("the network of the dead sandbox is not torn down")
	}
}

func TestASandboxThatCannotBeMade(t *testing.T) {
	n := newNode(t)
	n.cri.Fail("RunPodSandbox", "", 1, status.Error(codes.Unknown, "no network"))
	pod := newPod("a")
	result, err := n.manager.SyncPod(n.ctx, pod, nil)
	if err == nil || result.SandboxError == nil || !strings.Contains(err.Error(), "no network") {
		t.Fatalf("result %+v, error %v", result, err)
	}
	n.sync(pod)
	n.want(pod, "sandbox-0:ready a-0:running")
}

func TestImages(t *testing.T) {
	for _, test := range []struct {
		name, image string
		policy      v1.PullPolicy
		pullFails   bool
		wantReason  string
		wantPulls   int
	}{
		{"present", "image:1", v1.PullIfNotPresent, false, "", 0},
		{"absent", "other:1", v1.PullIfNotPresent, false, "", 1},
		{"always", "image:2", v1.PullAlways, false, "", 1},
		{"never, present", "image:1", v1.PullNever, false, "", 0},
		{"never, absent", "other:1", v1.PullNever, false, "ErrImageNeverPull", 0},
		{"fails", "other:1", v1.PullIfNotPresent, true, "ErrImagePull", 1},
		{"no name", "Not An Image", v1.PullIfNotPresent, false, "InvalidImageName", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := newNode(t)
			n.cri.AddImage("image:2", 1)
			if test.pullFails {
				n.cri.Fail("PullImage", "", -1, status.Error(codes.Unknown, "no such host"))
			}
			pod := newPod("a", "b")
			pod.Spec.Containers[0].Image, pod.Spec.Containers[0].ImagePullPolicy = test.image, test.policy
			result, err := n.manager.SyncPod(n.ctx, pod, nil)
			if got := result.Reasons["a"].Reason; got != test.wantReason || (err != nil) != (test.wantReason != "") {
				t.Errorf("reason %q, error %v; want %q", got, err, test.wantReason)
			}
			if got := n.cri.Count("PullImage", ""); got != test.wantPulls {
				t.Errorf("%d pulls, want %d", got, test.wantPulls)
			}
			if got := n.describe(pod); !strings.Contains(got, "b-0:running") {
				t.Errorf("the other container is delayed: %s", got)
			}
		})
	}
}

func TestFailedPullsBackOff(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	n := newNode(t, func(c *executor.Config) { c.Clock = clock })
	n.cri.Fail("PullImage", "", 2, status.Error(codes.Unknown, "no such host"))
	pod := newPod("a")
	pod.Spec.Containers[0].Image = "other:1"
	pulls := func(wantPulls int, wantReason string, wantRetry time.Duration, wantErr bool) {
		t.Helper()
		result, err := n.manager.SyncPod(n.ctx, pod, n.observe(pod))
		if got := n.cri.Count("PullImage", ""); got != wantPulls || result.Reasons["a"].Reason != wantReason ||
			result.RetryAfter != wantRetry || (err != nil) != wantErr {
			t.Fatalf("%d pulls, reason %+v, retry after %s, error %v", got, result.Reasons["a"], result.RetryAfter, err)
		}
		// A container that waits for an image changes nothing, so that the pod must not be observed again.
		if wantReason == "ImagePullBackOff" && result.Wrote {
			t.Error("a container that waits for its image counts as a change")
		}
	}
	pulls(1, "ErrImagePull", 10*time.Second, true)
	clock.Step(4 * time.Second)
	pulls(1, "ImagePullBackOff", 6*time.Second, false)
	clock.Step(6 * time.Second)
	pulls(2, "ErrImagePull", 20*time.Second, true)
	clock.Step(20 * time.Second)
	pulls(3, "", 0, false)
	n.want(pod, "sandbox-0:ready a-0:running")
}

func TestPodsThatStartTogetherAskForAnImageOnce(t *testing.T) {
	n := newNode(t)
	gate := n.cri.Hang("ImageStatus", "")
	const pods = 10
	errs := make(chan error, pods)
	for i := range pods {
		pod := newPod("a")
		pod.Name = fmt.Sprintf("web-%d", i)
		pod.UID = types.UID(fmt.Sprintf("u-%d", i))
		go func() {
			_, err := n.manager.SyncPod(n.ctx, pod, nil)
			errs <- err
		}()
	}
	eventually.That(t, "all pods have a sandbox", func() bool { return n.cri.Count("RunPodSandbox", "") == pods })
	eventually.That(t, "the image is asked for", func() bool { return gate.Waiting() > 0 })
	gate.Open()
	for range pods {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if got := n.cri.Count("ImageStatus", ""); got != 1 {
		t.Errorf("asked %d times, want 1", got)
	}
}

func TestCreateAndStartFailuresHaveTheirReasons(t *testing.T) {
	for method, want := range map[string]string{"CreateContainer": "CreateContainerError", "StartContainer": "RunContainerError"} {
		t.Run(method, func(t *testing.T) {
			n := newNode(t)
			n.cri.Fail(method, "", 1, status.Error(codes.Unknown, "boom"))
			pod := newPod("a")
			result, err := n.manager.SyncPod(n.ctx, pod, nil)
			if err == nil || result.Reasons["a"] != (executor.ContainerReason{Reason: want, Message: "boom"}) {
				t.Fatalf("reasons %v, error %v", result.Reasons, err)
			}
			n.sync(pod)
			if got := n.describe(pod); !strings.HasSuffix(got, ":running") {
				t.Errorf("not started on the next try: %s", got)
			}
		})
	}
}

func TestSyncEndsSoonWhenItsContextDoes(t *testing.T) {
	for _, method := range []string{"RunPodSandbox", "ImageStatus", "CreateContainer", "StartContainer"} {
		t.Run(method, func(t *testing.T) {
			n := newNode(t)
			gate := n.cri.Hang(method, "")
			ctx, cancel := context.WithCancel(n.ctx)
			ended := make(chan error, 1)
			go func() {
				_, err := n.manager.SyncPod(ctx, newPod("a"), nil)
				ended <- err
			}()
			eventually.That(t, "the call hangs", func() bool { return gate.Waiting() > 0 })
			cancel()
			if err := <-ended; err == nil {
				t.Error("no error")
			}
			gate.Open()
		})
	}
}

func TestFilesOfAPod(t *testing.T) {
	n := newNode(t)
	pod := newPod("a")
	pod.Spec.Containers[0].TerminationMessagePath = "/dev/termination-log"
	pod.Spec.Containers[0].TerminationMessagePolicy = v1.TerminationMessageFallbackToLogsOnError
	pod.Spec.HostAliases = []v1.HostAlias{{IP: "192.0.2.9", Hostnames: []string{"db"}}}
	n.sync(pod)
	response, err := n.runtime.ContainerStatus(n.ctx, n.id(pod, "a"), false)
	if err != nil {
		t.Fatal(err)
	}
	mounts := map[string]string{}
	for _, m := range response.GetStatus().GetMounts() {
		mounts[m.GetContainerPath()] = m.GetHostPath()
	}
	hosts, err := os.ReadFile(mounts["/etc/hosts"])
	if err != nil {
		t.Fatal(err)
	}
	ip := n.observe(pod).Ips[0]
	if text := string(hosts); !strings.Contains(text, ip+"\tweb\n") || !strings.Contains(text, "192.0.2.9\tdb\n") {
		t.Errorf("hosts file:\n%s\nwant text with with %q and with with %q", hosts, ip+"\tweb\n", "192.0.2.9\tdb\n")
	}
	if err := os.WriteFile(mounts["/dev/termination-log"], []byte("out of cheese"), 0o600); err != nil {
		t.Fatal(err)
	}
	id := n.id(pod, "a")
	n.cri.Exit(id, 1)
	messages := terminationmessages.Reader{RootDir: n.config.RootDir, Logger: n.config.Logger}
	if got := messages.Read(pod, n.observe(pod).GetContainers())[id]; got != "out of cheese" {
		t.Errorf("termination message %q, want %q", got, "out of cheese")
	}
	if err := os.Truncate(mounts["/dev/termination-log"], 0); err != nil {
		t.Fatal(err)
	}
	observed := n.observe(pod)
	observed.Containers[0].LogPath = filepath.Join(n.config.PodLogsDir, "a.log")
	log := "2026-05-01T12:00:00.000000000Z stdout F first line\n2026-05-01T12:00:00.000000001Z stderr P half \n2026-05-01T12:00:00.000000002Z stderr F a line\n"
	if err := os.WriteFile(observed.Containers[0].LogPath, []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, want := messages.Read(pod, observed.GetContainers())[id], "first line\nhalf a line\n"; got != want {
		t.Errorf("from the log: %q, want %q", got, want)
	}
}

// TestAContainerStartsWithoutItsTerminationMessage checks that a disk on which the file of the message cannot be made
// does not keep a container from its start, as with the kubelet.
func TestAContainerStartsWithoutItsTerminationMessage(t *testing.T) {
	n := newNode(t)
	pod := newPod("a")
	pod.Spec.Containers[0].TerminationMessagePath = "/dev/termination-log"
	inTheWay := filepath.Join(n.config.RootDir, "pods", string(pod.UID), "containers")
	if err := os.MkdirAll(filepath.Dir(inTheWay), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(inTheWay, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n.sync(pod)
	response, err := n.runtime.ContainerStatus(n.ctx, n.id(pod, "a"), false)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range response.GetStatus().GetMounts() {
		if m.GetContainerPath() == "/dev/termination-log" {
			t.Errorf("the container has a mount at %s, which cannot be made", m.GetContainerPath())
		}
	}
}

func TestRestartCountGoesOnAfterTheRuntimeLostItsRecord(t *testing.T) {
	n := newNode(t)
	pod := newPod("a")
	dir := filepath.Join(n.config.PodLogsDir, "shop_web_u-1", "a")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"3.log", "2.log.20260501-120000.gz", "notes"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n.sync(pod)
	n.want(pod, "sandbox-0:ready a-4:running")
}

func TestSandboxIsMadeAsThePodAsks(t *testing.T) {
	n := newNode(t)
	pod := newPod("a")
	pod.Spec.HostNetwork = true
	n.sync(pod)
	response, err := n.runtime.PodSandboxStatus(n.ctx, n.observe(pod).Sandboxes[0].Id, false)
	if err != nil {
		t.Fatal(err)
	}
	got := response.GetStatus().GetLinux().GetNamespaces().GetOptions().GetNetwork()
	if got != runtimeapi.NamespaceMode_NODE {
		t.Errorf("network namespace %v, want %v", got, runtimeapi.NamespaceMode_NODE)
	}
	pod.Spec.HostNetwork = false
	n.sync(pod)
	if got := n.describe(pod); !strings.HasPrefix(got, "sandbox-0:dead sandbox-1:ready") {
		t.Errorf("another network mode: the runtime has %s", got)
	}
}
