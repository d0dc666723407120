package e2e

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/internal/podlabels"
)

// rebootWithout does what a restart of the machine does to pods: while no process of the node runs, everything of them
// in the runtime goes. Then the processes start.
func rebootWithout(t *testing.T, pods ...*v1.Pod) {
	t.Helper()
	node.StopServicesMeanwhile(t)
	conn, err := grpc.NewClient("unix://"+node.Layout.RuntimeSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // nothing is under way
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	runtime := runtimeapi.NewRuntimeServiceClient(conn)
	for _, p := range pods {
		sandboxes, err := runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{
			LabelSelector: map[string]string{podlabels.PodUID: string(p.UID)},
		}})
		if err != nil || len(sandboxes.GetItems()) == 0 {
			t.Fatalf("pod %s has no sandbox: %v", p.Name, err)
		}
		for _, s := range sandboxes.GetItems() {
			_, stopped := runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: s.GetId()})
			_, removed := runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: s.GetId()})
			if err := errors.Join(stopped, removed); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := node.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestPodsKeepTheirDevicesAcrossARestartOfTheMachine: the pods wait for their plugin, and then have the devices that
// they had, whichever of them starts first.
func TestPodsKeepTheirDevicesAcrossARestartOfTheMachine(t *testing.T) {
	stop := startDevicePlugin(t)
	awaitThat(t, "the Node has the devices", func() bool { return devicesOfNode(t) == "2 of 2" })
	names := []string{"rebootz", "reboota"} // the other way round by name
	var pods []*v1.Pod
	had := map[string]string{}
	for _, name := range names {
		place(t, name+".yaml", withDevice(name, "1"))
		p := await(t, name, "Ready", ready)
		pods, had[name] = append(pods, p), deviceIn(t, p)
	}
	if had["rebootz"] != "Dev-1" || had["reboota"] != "Dev-2" {
		t.Fatalf("the pods have %v, want Dev-1 for the first one", had)
	}
	stop()
	rebootWithout(t, pods...)
	for _, name := range names {
		await(t, name, "waiting for its plugin", func(p *v1.Pod) bool {
			return p != nil && p.Status.Phase == v1.PodPending && strings.Contains(describe(p), "DevicesNotReady")
		})
	}
	startDevicePlugin(t)
	for _, name := range names {
		if got := deviceIn(t, await(t, name, "Ready again", ready)); got != had[name] {
			t.Errorf("after the restart %s sees %q, want %s", name, got, had[name])
		}
		if got := listedDevices(t, pods[0].Name); got != deviceResource+"=Dev-1" {
			t.Errorf("the pod-resources API lists %q for the first pod, want Dev-1", got)
		}
	}
}
