package relist_test

import (
	"slices"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/boottime"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/test/fakecri"
)

// TestTheUserOfAContainerIsReported compares it with the runtime's value.
func TestTheUserOfAContainerIsReported(t *testing.T) {
	fake := fakecri.New(t)
	fake.AddImage("image:1", 1)
	labels := map[string]string{
		podlabels.PodUID:        "u-1",
		podlabels.PodName:       "web",
		podlabels.PodNamespace:  "shop",
		podlabels.ContainerName: "a",
	}
	sandbox, err := fake.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "shop", Uid: "u-1"}, Labels: labels,
	}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = fake.CreateContainer(
		t.Context(),
		&runtimeapi.CreateContainerRequest{PodSandboxId: sandbox.GetPodSandboxId(), Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "a"}, Image: &runtimeapi.ImageSpec{Image: "image:1"}, Labels: labels,
			Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
				RunAsUser: &runtimeapi.Int64Value{
					Value: 1000,
				},
				RunAsGroup:         &runtimeapi.Int64Value{Value: 3000},
				SupplementalGroups: []int64{4000},
			}},
		}},
	)
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
	if u := statuses[0].GetContainers()[0].GetUser(); u.GetUid() != 1000 || u.GetGid() != 3000 ||
		!slices.Equal(u.GetSupplementalGroups(), []int64{4000}) {
		t.Errorf("the user is %v, want Uid 1000, Gid 3000 and SupplementalGroups %v", u, []int64{4000})
	}
}

// TestTheResourcesOfAContainerAreReported compares them with the runtime's values, also after a change while the
// container runs.
func TestTheResourcesOfAContainerAreReported(t *testing.T) {
	fake := fakecri.New(t)
	_, containers := fake.RunPod(fakecri.Pod{UID: "u-1", Containers: []string{"a"}})
	r := start(t, fake)
	resourcesSeen := func() *lifecyclev1.LinuxResources {
		status, err := r.Status(t.Context(), "u-1", boottime.Now())
		if err != nil {
			t.Fatal(err)
		}
		return status.GetContainers()[0].GetResources()
	}
	if got := resourcesSeen(); got != nil {
		t.Errorf("a runtime that says nothing of resources has %v", got)
	}
	for _, want := range []*runtimeapi.LinuxContainerResources{
		{CpuShares: 102, CpuQuota: 20000, CpuPeriod: 100000, MemoryLimitInBytes: 1 << 20},
		{CpuShares: 204, CpuPeriod: 100000},
	} {
		if _, err := fake.UpdateContainerResources(
			t.Context(),
			&runtimeapi.UpdateContainerResourcesRequest{ContainerId: containers["a"], Linux: want},
		); err != nil {
			t.Fatal(err)
		}
		got := resourcesSeen()
		if got.GetCpuShares() != want.GetCpuShares() || got.GetCpuQuota() != want.GetCpuQuota() ||
			got.GetCpuPeriod() != want.GetCpuPeriod() ||
			got.GetMemoryLimitInBytes() != want.GetMemoryLimitInBytes() {
			t.Errorf("the resources are %v, want %v", got, want)
		}
	}
}
