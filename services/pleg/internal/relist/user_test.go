package relist_test

import (
	"slices"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/test/fakecri"
)

// TestTheUserOfAContainerIsTold, as the runtime says it.
func TestTheUserOfAContainerIsTold(t *testing.T) {
	fake := fakecri.New(t)
	fake.AddImage("image:1", 1)
	labels := map[string]string{podlabels.PodUID: "u-1", podlabels.PodName: "web", podlabels.PodNamespace: "shop", podlabels.ContainerName: "a"}
	sandbox, err := fake.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "shop", Uid: "u-1"}, Labels: labels,
	}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = fake.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox.GetPodSandboxId(), Config: &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "a"}, Image: &runtimeapi.ImageSpec{Image: "image:1"}, Labels: labels,
		Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			RunAsUser: &runtimeapi.Int64Value{Value: 1000}, RunAsGroup: &runtimeapi.Int64Value{Value: 3000}, SupplementalGroups: []int64{4000},
		}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, fake)
	statuses, err := r.List()
	if err != nil {
		t.Fatal(err)
	}
	if len(statuses) != 1 || len(statuses[0].GetContainers()) != 1 {
		t.Fatalf("the record has %v", statuses)
	}
	if u := statuses[0].GetContainers()[0].GetUser(); u.GetUid() != 1000 || u.GetGid() != 3000 || !slices.Equal(u.GetSupplementalGroups(), []int64{4000}) {
		t.Errorf("the user is %v", u)
	}
}
