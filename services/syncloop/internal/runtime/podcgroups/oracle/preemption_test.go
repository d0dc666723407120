package oracle

import (
	"context"
	"fmt"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	"k8s.io/kubernetes/pkg/kubelet/preemption"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/admission"
)

// TestTheSamePodsAreEndedForACriticalOne checks that the fewest and smallest pods are preempted, and none if all would
// not suffice.
func TestTheSamePodsAreEndedForACriticalOne(t *testing.T) {
	ended := map[int]int{}
	rapid.Check(t, func(t *rapid.T) {
		critical := preemptingPodOf(t, "critical")
		critical.Spec.Priority = ptr.To[int32](2_000_000_000)
		var pods []*v1.Pod
		for i := range rapid.IntRange(0, 6).Draw(t, "pods") {
			pods = append(pods, preemptingPodOf(t, types.UID(fmt.Sprint("pod-", i))))
		}
		var short []admission.Shortage
		for _, s := range []admission.Shortage{
			{Resource: v1.ResourceCPU, Amount: one[int64](t, "cpu", 0, 1, 240, 1700)},
			{Resource: v1.ResourceMemory, Amount: one[int64](t, "memory", 0, 1, 60*mebi, 100*mebi, 4096*mebi)},
			{Resource: v1.ResourcePods, Amount: one[int64](t, "pods missing", 0, 0, 1, 2)},
		} {
			if s.Amount > 0 {
				short = append(short, s)
			}
		}
		want, possible := byKubelet(critical, pods, short)
		got, ok := byQuartet(critical, pods, short)
		if diff := cmp.Diff(want, got); diff != "" || possible != ok {
			t.Fatalf("for a shortage of %+v the kubelet finds enough pods: %v, Quartet: %v; (-kubelet +ours):\n%s", short, possible, ok, diff)
		}
		ended[len(got)]++
	})
	if len(ended) < 3 {
		t.Errorf("the test saw only these numbers of preempted pods: %v", ended)
	}
}

// byKubelet returns the pods that the kubelet preempts, in its order.
func byKubelet(critical *v1.Pod, pods []*v1.Pod, short []admission.Shortage) (ended []types.UID, possible bool) {
	kill := func(pod *v1.Pod, _ bool, _ *int64, _ func(*v1.PodStatus)) error {
		ended = append(ended, pod.UID)
		return nil
	}
	var reasons []lifecycle.PredicateFailureReason
	for _, s := range short {
		reasons = append(reasons, &lifecycle.InsufficientResourceError{ResourceName: s.Resource, Requested: s.Amount})
	}
	handler := preemption.NewCriticalPodAdmissionHandler(func() []*v1.Pod { return pods }, kill, &record.FakeRecorder{})
	ctx := klog.NewContext(context.Background(), logr.Discard())
	_, err := handler.HandleAdmissionFailure(ctx, critical, reasons, lifecycle.AddOperation)
	return ended, err == nil
}

// byQuartet returns the pods that Quartet preempts.
func byQuartet(critical *v1.Pod, pods []*v1.Pod, short []admission.Shortage) (ended []types.UID, possible bool) {
	var others []admission.Victim
	for _, pod := range pods {
		others = append(others, admission.Victim{
			Pod: pod, Critical: admission.IsCritical(pod, podset.IsStaticSource(pod.Annotations[podset.AnnotationSource])),
		})
	}
	victims, ok := admission.Preempt(critical, short, others)
	for _, pod := range victims {
		ended = append(ended, pod.UID)
	}
	return ended, ok
}

// preemptingPodOf draws a pod of either source and any priority.
func preemptingPodOf(t *rapid.T, uid types.UID) *v1.Pod {
	pod := podOf(t)
	pod.UID, pod.Annotations = uid, map[string]string{podset.AnnotationSource: one(t, "source", "api", "api", "file")}
	pod.Spec.Priority = one(t, "priority", nil, ptr.To[int32](0), ptr.To[int32](7), ptr.To[int32](2_000_000_000), ptr.To[int32](2_000_001_000))
	return pod
}
