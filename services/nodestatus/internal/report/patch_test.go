package report

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 5000, time.UTC)

func at(ago time.Duration) metav1.Time { return metav1.NewTime(now.Add(-ago)).Rfc3339Copy() }

func amounts(pairs ...string) v1.ResourceList {
	list := v1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		list[v1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return list
}

// computed returns a status as this node computes it.
func computed() v1.NodeStatus {
	return v1.NodeStatus{
		Capacity: amounts(
			"cpu",
			"2",
			"memory",
			"1Gi",
			"pods",
			"110",
		),
		Allocatable: amounts("cpu", "1", "memory", "900Mi", "pods", "110"),
		Addresses: []v1.NodeAddress{
			{Type: v1.NodeInternalIP, Address: "198.51.100.1"},
			{Type: v1.NodeInternalIP, Address: "2001:db8::1"},
			{Type: v1.NodeHostName, Address: "node-1"},
		},
		NodeInfo: v1.NodeSystemInfo{BootID: "boot"},
		Conditions: []v1.NodeCondition{
			{
				Type:               v1.NodeMemoryPressure,
				Status:             v1.ConditionFalse,
				Reason:             "KubeletHasSufficientMemory",
				LastHeartbeatTime:  at(0),
				LastTransitionTime: at(time.Hour),
			},
			{
				Type:               v1.NodeReady,
				Status:             v1.ConditionTrue,
				Reason:             "KubeletReady",
				LastHeartbeatTime:  at(0),
				LastTransitionTime: at(time.Hour),
			},
		},
	}
}

func names(t *testing.T, stored, want v1.NodeStatus, expected ...string) {
	t.Helper()
	if got := differing(stored, want, nil); !slices.Equal(got, expected) {
		t.Errorf("%q differ, want %q", got, expected)
	}
}

func TestAStatusThatIsThereIsNotSentForItsTimes(t *testing.T) {
	stored := computed()
	for i := range stored.Conditions {
		stored.Conditions[i].LastHeartbeatTime = at(time.Minute)
	}
	stored.Capacity["memory"] = resource.MustParse("1048576Ki")
	names(t, stored, wanted(stored, computed(), now))
}

func TestWhatOthersWroteStays(t *testing.T) {
	stored := computed()
	stored.Conditions = append(
		stored.Conditions,
		v1.NodeCondition{Type: v1.NodeNetworkUnavailable, Status: v1.ConditionFalse},
	)
	stored.Capacity["example.com/dongle"] = resource.MustParse("4")
	stored.VolumesAttached = []v1.AttachedVolume{{Name: "disk"}}
	want := wanted(stored, computed(), now)
	// Pods may request an advertised resource.
	names(t, stored, want, "allocatable")
	if got := want.Allocatable["example.com/dongle"]; got.Value() != 4 {
		t.Errorf("%v dongles are allocatable, want 4", got)
	}
	patch := patched(t, stored, want, "allocatable")
	if len(patch) != 2 || len(patch["conditions"].([]any)) != 2 {
		t.Errorf("sends %v, want 2 fields, one of them 2 conditions", patch)
	}
	// The resource is removed again.
	stored.Allocatable["example.com/dongle"] = resource.MustParse("4")
	delete(stored.Capacity, "example.com/dongle")
	want = wanted(stored, computed(), now)
	names(t, stored, want, "allocatable")
	if amount, sent := patched(t, stored, want, "allocatable")["allocatable"].(map[string]any)["example.com/dongle"]; !sent ||
		amount != nil {
		t.Errorf("sends %v, want a null", amount)
	}
}

// patched returns the fields of the status in a patch.
func patched(t *testing.T, stored, want v1.NodeStatus, names ...string) map[string]any {
	t.Helper()
	data, err := patchOf(stored, want, names)
	if err != nil {
		t.Fatal(err)
	}
	var patch map[string]map[string]any
	if err := json.Unmarshal(data, &patch); err != nil {
		t.Fatal(err)
	}
	if len(patch) != 1 {
		t.Errorf("sends %s, want the status alone", data)
	}
	return patch["status"]
}

func TestFieldsAreReplacedAndRemovedWhole(t *testing.T) {
	stored := computed()
	stored.Features = &v1.NodeFeatures{}
	stored.Addresses = stored.Addresses[:1]
	stored.Capacity["hugepages-1Gi"] = resource.MustParse("0")
	stored.NodeInfo.Swap = &v1.NodeSwapStatus{}
	want := wanted(stored, computed(), now)
	names(t, stored, want, "addresses", "capacity", "features", "nodeInfo")
	patch := patched(t, stored, want, "addresses", "capacity", "features", "nodeInfo")
	if addresses := patch["addresses"].([]any); len(addresses) != 4 ||
		addresses[0].(map[string]any)["$patch"] != "replace" {
		t.Errorf("sends the addresses %v, want 4 entries and $patch %q", addresses, "replace")
	}
	if value, sent := patch["features"]; !sent || value != nil {
		t.Errorf("sends the features %v", value)
	}
	if pages, sent := patch["capacity"].(map[string]any)["hugepages-1Gi"]; !sent || pages != nil {
		t.Errorf("sends %v of huge pages", pages)
	}
	if info := patch["nodeInfo"].(map[string]any); info["$patch"] != "replace" || info["bootID"] != "boot" {
		t.Errorf("sends %v, want $patch %q and bootID %q", info, "replace", "boot")
	}
}

func TestTheTimesOfConditionsAreAsAKubeletHasThem(t *testing.T) {
	for _, test := range []struct {
		name   string
		stored *v1.NodeCondition
		want   time.Duration // before now
	}{
		{"a condition that is new is as old as it is here", nil, time.Hour},
		{"one that is as here is as old as it is there", &v1.NodeCondition{Status: v1.ConditionTrue, LastTransitionTime: at(2 * time.Hour)}, 2 * time.Hour},
		{"one that has changed here while nobody could be told changed then", &v1.NodeCondition{Status: v1.ConditionFalse, LastTransitionTime: at(2 * time.Hour)}, time.Hour},
		{"one that somebody else has changed meanwhile changes back now", &v1.NodeCondition{Status: v1.ConditionUnknown, LastTransitionTime: at(time.Minute)}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			var stored v1.NodeStatus
			if test.stored != nil {
				test.stored.Type = v1.NodeReady
				stored.Conditions = []v1.NodeCondition{*test.stored}
			}
			ready := find(wanted(stored, computed(), now).Conditions, v1.NodeReady)
			if !ready.LastTransitionTime.Time.Equal(at(test.want).Time) || !ready.LastHeartbeatTime.Time.Equal(at(0).Time) {
				t.Errorf("since %s, sent at %s", ready.LastTransitionTime, ready.LastHeartbeatTime)
			}
		})
	}
}

