package podstatus_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podstatus"
)

// TestTheHealthOfVolumes follows the status of a pod through answers of the drivers, as the kubelet's status manager.
func TestTheHealthOfVolumes(t *testing.T) {
	pod := &v1.Pod{Spec: v1.PodSpec{Volumes: []v1.Volume{{Name: "a"}, {Name: "b"}}}}
	slow := v1.VolumeHealthCondition{Status: v1.VolumeHealthDegraded, Reason: "DiskSlow", Message: "5 ms"}
	slower, gone := slow, v1.VolumeHealthCondition{Status: v1.VolumeHealthInaccessible, Reason: "Gone"}
	slower.Message = "50 ms"
	type conditions = []v1.VolumeHealthCondition
	began := time.Unix(1_000_000, 0)
	entry := func(name string, step int, c ...v1.VolumeHealthCondition) v1.PodVolumeHealth {
		at := metav1.NewTime(began.Add(time.Duration(step) * time.Minute))
		return v1.PodVolumeHealth{Name: name, HealthConditions: c, LastTransitionTime: at}
	}
	var previous v1.PodStatus
	for i, step := range []struct {
		name   string
		health map[string][]v1.VolumeHealthCondition
		want   []v1.PodVolumeHealth
	}{
		{name: "nothing is known"},
		{name: "healthy", health: map[string]conditions{"a": nil, "b": {}}},
		{name: "b is slow", health: map[string]conditions{"a": nil, "b": {slow}}, want: []v1.PodVolumeHealth{entry("b", 2, slow)}},
		{name: "another message", health: map[string]conditions{"b": {slower}}, want: []v1.PodVolumeHealth{entry("b", 2, slow)}},
		{name: "more", health: map[string]conditions{"a": {gone}, "b": {slow, gone}}, want: []v1.PodVolumeHealth{
			entry("b", 4, slow, gone), entry("a", 4, gone)}},
		{name: "in another order", health: map[string]conditions{"b": {gone, slow}}, want: []v1.PodVolumeHealth{
			entry("b", 4, slow, gone), entry("a", 4, gone)}},
		{name: "after a restart", want: []v1.PodVolumeHealth{entry("b", 4, slow, gone), entry("a", 4, gone)}},
		{name: "b is well", health: map[string]conditions{"b": nil}, want: []v1.PodVolumeHealth{entry("b", 7), entry("a", 4, gone)}},
	} {
		now := began.Add(time.Duration(i) * time.Minute)
		previous = podstatus.Generate(pod, &lifecyclev1.PodStatus{}, podstatus.Inputs{
			Now: now, Previous: previous, VolumeHealth: step.health,
		})
		if diff := cmp.Diff(step.want, previous.VolumeHealth); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, diff)
		}
	}
}
