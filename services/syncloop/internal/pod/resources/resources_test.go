package resources_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podtest"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
)

func withInit(pod *v1.Pod, c v1.Container) *v1.Pod {
	pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
	return pod
}

const free = resources.NoLimit

func TestWhatAPodIsGiven(t *testing.T) {
	quota := resources.Limits{CPUQuota: true}
	guaranteed := podtest.List("cpu", "250m", "memory", "64Mi")
	for name, tc := range map[string]struct {
		pod    *v1.Pod
		limits resources.Limits
		want   resources.Resources
	}{
		"best effort has the least weight and no limit": {
			podtest.Pod("u", podtest.Container(nil, nil)), quota, resources.Resources{CPUShares: 2, CPUQuota: free, Memory: free},
		},
		"guaranteed has all it asks for and no more": {
			podtest.Pod("u", podtest.Container(guaranteed, guaranteed)), quota,
			resources.Resources{CPUShares: 256, CPUQuota: 25000, CPUPeriod: 100000, Memory: 64 << 20},
		},
		"what containers have is added up": {
			podtest.Pod("u", podtest.Container(guaranteed, guaranteed), podtest.Container(podtest.List("cpu", "1"), podtest.List("cpu", "2", "memory", "1Gi"))), quota,
			resources.Resources{CPUShares: 1280, CPUQuota: 225000, CPUPeriod: 100000, Memory: 1<<30 + 64<<20},
		},
		"one container without a limit of memory, and the pod has none": {
			podtest.Pod("u", podtest.Container(guaranteed, guaranteed), podtest.Container(nil, podtest.List("cpu", "500m"))), quota,
			resources.Resources{CPUShares: 256, CPUQuota: 75000, CPUPeriod: 100000, Memory: free},
		},
		"an init container without limits counts, too": {
			withInit(podtest.Pod("u", podtest.Container(guaranteed, guaranteed)), podtest.Container(nil, nil)), quota,
			resources.Resources{CPUShares: 256, CPUQuota: free, Memory: free},
		},
		"an init container that needs more than the others do": {
			withInit(podtest.Pod("u", podtest.Container(guaranteed, guaranteed)), podtest.Container(podtest.List("cpu", "2"), podtest.List("cpu", "2", "memory", "1Gi"))), quota,
			resources.Resources{CPUShares: 2048, CPUQuota: 200000, CPUPeriod: 100000, Memory: 1 << 30},
		},
		"overhead is added to limits that there are": {
			func() *v1.Pod {
				pod := podtest.Pod("u", podtest.Container(guaranteed, guaranteed))
				pod.Spec.Overhead = podtest.List("cpu", "250m", "memory", "64Mi")
				return pod
			}(), quota, resources.Resources{CPUShares: 512, CPUQuota: 50000, CPUPeriod: 100000, Memory: 128 << 20},
		},
		"limits of the pod as a whole stand for those of its containers": {
			func() *v1.Pod {
				pod := podtest.Pod("u", podtest.Container(nil, nil))
				pod.Spec.Resources = &v1.ResourceRequirements{Requests: podtest.List("cpu", "1"), Limits: podtest.List("cpu", "2", "memory", "1Gi")}
				return pod
			}(), quota, resources.Resources{CPUShares: 1024, CPUQuota: 200000, CPUPeriod: 100000, Memory: 1 << 30},
		},
		"no quotas are wanted": {
			podtest.Pod("u", podtest.Container(guaranteed, guaranteed)), resources.Limits{}, resources.Resources{CPUShares: 256, CPUQuota: free, Memory: 64 << 20},
		},
		"a period of the configuration": {
			podtest.Pod("u", podtest.Container(guaranteed, guaranteed)), resources.Limits{CPUQuota: true, CPUPeriod: 10 * time.Millisecond},
			resources.Resources{CPUShares: 256, CPUQuota: 2500, CPUPeriod: 10000, Memory: 64 << 20},
		},
		"the least quota that the kernel takes": {
			podtest.Pod("u", podtest.Container(podtest.List("cpu", "1m"), podtest.List("cpu", "1m", "memory", "1Mi"))), quota,
			resources.Resources{CPUShares: 2, CPUQuota: 1000, CPUPeriod: 100000, Memory: 1 << 20},
		},
		"the greatest weight": {
			podtest.Pod("u", podtest.Container(podtest.List("cpu", "1000"), nil)), quota, resources.Resources{CPUShares: 262144, CPUQuota: free, Memory: free},
		},
		"processes, and huge pages by their size": {
			podtest.Pod("u", podtest.Container(podtest.List("cpu", "1", "hugepages-2Mi", "4Mi"), podtest.List("hugepages-2Mi", "4Mi")), podtest.Container(podtest.List("hugepages-2Mi", "2Mi"), podtest.List("hugepages-2Mi", "2Mi"))),
			resources.Limits{CPUQuota: true, PIDs: 100},
			resources.Resources{
				CPUShares: 1024, CPUQuota: free, Memory: free, PIDs: 100, HugePages: map[int64]int64{2 << 20: 6 << 20},
			},
		},
		"any number of processes": {
			podtest.Pod("u", podtest.Container(nil, nil)), resources.Limits{PIDs: -1}, resources.Resources{CPUShares: 2, CPUQuota: free, Memory: free},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.want.HugePages == nil {
				tc.want.HugePages = map[int64]int64{} // no huge pages may be used
			}
			if diff := cmp.Diff(tc.want, resources.ForPod(tc.pod, tc.limits)); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

func TestBurstablePodsAreWeighedByWhatTheyAskForTogether(t *testing.T) {
	ended := podtest.Pod("ended", podtest.Container(podtest.List("cpu", "4"), nil))
	ended.Status.Phase = v1.PodFailed
	done := podtest.Pod("done", podtest.Container(podtest.List("cpu", "4"), nil))
	done.Status.Phase = v1.PodSucceeded
	pods := []*v1.Pod{
		podtest.Pod("a", podtest.Container(podtest.List("cpu", "500m"), nil)),
		podtest.Pod("b", podtest.Container(podtest.List("cpu", "250m"), podtest.List("cpu", "1"))),
		podtest.Pod("guaranteed", podtest.Container(podtest.List("cpu", "8", "memory", "1Gi"), podtest.List("cpu", "8", "memory", "1Gi"))),
		podtest.Pod("besteffort", podtest.Container(nil, nil)), ended, done,
	}
	if got := resources.BurstableShares(pods); got != 768 {
		t.Errorf("got %d shares, want those of 750m, which are 768", got)
	}
	if got := resources.BurstableShares(nil); got != 2 {
		t.Errorf("without pods there are %d shares, want the least, 2", got)
	}
}

func TestAllPodsHaveWhatIsNotReserved(t *testing.T) {
	got := resources.ForAllPods(podtest.List("cpu", "4", "memory", "8Gi", "pid", "1000", "hugepages-2Mi", "64Mi", "ephemeral-storage", "1Gi"),
		podtest.List("cpu", "500m", "memory", "1Gi", "pid", "100"), podtest.List("cpu", "500m"))
	want := resources.Resources{CPUShares: 3072, Memory: 7 << 30, PIDs: 900, HugePages: map[int64]int64{2 << 20: 64 << 20}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if diff := cmp.Diff(resources.Resources{}, resources.ForAllPods(nil, podtest.List("memory", "1Gi"))); diff != "" {
		t.Errorf("what is not known is limited: -want +got\n%s", diff)
	}
	if got := resources.ForAllPods(podtest.List("memory", "1Gi"), podtest.List("memory", "2Gi")); got.Memory != 0 {
		t.Errorf("more is reserved than there is, and the limit is %d", got.Memory)
	}
}

// TestWhatIsReadBackIsWhatWasGiven checks that a CPU request is recovered from its shares, and a cgroup v2 weight from
// the corresponding shares.
func TestWhatIsReadBackIsWhatWasGiven(t *testing.T) {
	for milli := int64(2); milli <= 256_000; milli++ {
		if got := resources.MilliOfShares(resources.Shares(milli)); got != milli && milli > 2 {
			t.Fatalf("%dm comes back as %dm", milli, got)
		}
	}
	for weight := uint64(1); weight <= 10_000; weight++ {
		if got := resources.Weight(resources.SharesOf(weight)); got != weight && got+1 != weight {
			t.Fatalf("the weight %d comes back as %d", weight, got)
		}
	}
	for _, tc := range []struct{ quota, period, want int64 }{
		{20_000, 100_000, 200}, {1_000, 100_000, 10}, {2_500, 10_000, 250}, {resources.NoLimit, 100_000, 0}, {0, 100_000, 0},
		{1_000, 0, 0},
	} {
		if got := resources.MilliOfQuota(tc.quota, tc.period); got != tc.want {
			t.Errorf("a quota of %d in %d is %dm, want %dm", tc.quota, tc.period, got, tc.want)
		}
	}
	if resources.MilliOfShares(1) != 0 || resources.SharesOf(0) != 0 {
		t.Error("what is not set is something")
	}
}