// TestAnOlderAPIServerIsNotSentWhatItDoesNotKnowAgain: unknown fields are not sent repeatedly.
func TestAnOlderAPIServerIsNotSentWhatItDoesNotKnowAgain(t *testing.T) {
	want := wanted(v1.NodeStatus{}, computed(), now)
	want.DeclaredFeatures = []string{"New"}
	answer := *want.DeepCopy()
	answer.DeclaredFeatures = nil
	refused := refusals{}
	refused.note(answer, want, []string{"declaredFeatures"})
	if got := differing(answer, want, refused); len(got) != 0 {
		t.Errorf("%q are sent again", got)
	}
	// The stored value of a field that was not sent is unknown.
	answer.NodeInfo.BootID = "other"
	refused.note(answer, want, []string{"declaredFeatures"})
	if got := differing(answer, want, refused); !slices.Equal(got, []string{"nodeInfo"}) {
		t.Errorf("%q are sent when somebody else has written, want %q", got, []string{"nodeInfo"})
	}
	answer.NodeInfo = want.NodeInfo
	want.DeclaredFeatures = []string{"New", "Newer"}
	if got := differing(answer, want, refused); !slices.Equal(got, []string{"declaredFeatures"}) {
		t.Errorf("%q are sent when it has changed, want %q", got, []string{"declaredFeatures"})
	}
}
