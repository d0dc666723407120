package statusmanager_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/statusmanager"
)

func at(seconds int64) metav1.Time { return metav1.NewTime(time.Unix(seconds, 0)) }

func condition(kind v1.PodConditionType, status v1.ConditionStatus, since int64) v1.PodCondition {
	return v1.PodCondition{Type: kind, Status: status, LastTransitionTime: at(since)}
}

func TestWhatTheAPIServerIsToHave(t *testing.T) {
	const gate, unknown = v1.PodConditionType("example.com/gate"), podset.ConditionRuntimeStateUnknown
	running := []v1.ContainerStatus{{Name: "c", State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}}
	disrupted := condition(v1.DisruptionTarget, v1.ConditionTrue, 5)
	disrupted.Reason = v1.PodReasonTerminationByKubelet
	byOthers := condition(v1.DisruptionTarget, v1.ConditionTrue, 5)
	byOthers.Reason = "EvictionByEvictionAPI"
	for name, tc := range map[string]struct {
		has, computed, want v1.PodStatus
		mayRun              bool
	}{
		"all of a pod that is new": {
			has:      v1.PodStatus{Phase: v1.PodPending, QOSClass: v1.PodQOSBestEffort},
			computed: v1.PodStatus{Phase: v1.PodRunning, QOSClass: v1.PodQOSBurstable, StartTime: ptr.To(at(1)), PodIP: "10.0.0.1", ContainerStatuses: running, ObservedGeneration: 2},
			want: v1.PodStatus{
				Phase: v1.PodRunning, QOSClass: v1.PodQOSBestEffort, StartTime: ptr.To(at(1)), ContainerStatuses: running,
				ObservedGeneration: 2, PodIP: "10.0.0.1",
			},
		},
		"conditions of others stay, and so do times of what has not changed": {
			has: v1.PodStatus{
				Conditions: []v1.PodCondition{
					condition(gate, v1.ConditionTrue, 3), condition(v1.PodReady, v1.ConditionTrue, 4), byOthers,
					condition(v1.ContainersReady, v1.ConditionTrue, 4),
				},
			},
			computed: v1.PodStatus{
				Conditions: []v1.PodCondition{
					condition(gate, v1.ConditionFalse, 1), condition(v1.PodReady, v1.ConditionTrue, 9),
					condition(v1.ContainersReady, v1.ConditionFalse, 9), condition(v1.PodInitialized, v1.ConditionTrue, 9),
				},
			},
			want: v1.PodStatus{
				Conditions: []v1.PodCondition{
					condition(gate, v1.ConditionTrue, 3), condition(v1.PodReady, v1.ConditionTrue, 4), byOthers,
					condition(v1.ContainersReady, v1.ConditionFalse, 9), condition(v1.PodInitialized, v1.ConditionTrue, 9),
				},
			},
		},
		"a disruption by this node is said": {
			computed: v1.PodStatus{Conditions: []v1.PodCondition{disrupted}},
			want:     v1.PodStatus{Conditions: []v1.PodCondition{disrupted}},
		},
		"and stays when it is not computed": {
			has:  v1.PodStatus{Conditions: []v1.PodCondition{disrupted}},
			want: v1.PodStatus{Conditions: []v1.PodCondition{disrupted}},
		},
		"what was unknown and is known again goes": {
			has:  v1.PodStatus{Conditions: []v1.PodCondition{condition(unknown, v1.ConditionTrue, 3)}},
			want: v1.PodStatus{Conditions: []v1.PodCondition{}},
		},
		"an end is final": {
			has:      v1.PodStatus{Phase: v1.PodFailed, Reason: "Evicted", Message: "m"},
			computed: v1.PodStatus{Phase: v1.PodRunning, ContainerStatuses: running},
			want:     v1.PodStatus{Phase: v1.PodFailed, Reason: "Evicted", Message: "m", ContainerStatuses: running},
		},
		"no end becomes another": {
			has: v1.PodStatus{Phase: v1.PodSucceeded}, computed: v1.PodStatus{Phase: v1.PodFailed, Reason: "Error"},
			want: v1.PodStatus{Phase: v1.PodSucceeded},
		},
		"an end is not said while something may run": {
			has:      v1.PodStatus{Phase: v1.PodRunning},
			computed: v1.PodStatus{Phase: v1.PodFailed, Reason: "Evicted", ContainerStatuses: running}, mayRun: true,
			want: v1.PodStatus{Phase: v1.PodRunning, ContainerStatuses: running},
		},
		"a pod that has ended keeps its addresses": {
			has:      v1.PodStatus{Phase: v1.PodRunning, PodIP: "10.0.0.1", PodIPs: []v1.PodIP{{IP: "10.0.0.1"}}},
			computed: v1.PodStatus{Phase: v1.PodSucceeded},
			want:     v1.PodStatus{Phase: v1.PodSucceeded, PodIP: "10.0.0.1", PodIPs: []v1.PodIP{{IP: "10.0.0.1"}}},
		},
		"what is not the node's stays": {
			has:      v1.PodStatus{Resize: v1.PodResizeStatusInProgress, NominatedNodeName: "n", StartTime: ptr.To(at(1)), ResourceClaimStatuses: []v1.PodResourceClaimStatus{{Name: "r"}}},
			computed: v1.PodStatus{Phase: v1.PodPending, StartTime: ptr.To(at(2))},
			want:     v1.PodStatus{Phase: v1.PodPending, Resize: v1.PodResizeStatusInProgress, NominatedNodeName: "n", StartTime: ptr.To(at(1)), ResourceClaimStatuses: []v1.PodResourceClaimStatus{{Name: "r"}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			has := tc.has.DeepCopy()
			got := statusmanager.Merge(&tc.has, tc.computed, tc.mayRun)
			if len(got.Conditions) == 0 && len(tc.want.Conditions) == 0 {
				got.Conditions, tc.want.Conditions = nil, nil
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("want -, got +\n%s", diff)
			}
			if diff := cmp.Diff(has, &tc.has); diff != "" {
				t.Errorf("what the API server has was changed\n%s", diff)
			}
		})
	}
}

// TestAPatchMakesOneStatusTheOther applies the patch as an API server does, and checks that the patch contains only
// differences.
func TestAPatchMakesOneStatusTheOther(t *testing.T) {
	has := v1.PodStatus{
		Phase: v1.PodPending, Reason: "FailedMount", HostIP: "10.1.0.1", HostIPs: []v1.HostIP{{IP: "10.1.0.1"}},
		PodIPs:     []v1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}},
		Conditions: []v1.PodCondition{condition("example.com/gate", v1.ConditionTrue, 3), condition(v1.PodReady, v1.ConditionFalse, 4), condition(podset.ConditionRuntimeStateUnknown, v1.ConditionTrue, 4)},
	}
	wanted := v1.PodStatus{
		Phase: v1.PodRunning, HostIP: "10.1.0.1", HostIPs: []v1.HostIP{{IP: "10.1.0.1"}}, PodIPs: []v1.PodIP{{IP: "10.0.0.2"}},
		Conditions:        []v1.PodCondition{condition("example.com/gate", v1.ConditionTrue, 3), condition(v1.PodReady, v1.ConditionTrue, 5)},
		ContainerStatuses: []v1.ContainerStatus{{Name: "c", Ready: true}},
	}
	patch, err := statusmanager.Patch("uid-1", &has, &wanted)
	if err != nil {
		t.Fatal(err)
	}
	original, err := json.Marshal(v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "uid-1"}, Status: has})
	if err != nil {
		t.Fatal(err)
	}
	applied, err := strategicpatch.StrategicMergePatch(original, patch, v1.Pod{})
	if err != nil {
		t.Fatalf("%s: %v", patch, err)
	}
	var got v1.Pod
	if err := json.Unmarshal(applied, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wanted, got.Status); diff != "" {
		t.Errorf("%s\nwant -, got +\n%s", patch, diff)
	}
	var patched struct{ Status map[string]json.RawMessage }
	if err := json.Unmarshal(patch, &patched); err != nil {
		t.Fatal(err)
	}
	if _, all := patched.Status["hostIPs"]; all || len(patched.Status) != 5 {
		t.Errorf("the patch has more than what differs: %s", patch)
	}
	if again, err := statusmanager.Patch("uid-1", &wanted, &wanted); again != nil || err != nil {
		t.Errorf("of two that are the same: %s, %v", again, err)
	}
}

