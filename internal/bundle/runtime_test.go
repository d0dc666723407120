package bundle_test

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/internal/bundle"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/harness"
)

func client(t *testing.T, c *harness.Containerd) runtimeapi.RuntimeServiceClient {
	t.Helper()
	conn, err := grpc.NewClient(c.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return runtimeapi.NewRuntimeServiceClient(conn)
}

func runPod(ctx context.Context, t *testing.T, c *harness.Containerd, name string) (sandbox, container string) {
	t.Helper()
	cri := client(t, c)
	logs := filepath.Join(c.Layout.PodLogs(), name)
	if err := os.MkdirAll(logs, 0o700); err != nil {
		t.Fatal(err)
	}
	config := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: name},
		LogDirectory: logs,
		Linux:        &runtimeapi.LinuxPodSandboxConfig{},
	}
	pod, err := cri.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: config})
	if err != nil {
		t.Fatalf("running the sandbox: %v", err)
	}
	created, err := cri.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: pod.GetPodSandboxId(),
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "hello"},
			Image:    &runtimeapi.ImageSpec{Image: harness.HelloImage},
			Args:     []string{"serve"},
			LogPath:  "hello.log",
			Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
				Seccomp: &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
			}},
		},
		SandboxConfig: config,
	})
	if err != nil {
		t.Fatalf("creating the container: %v", err)
	}
	if _, err := cri.StartContainer(
		ctx,
		&runtimeapi.StartContainerRequest{ContainerId: created.GetContainerId()},
	); err != nil {
		t.Fatalf("starting the container: %v", err)
	}
	return pod.GetPodSandboxId(), created.GetContainerId()
}

// A pod gets an address of the node's own network, runs with a seccomp profile, writes a log, and keeps running without
// containerd.
func TestRuntimeRunsAPodThatOutlivesContainerd(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c := harness.StartContainerd(t)
	sandbox, container := runPod(ctx, t, c, "outlives")

	status, err := client(t, c).PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: sandbox})
	if err != nil {
		t.Fatal(err)
	}
	ip, err := netip.ParseAddr(status.GetStatus().GetNetwork().GetIp())
	if err != nil || !netip.MustParsePrefix("10.88.0.0/16").Contains(ip) {
		t.Errorf("the pod's address is %q (%v), want one of 10.88.0.0/16", status.GetStatus().GetNetwork().GetIp(), err)
	}
	eventually.In(ctx, t, "the container has logged", func() bool {
		log, err := os.ReadFile(filepath.Join(c.Layout.PodLogs(), "outlives", "hello.log"))
		return err == nil && strings.Contains(string(log), "serving on")
	})

	c.Kill(t)
	c.Start(t)
	after, err := client(t, c).ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: container})
	if err != nil {
		t.Fatal(err)
	}
	if got := after.GetStatus().GetState(); got != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("after containerd was killed the container is %v", got)
	}
}

// Where the machine uses 10.88.0.0/16, as podman's bridge does, pods get addresses of another network. Another
// preparation of the runtime keeps that network, because running pods keep their addresses.
func TestRuntimeFindsANetworkBesidePodmans(t *testing.T) {
	_, err := exec.LookPath("ip")
	harness.Require(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	// The test stays on a thread with a network namespace of its own, which containerd and the plugins inherit. It is
	// never unlocked: the thread ends with the test.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"link set lo up", "link add podman0 type bridge", "addr add 10.88.0.1/16 dev podman0", "link set podman0 up"} {
		if out, err := exec.Command("ip", strings.Fields(command)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", command, err, out)
		}
	}
	c := harness.StartContainerd(t)
	addressOf := func(name string) netip.Addr {
		sandbox, _ := runPod(ctx, t, c, name)
		status, err := client(t, c).PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: sandbox})
		if err != nil {
			t.Fatal(err)
		}
		ip, err := netip.ParseAddr(status.GetStatus().GetNetwork().GetIp())
		if err != nil {
			t.Fatal(err)
		}
		return ip
	}
	first := addressOf("first")
	if !netip.MustParsePrefix("10.188.0.0/16").Contains(first) {
		t.Errorf("the pod has the address %s, want one of 10.188.0.0/16", first)
	}
	if out, err := exec.Command("ip", "link", "del", "podman0").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c.Kill(t)
	c.Prepare(t)
	c.Start(t)
	if second := addressOf("second"); !netip.PrefixFrom(first, 23).Masked().Contains(second) {
		t.Errorf("after a restart a pod has the address %s, and before %s", second, first)
	}
}

// An image that the runtime has already is not imported again, which would be a large part of a start. An image without
// its pin, or another one of the same name, is.
func TestImagesAreImportedOnce(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c := harness.StartContainerd(t)
	b := bundle.New(bundle.Config{Layout: c.Layout, BinDir: harness.BinDir(t), Logger: slog.Default()})
	ctr := filepath.Join(c.Layout.Runtime(), "bin", "ctr")
	away := ctr + ".away"
	if err := os.Rename(ctr, away); err != nil {
		t.Fatal(err)
	}
	if err := b.ImportImages(ctx); err != nil {
		t.Errorf("the images are there: %v", err)
	}
	for what, args := range map[string][]string{
		"without the pin":           {"label", harness.HelloImage, "io.cri-containerd.pinned="},
		"another image of the name": {"tag", "--force", bundle.PauseImage, harness.HelloImage},
	} {
		args = append([]string{"--address", c.Layout.RuntimeSocket(), "--namespace", "k8s.io", "images"}, args...)
		if out, err := exec.Command(away, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", what, err, out)
		}
		eventually.In(ctx, t, what+" it is imported", func() bool {
			err := b.ImportImages(ctx)
			return err != nil && strings.Contains(err.Error(), "importing "+harness.HelloImage)
		})
		if err := os.Rename(away, ctr); err != nil {
			t.Fatal(err)
		}
		if err := b.ImportImages(ctx); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if err := os.Rename(ctr, away); err != nil {
			t.Fatal(err)
		}
		if err := b.ImportImages(ctx); err != nil {
			t.Errorf("%s, imported again: %v", what, err)
		}
	}
}

// Two runtimes on one machine share neither containers nor addresses.
func TestTwoRuntimesDoNotMeet(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	a, b := harness.StartContainerd(t), harness.StartContainerd(t)
	podOfA, _ := runPod(ctx, t, a, "same-name")
	podOfB, _ := runPod(ctx, t, b, "same-name")
	ip := func(c *harness.Containerd, pod string) string {
		status, err := client(t, c).PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod})
		if err != nil {
			t.Fatal(err)
		}
		return status.GetStatus().GetNetwork().GetIp()
	}
	if ip(a, podOfA) == ip(b, podOfB) {
		t.Errorf("both pods have the address %s", ip(a, podOfA))
	}
	list, err := client(t, a).ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(list.GetItems()); n != 1 {
		t.Errorf("the first runtime has %d pods, want its own one", n)
	}
}
