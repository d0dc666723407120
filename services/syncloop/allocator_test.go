package syncloop

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/cadvisor/lib/model"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/quartet-node/quartet/services/syncloop/internal/devices/memory"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/stats"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podtest"
)

// TestReservedMemoryIsWhatPodsDoNotGet checks the sum of the reservations and the threshold, as an amount and as a part
// of the machine's memory, and that the error names the fields.
func TestReservedMemoryIsWhatPodsDoNotGet(t *testing.T) {
	machine := &machineCPUs{info: &model.MachineInfo{Topology: []model.Node{{Memory: 1 << 40}}}}
	h := &host{}
	h.cfg.Kubelet = kubeletconfigv1beta1.KubeletConfiguration{
		MemoryManagerPolicy: memory.PolicyStatic, KubeReserved: map[string]string{"memory": "1Gi", "cpu": "1"},
		SystemReserved: map[string]string{"memory": "512Mi"}, EvictionHard: map[string]string{"memory.available": "100Mi"},
		ReservedMemory: []kubeletconfigv1beta1.MemoryReservation{{Limits: podtest.List("memory", "1636Mi")}},
	}
	system := func() uint64 {
		t.Helper()
		book, err := newMemory(h, machine)
		if err != nil {
			t.Fatal(err)
		}
		nodes, _ := book.State()
		return nodes[0].Tables[v1.ResourceMemory].System
	}
	if got := system(); got != 1636<<20 {
		t.Errorf("%d bytes are reserved, want 1636 Mi", got)
	}
	h.cfg.Kubelet.EvictionHard["memory.available"] = "50%"
	_, err := newMemory(h, machine)
	if err == nil || !strings.HasPrefix(err.Error(), `reservedMemory: the total amount "1636Mi" of type "memory" is not equal to`) {
		t.Errorf("error = %v", err)
	}
	half := stats.ReadMachine(t.TempDir()).MemoryBytes / 2
	sum := resource.NewQuantity(int64(half+1536<<20), resource.BinarySI)
	h.cfg.Kubelet.ReservedMemory[0].Limits[v1.ResourceMemory] = *sum
	if got := system(); got != half+1536<<20 {
		t.Errorf("%d bytes are reserved, want half of the machine and 1536 Mi", got)
	}
	h.cfg.Kubelet.MemoryManagerPolicy = memory.PolicyNone
	if book, err := newMemory(h, machine); book != nil || err != nil {
		t.Errorf("with the policy None there is %v, %v", book, err)
	}
}

// endedContainer is a runtime whose container has ended.
type endedContainer struct {
	internalapi.RuntimeService

	logs bool
}

func (r *endedContainer) UpdateContainerResources(
	ctx context.Context, _ string, _ *runtimeapi.ContainerResources,
) error {
	r.logs = klog.FromContext(ctx).GetSink() != nil // cri-client logs its errors there
	return errors.New("not running")
}

// TestAnUpdateOfAContainerThatHasEndedIsNoErrorInTheLog checks that cri-client does not log what the reconciler decides
// on.
func TestAnUpdateOfAContainerThatHasEndedIsNoErrorInTheLog(t *testing.T) {
	runtime := &endedContainer{}
	update := updateContainer(func() (internalapi.RuntimeService, error) { return runtime, nil })
	if err := update(t.Context(), "id", nil); err == nil || runtime.logs {
		t.Errorf("the update ends with %v, and an error is logged: %v", err, runtime.logs)
	}
}