// TestAConditionThatSaysLessIsPatched checks that a field that a condition does not have any more is removed.
// Conditions are merged, so fields that a patch does not name would stay.
func TestAConditionThatSaysLessIsPatched(t *testing.T) {
	stored := v1.PodCondition{Type: v1.PodReady, Status: v1.ConditionFalse, Reason: "ContainersNotReady", Message: "containers with unready status: [main]", ObservedGeneration: 1}
	computed := v1.PodCondition{Type: v1.PodReady, Status: v1.ConditionTrue}
	has := v1.PodStatus{Conditions: []v1.PodCondition{stored}}
	wanted := v1.PodStatus{Conditions: []v1.PodCondition{computed}}
	patch, err := statusmanager.Patch("u", &has, &wanted)
	if err != nil {
		t.Fatal(err)
	}
	original, err := json.Marshal(v1.Pod{Status: has})
	if err != nil {
		t.Fatal(err)
	}
	applied, err := strategicpatch.StrategicMergePatch(original, patch, v1.Pod{})
	if err != nil {
		t.Fatal(err)
	}
	var got v1.Pod
	if err := json.Unmarshal(applied, &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Status.Conditions) != 1 || got.Status.Conditions[0] != computed {
		t.Errorf("the patch %s leaves %+v, want exactly one and got.Status.Conditions[0] %v",
			patch, got.Status.Conditions, computed)
	}
}

// TestPartsOfASecondAreNoDifference checks that fractions of a second cause no patch. The API server does not store
// them, so a patch would follow each answer.
func TestPartsOfASecondAreNoDifference(t *testing.T) {
	fine, coarse := condition(v1.PodReady, v1.ConditionTrue, 4), condition(v1.PodReady, v1.ConditionTrue, 4)
	fine.LastTransitionTime = metav1.NewTime(time.Unix(4, 999))
	begun := metav1.NewTime(time.Unix(4, 999))
	patch, err := statusmanager.Patch("u", &v1.PodStatus{Conditions: []v1.PodCondition{coarse}, StartTime: ptr.To(at(4))},
		&v1.PodStatus{Conditions: []v1.PodCondition{fine}, StartTime: &begun})
	if patch != nil || err != nil {
		t.Errorf("Patch(u) = %s, %v, want nil", patch, err)
	}
}
