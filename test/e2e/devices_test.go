package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/quartet-node/quartet/test/livenode"
	"github.com/quartet-node/quartet/test/require"
)

// deviceResource is the resource of Kubernetes' sample device plugin, which has the devices Dev-1 and Dev-2.
const deviceResource = "example.com/resource"

// startDevicePlugin starts the sample device plugin, and returns a function that kills it. The plugin knows only
// /var/lib/kubelet, so it has a mount namespace in which that is the node's root directory.
func startDevicePlugin(t *testing.T) (stop func()) {
	t.Helper()
	program := filepath.Join(livenode.Bin(), "tools", "sample-device-plugin")
	_, err := os.Stat(program)
	require.NoError(t, err)
	if err := os.MkdirAll("/var/run/cdi", 0o755); err != nil { // where the runtime looks for CDI devices
		t.Fatal(err)
	}
	awaitThat(t, "the Node has no device of an earlier plugin", func() bool {
		has := devicesOfNode(t)
		return !strings.HasPrefix(has, "2 of") && !strings.HasPrefix(has, "quartet get")
	})
	cmd := exec.Command("unshare", "--mount", "sh", "-c", `mount -t tmpfs none /var/lib && mkdir /var/lib/kubelet &&
mount --bind "$0" /var/lib/kubelet && exec "$1"`, node.Layout.Root(), program)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.Env = append(os.Environ(), "CDI_ENABLED=1")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // by the signal
		if t.Failed() {
			t.Logf("the device plugin wrote\n%s", output.String())
		}
	}
	t.Cleanup(stop)
	t.Cleanup(func() { // the plugin may have removed or not made them
		for _, file := range []string{"/var/run/cdi/example.com.json", "/tmp/Dev-1", "/tmp/Dev-2"} {
			_ = os.Remove(file)
		}
	})
	return stop
}

// devicesOfNode returns the allocatable amount and the capacity of the resource in the Node.
func devicesOfNode(t *testing.T) string {
	t.Helper()
	const template = `jsonpath={.status.allocatable.example\.com/resource} of {.status.capacity.example\.com/resource}`
	out, err := node.Command(t.Context(), "get", "node", "-o", template)
	if err != nil {
		return err.Error() // nodestatus may be down
	}
	return strings.TrimSpace(out)
}

func withDevice(name, amount string) string {
	return strings.Replace(manifest(name, 1, "sleep"), `args: ["sleep"]`,
		fmt.Sprintf(`args: ["sleep"], resources: {limits: {%s: %s}}`, deviceResource, amount), 1)
}

// deviceIn returns the device that a container sees: by the file that the plugin mounts, and by the variable of its CDI
// device. It waits until both are the same, because a container has started a moment before its program is executed.
func deviceIn(t *testing.T, p *v1.Pod) (seen string) {
	t.Helper()
	root := inside(t, p, "main")
	awaitThat(t, p.Name+" has the file and the variable of the same devices", func() bool {
		environment, err := os.ReadFile(filepath.Join(filepath.Dir(root), "environ"))
		if err != nil {
			t.Fatal(err)
		}
		seen = ""
		inEnvironment := ""
		for _, device := range []string{"Dev-1", "Dev-2"} {
			if _, err := os.Stat(filepath.Join(root, "tmp", device)); err == nil {
				seen += device
			}
			if bytes.Contains(environment, []byte("CDI_DEVICE=CDI-"+device+"\x00")) {
				inEnvironment += device
			}
		}
		return seen == inEnvironment
	})
	return seen
}

