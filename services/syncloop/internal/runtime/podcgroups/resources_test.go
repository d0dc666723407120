package podcgroups_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/podcgroups"
)

// list reads "cpu", "100m", "memory", "1Mi" and so on.
func list(pairs ...string) v1.ResourceList {
	out := v1.ResourceList{}
	for i := 0; i+1 < len(pairs); i += 2 {
		out[v1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return out
}

func container(requests, limits v1.ResourceList) v1.Container {
	return v1.Container{Name: "main", Resources: v1.ResourceRequirements{Requests: requests, Limits: limits}}
}

func newPod(uid string, containers ...v1.Container) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: types.UID(uid)},
		Spec:       v1.PodSpec{Containers: containers},
	}
}

func withInit(pod *v1.Pod, c v1.Container) *v1.Pod {
	pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
	return pod
}

const free = podcgroups.NoLimit

func TestWhatAPodIsGiven(t *testing.T) {
	quota := podcgroups.Limits{CPUQuota: true}
	guaranteed := list("cpu", "250m", "memory", "64Mi")
	for name, tc := range map[string]struct {
		pod    *v1.Pod
		limits podcgroups.Limits
		want   podcgroups.Resources
	}{
		"best effort has the least weight and no limit": {
			newPod("u", container(nil, nil)), quota, podcgroups.Resources{CPUShares: 2, CPUQuota: free, Memory: free},
		},
		"guaranteed has all it asks for and no more": {
			newPod("u", container(guaranteed, guaranteed)), quota,
			podcgroups.Resources{CPUShares: 256, CPUQuota: 25000, CPUPeriod: 100000, Memory: 64 << 20},
		},
		"what containers have is added up": {
			newPod("u", container(guaranteed, guaranteed), container(list("cpu", "1"), list("cpu", "2", "memory", "1Gi"))), quota,
			podcgroups.Resources{CPUShares: 1280, CPUQuota: 225000, CPUPeriod: 100000, Memory: 1<<30 + 64<<20},
		},
		"one container without a limit of memory, and the pod has none": {
			newPod("u", container(guaranteed, guaranteed), container(nil, list("cpu", "500m"))), quota,
			podcgroups.Resources{CPUShares: 256, CPUQuota: 75000, CPUPeriod: 100000, Memory: free},
		},
		"an init container without limits counts, too": {
			withInit(newPod("u", container(guaranteed, guaranteed)), container(nil, nil)), quota,
			podcgroups.Resources{CPUShares: 256, CPUQuota: free, Memory: free},
		},
		"an init container that needs more than the others do": {
			withInit(newPod("u", container(guaranteed, guaranteed)), container(list("cpu", "2"), list("cpu", "2", "memory", "1Gi"))), quota,
			podcgroups.Resources{CPUShares: 2048, CPUQuota: 200000, CPUPeriod: 100000, Memory: 1 << 30},
		},
		"overhead is added to limits that there are": {
			func() *v1.Pod {
				pod := newPod("u", container(guaranteed, guaranteed))
				pod.Spec.Overhead = list("cpu", "250m", "memory", "64Mi")
				return pod
			}(), quota, podcgroups.Resources{CPUShares: 512, CPUQuota: 50000, CPUPeriod: 100000, Memory: 128 << 20},
		},
		"limits of the pod as a whole stand for those of its containers": {
			func() *v1.Pod {
				pod := newPod("u", container(nil, nil))
				pod.Spec.Resources = &v1.ResourceRequirements{Requests: list("cpu", "1"), Limits: list("cpu", "2", "memory", "1Gi")}
				return pod
			}(), quota, podcgroups.Resources{CPUShares: 1024, CPUQuota: 200000, CPUPeriod: 100000, Memory: 1 << 30},
		},
		"no quotas are wanted": {
			newPod("u", container(guaranteed, guaranteed)), podcgroups.Limits{}, podcgroups.Resources{CPUShares: 256, CPUQuota: free, Memory: 64 << 20},
		},
		"a period of the configuration": {
			newPod("u", container(guaranteed, guaranteed)), podcgroups.Limits{CPUQuota: true, CPUPeriod: 10 * time.Millisecond},
			podcgroups.Resources{CPUShares: 256, CPUQuota: 2500, CPUPeriod: 10000, Memory: 64 << 20},
		},
		"the least quota that the kernel takes": {
			newPod("u", container(list("cpu", "1m"), list("cpu", "1m", "memory", "1Mi"))), quota,
			podcgroups.Resources{CPUShares: 2, CPUQuota: 1000, CPUPeriod: 100000, Memory: 1 << 20},
		},
		"the greatest weight": {
			newPod("u", container(list("cpu", "1000"), nil)), quota, podcgroups.Resources{CPUShares: 262144, CPUQuota: free, Memory: free},
		},
		"processes, and huge pages by their size": {
			newPod("u", container(list("cpu", "1", "hugepages-2Mi", "4Mi"), list("hugepages-2Mi", "4Mi")), container(list("hugepages-2Mi", "2Mi"), list("hugepages-2Mi", "2Mi"))),
			podcgroups.Limits{CPUQuota: true, PIDs: 100},
			podcgroups.Resources{CPUShares: 1024, CPUQuota: free, Memory: free, PIDs: 100, HugePages: map[int64]int64{2 << 20: 6 << 20}},
		},
		"any number of processes": {
			newPod("u", container(nil, nil)), podcgroups.Limits{PIDs: -1}, podcgroups.Resources{CPUShares: 2, CPUQuota: free, Memory: free},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.want.HugePages == nil {
				tc.want.HugePages = map[int64]int64{} // none may be used
			}
			if diff := cmp.Diff(tc.want, podcgroups.ForPod(tc.pod, tc.limits)); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

func TestBurstablePodsAreWeighedByWhatTheyAskForTogether(t *testing.T) {
	ended := newPod("ended", container(list("cpu", "4"), nil))
	ended.Status.Phase = v1.PodFailed
	done := newPod("done", container(list("cpu", "4"), nil))
	done.Status.Phase = v1.PodSucceeded
	pods := []*v1.Pod{
		newPod("a", container(list("cpu", "500m"), nil)),
		newPod("b", container(list("cpu", "250m"), list("cpu", "1"))),
		newPod("guaranteed", container(list("cpu", "8", "memory", "1Gi"), list("cpu", "8", "memory", "1Gi"))),
		newPod("besteffort", container(nil, nil)), ended, done,
	}
	if got := podcgroups.BurstableShares(pods); got != 768 {
		t.Errorf("got %d shares, want those of 750m, which are 768", got)
	}
	if got := podcgroups.BurstableShares(nil); got != 2 {
		t.Errorf("without pods there are %d shares, want the least, 2", got)
	}
}

func TestAllPodsHaveWhatIsNotReserved(t *testing.T) {
	got := podcgroups.ForAllPods(list("cpu", "4", "memory", "8Gi", "pid", "1000", "hugepages-2Mi", "64Mi", "ephemeral-storage", "1Gi"),
		list("cpu", "500m", "memory", "1Gi", "pid", "100"), list("cpu", "500m"))
	want := podcgroups.Resources{CPUShares: 3072, Memory: 7 << 30, PIDs: 900, HugePages: map[int64]int64{2 << 20: 64 << 20}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if diff := cmp.Diff(podcgroups.Resources{}, podcgroups.ForAllPods(nil, list("memory", "1Gi"))); diff != "" {
		t.Errorf("what is not known is limited: -want +got\n%s", diff)
	}
	if got := podcgroups.ForAllPods(list("memory", "1Gi"), list("memory", "2Gi")); got.Memory != 0 {
		t.Errorf("more is reserved than there is, and the limit is %d", got.Memory)
	}
}
