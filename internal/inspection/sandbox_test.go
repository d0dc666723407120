package inspection_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/inspection"
)

// oneSandbox is a runtime with one sandbox, which counts its inspections.
type oneSandbox struct {
	internalapi.RuntimeService

	state     runtimeapi.PodSandboxState
	network   runtimeapi.NamespaceMode
	ip        string
	inspected int
}

func (r *oneSandbox) ListPodSandbox(
	context.Context, *runtimeapi.PodSandboxFilter,
) ([]*runtimeapi.PodSandbox, error) {
	return []*runtimeapi.PodSandbox{{Id: "s", State: r.state}}, nil
}

func (r *oneSandbox) ListContainers(context.Context, *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	return nil, nil
}

func (r *oneSandbox) PodSandboxStatus(
	_ context.Context, id string, _ bool,
) (*runtimeapi.PodSandboxStatusResponse, error) {
	if id != "s" {
		return nil, status.Error(codes.NotFound, id)
	}
	r.inspected++
	return &runtimeapi.PodSandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{
		Id: id, State: r.state, Network: &runtimeapi.PodSandboxNetworkStatus{Ip: r.ip},
		Linux: &runtimeapi.LinuxPodSandboxStatus{
			Namespaces: &runtimeapi.Namespace{Options: &runtimeapi.NamespaceOption{Network: r.network}},
		},
	}}, nil
}

// TestASandboxIsInspectedWhileItMayChange: the list has its state, but neither its addresses nor its network.
func TestASandboxIsInspectedWhileItMayChange(t *testing.T) {
	r := &oneSandbox{state: runtimeapi.PodSandboxState_SANDBOX_READY}
	var known *lifecyclev1.PodStatus
	look := func(want, wantIPs int) {
		t.Helper()
		seen, err := inspection.Pod(t.Context(), r, "uid", time.Second, time.Unix(1, 0), known)
		if err != nil {
			t.Fatal(err)
		}
		known = seen
		if r.inspected != want {
			t.Errorf("the sandbox was inspected %d times, want %d", r.inspected, want)
		}
		state := known.GetSandboxes()[0].GetState()
		if state != inspection.SandboxState(r.state) || len(known.GetIps()) != wantIPs {
			t.Errorf("the pod is %v, want the state %v and %d addresses", known, r.state, wantIPs)
		}
	}
	look(1, 0)
	look(2, 0) // its address may still be assigned
	r.ip = "10.0.0.2"
	look(3, 1)
	look(3, 1)
	r.state, r.ip = runtimeapi.PodSandboxState_SANDBOX_NOTREADY, ""
	look(4, 0)
	look(4, 0)

	r, known = &oneSandbox{state: runtimeapi.PodSandboxState_SANDBOX_READY, network: runtimeapi.NamespaceMode_NODE}, nil
	look(1, 0)
	look(1, 0) // the machine's addresses are not the sandbox's
}