// listedDevices returns the devices of a pod in the pod-resources API.
func listedDevices(t *testing.T, pod string) string {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+filepath.Join(node.Layout.Root(), "pod-resources", "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // nothing is under way
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	answer, err := podresourcesv1.NewPodResourcesListerClient(conn).Get(ctx,
		&podresourcesv1.GetPodResourcesRequest{PodNamespace: "e2e", PodName: pod}, grpc.WaitForReady(true))
	if err != nil {
		return err.Error()
	}
	var ids []string
	for _, c := range answer.GetPodResources().GetContainers() {
		for _, d := range c.GetDevices() {
			ids = append(ids, d.GetResourceName()+"="+strings.Join(d.GetDeviceIds(), ","))
		}
	}
	return strings.Join(ids, " ")
}

// TestDevicesOfASamplePlugin runs Kubernetes' sample device plugin: pods see their devices, keep them when syncloop and
// the plugin are killed, and give them back.
func TestDevicesOfASamplePlugin(t *testing.T) {
	stop := startDevicePlugin(t)
	awaitThat(t, "the Node has the devices", func() bool { return devicesOfNode(t) == "2 of 2" })
	place(t, "devicefirst.yaml", withDevice("devicefirst", "1"))
	first := await(t, "devicefirst", "Ready", ready)
	had := deviceIn(t, first)
	if had != "Dev-1" || listedDevices(t, first.Name) != deviceResource+"=Dev-1" {
		t.Errorf("the pod sees %q, and the API lists %q, want Dev-1", had, listedDevices(t, first.Name))
	}
	for _, want := range []string{
		"Non-terminated Pods (", "\n  " + deviceResource + "  1 (50%)  ",
		"\n  " + deviceResource + "  Dev-1   <none>  e2e/" + first.Name + "  main\n",
	} {
		if got := quartet(t, "describe", "node"); !strings.Contains(got, want) {
			t.Errorf("quartet describe node has no %q:\n%s", want, got)
		}
	}
	await(t, "devicefirst", "the device in its status", func(p *v1.Pod) bool {
		if p == nil || len(p.Status.ContainerStatuses) == 0 {
			return false
		}
		has := p.Status.ContainerStatuses[0].AllocatedResourcesStatus
		return len(has) == 1 && has[0].Name == deviceResource && len(has[0].Resources) == 1 &&
			has[0].Resources[0].ResourceID == "Dev-1" && has[0].Resources[0].Health == v1.ResourceHealthStatusHealthy
	})

	killSyncloop(t)
	awaitThat(t, "the plugin is registered again", func() bool { return devicesOfNode(t) == "2 of 2" })
	place(t, "devicesecond.yaml", withDevice("devicesecond", "1"))
	second := await(t, "devicesecond", "Ready", ready)
	if got := deviceIn(t, second); got != "Dev-2" {
		t.Errorf("the second pod sees %q, want Dev-2", got)
	}
	place(t, "devicethird.yaml", withDevice("devicethird", "1"))
	third := await(t, "devicethird", "Failed", failed)
	if want := "requested number of devices unavailable for example.com/resource. Requested: 1, Available: 0"; third.Status.Reason !=
		"UnexpectedAdmissionError" || !strings.Contains(third.Status.Message, want) {
		t.Errorf("the third pod is %s: %s, want %s", third.Status.Reason, third.Status.Message, want)
	}

	stop()
	awaitThat(t, "nothing is allocatable", func() bool { return devicesOfNode(t) == "0 of 2" })
	killContainer(t, first)
	again := await(t, "devicefirst", "Ready again", func(p *v1.Pod) bool {
		return ready(p) && p.Status.ContainerStatuses[0].RestartCount == 1
	})
	if got := deviceIn(t, again); got != had {
		t.Errorf("without the plugin, the next container sees %q, want %s", got, had)
	}
	killSyncloop(t)
	awaitThat(t, "the next syncloop knows the device of the pod", func() bool { // it has removed old sockets by then
		return listedDevices(t, first.Name) == deviceResource+"="+had
	})
	startDevicePlugin(t)
	awaitThat(t, "the devices are back", func() bool { return devicesOfNode(t) == "2 of 2" })
	for _, before := range []*v1.Pod{again, second} {
		now := await(t, strings.TrimSuffix(before.Name, "-"+before.Spec.NodeName), "Ready", ready)
		if now.Status.ContainerStatuses[0].RestartCount != before.Status.ContainerStatuses[0].RestartCount {
			t.Errorf("%s was restarted", before.Name)
		}
	}
	takeAway(t, "devicefirst.yaml")
	awaitGone(t, "devicefirst")
	place(t, "devicefourth.yaml", withDevice("devicefourth", "1"))
	if got := deviceIn(t, await(t, "devicefourth", "Ready", ready)); got != had {
		t.Errorf("the fourth pod sees %q, want %s", got, had)
	}
	for _, name := range []string{"devicesecond", "devicefourth"} { // the next test needs their devices
		takeAway(t, name+".yaml")
		awaitGone(t, name)
	}
}

func failed(p *v1.Pod) bool { return p != nil && p.Status.Phase == v1.PodFailed }

// killContainer kills the process of a pod's container.
func killContainer(t *testing.T, p *v1.Pod) {
	t.Helper()
	var process int
	if _, err := fmt.Sscanf(inside(t, p, "main"), "/proc/%d/root", &process); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(process, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}
