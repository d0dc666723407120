package engineapi_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/utils/cpuset"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/services/syncloop/internal/api/podresources"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/allocation"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/claimbook"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/memory"
)

// gpus are the devices and CPUs of a node: the containers of the pod u1 have the device a and the CPUs 2 and 3.
type gpus struct{ podresources.Devices }

func (gpus) Held(pod types.UID, _ string) map[string][]allocation.Device {
	if pod != "u1" {
		return nil
	}
	return map[string][]allocation.Device{"example.com/gpu": {{ID: "a"}}}
}

func (gpus) CPUs(types.UID, string) cpuset.CPUSet { return cpuset.New(2, 3) }

func (gpus) Memory(types.UID, string) []memory.Block { return nil }

func (r *rig) resources() (*podresourcesv1.ListPodResourcesResponse, error) {
	return podresources.Listed(podresources.Config{
		Pods: r.store.Active, Devices: gpus{},
		Claims: func(*v1.Pod, *v1.Container) []claimbook.Claim { return nil },
	})
}

// TestResourcesAreThoseOfThePodResourcesAPI: they are unknown while the pods are.
func TestResourcesAreThoseOfThePodResourcesAPI(t *testing.T) {
	r := start(t)
	r.store.SetWaiting("pleg does not answer")
	_, err := r.client.ListPodResources(t.Context(), &enginev1.ListPodResourcesRequest{})
	wantCode(t, err, codes.Unavailable)
	r.store.SetWaiting("")
	r.run(t, "u1", "a")
	answer, err := r.client.ListPodResources(t.Context(), &enginev1.ListPodResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	held := &podresourcesv1.ListPodResourcesResponse{}
	if err := proto.Unmarshal(answer.GetResources(), held); err != nil {
		t.Fatal(err)
	}
	main := &podresourcesv1.ContainerResources{
		Name: "main", CpuIds: []int64{2, 3},
		Devices: []*podresourcesv1.ContainerDevices{{ResourceName: "example.com/gpu", DeviceIds: []string{"a"}}},
	}
	want := []*podresourcesv1.PodResources{
		{Name: "a", Namespace: "default", Containers: []*podresourcesv1.ContainerResources{main}},
	}
	if diff := cmp.Diff(want, held.GetPodResources(), protocmp.Transform()); diff != "" {
		t.Errorf("the resources of pods (-want +got):\n%s", diff)
	}
}
