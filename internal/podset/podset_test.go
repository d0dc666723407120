package podset_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/podset"
)

func pod(uid string, change ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pod-" + uid, UID: types.UID(uid)},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "main", Image: "image:1"}}},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func TestCompare(t *testing.T) {
	deleted := metav1.NewTime(time.Unix(1000, 0))
	grace, shorter := int64(30), int64(5)
	for _, tc := range []struct {
		name     string
		old, new *v1.Pod
		want     podset.Op
	}{
		{"a pod that was not there is added", nil, pod("1"), podset.Add},
		{"a pod that is gone is removed", pod("1"), nil, podset.Remove},
		{"nothing at all is nothing", nil, nil, podset.None},
		{"an equal pod is nothing", pod("1"), pod("1"), podset.None},
		{
			"a changed spec is an update", pod("1"),
			pod("1", func(p *v1.Pod) { p.Spec.Containers[0].Image = "image:2" }), podset.Update,
		},
		{
			"a changed label is an update", pod("1"),
			pod("1", func(p *v1.Pod) { p.Labels = map[string]string{"a": "b"} }), podset.Update,
		},
		{
			"a new annotation is an update", pod("1"),
			pod("1", func(p *v1.Pod) { p.Annotations = map[string]string{"a": "b"} }), podset.Update,
		},
		{
			"a dropped annotation is an update",
			pod("1", func(p *v1.Pod) { p.Annotations = map[string]string{"a": "b"} }), pod("1"), podset.Update,
		},
		{
			"the agent's own annotations are ignored",
			pod("1", func(p *v1.Pod) {
				p.Annotations = map[string]string{podset.AnnotationSeen: "then", podset.AnnotationSource: "file"}
			}),
			pod("1", func(p *v1.Pod) {
				p.Annotations = map[string]string{podset.AnnotationHash: "x", "quartet.dev/traceparent": "y"}
			}),
			podset.None,
		},
		{
			"a deletion timestamp is a delete", pod("1"),
			pod("1", func(p *v1.Pod) { p.DeletionTimestamp = &deleted }), podset.Delete,
		},
		{
			"another grace period of a deleted pod is a delete",
			pod("1", func(p *v1.Pod) { p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &deleted, &grace }),
			pod("1", func(p *v1.Pod) { p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &deleted, &shorter }),
			podset.Delete,
		},
		{
			"another grace period is an update",
			pod("1", func(p *v1.Pod) { p.DeletionGracePeriodSeconds = &grace }),
			pod("1", func(p *v1.Pod) { p.DeletionGracePeriodSeconds = &shorter }), podset.Update,
		},
		{
			"only another status is a reconcile", pod("1"),
			pod("1", func(p *v1.Pod) { p.Status.Phase = v1.PodRunning }), podset.Reconcile,
		},
		{
			"another status beside another spec is an update", pod("1"),
			pod("1", func(p *v1.Pod) { p.Status.Phase, p.Spec.NodeName = v1.PodRunning, "n" }), podset.Update,
		},
		{
			"an empty list equals none", pod("1"),
			pod("1", func(p *v1.Pod) { p.Spec.Volumes, p.Labels = []v1.Volume{}, map[string]string{} }), podset.None,
		},
		{
			"quantities are compared by value",
			pod("1", func(p *v1.Pod) { p.Spec.Overhead = v1.ResourceList{"cpu": resource.MustParse("1")} }),
			pod("1", func(p *v1.Pod) { p.Spec.Overhead = v1.ResourceList{"cpu": resource.MustParse("1000m")} }),
			podset.None,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := podset.Compare(tc.old, tc.new); got != tc.want {
				t.Errorf("Compare = %s, want %s", got, tc.want)
			}
		})
	}
}

func TestMergeOrdersItsChanges(t *testing.T) {
	deleted := metav1.NewTime(time.Unix(1000, 0))
	old := podset.Merge(nil, []*v1.Pod{pod("gone"), pod("updated"), pod("deleted"), pod("status"), pod("same")}).Set
	got := podset.Merge(old, []*v1.Pod{
		pod("status", func(p *v1.Pod) { p.Status.Phase = v1.PodRunning }),
		pod("deleted", func(p *v1.Pod) { p.DeletionTimestamp = &deleted }),
		pod("updated", func(p *v1.Pod) { p.Spec.NodeName = "n" }),
		pod("same"), pod("new-b"), pod("new-a"),
	})
	var ops []string
	for _, c := range got.List {
		ops = append(ops, c.Op.String()+" "+string(c.UID()))
	}
	want := []string{"REMOVE gone", "ADD new-a", "ADD new-b", "UPDATE updated", "DELETE deleted", "RECONCILE status"}
	if diff := cmp.Diff(want, ops); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
}

func TestFirstSetIsNeverSilent(t *testing.T) {
	first := podset.Merge(nil, nil)
	if !first.First || first.Silent() || first.Set == nil {
		t.Errorf("first empty set: First=%v Silent=%v Set=%v, want a message and a set", first.First, first.Silent(), first.Set)
	}
	if second := podset.Merge(first.Set, nil); second.First || !second.Silent() {
		t.Errorf("second empty set: First=%v Silent=%v, want silence", second.First, second.Silent())
	}
}

func TestFilterLeavesOutWhatRepeats(t *testing.T) {
	a := pod("1")
	sameName := pod("2", func(p *v1.Pod) { p.Name = a.Name })
	sameUID := pod("1", func(p *v1.Pod) { p.Name = "other" })
	elsewhere := pod("3", func(p *v1.Pod) { p.Name, p.Namespace = a.Name, "elsewhere" })
	kept, rejected := podset.Filter([]*v1.Pod{a, sameName, sameUID, elsewhere})
	if len(kept) != 2 || kept[0] != a || kept[1] != elsewhere {
		t.Errorf("kept %d pods, want the first and the one of another namespace", len(kept))
	}
	if len(rejected) != 2 {
		t.Fatalf("rejected %d pods, want 2", len(rejected))
	}
	for i, want := range []podset.Rejection{
		{Index: 1, Pod: sameName, By: a, Field: "metadata.name", Reason: "the pod default/pod-1 is already given"},
		{Index: 2, Pod: sameUID, By: a, Field: "metadata.uid", Reason: "the pod default/pod-1 already has the UID 1"},
	} {
		if diff := cmp.Diff(want, rejected[i]); diff != "" {
			t.Errorf("rejection %d (-want +got):\n%s", i, diff)
		}
	}
}

func TestStripOwnAnnotations(t *testing.T) {
	given := map[string]string{
		podset.AnnotationSource: "api", podset.AnnotationSeen: "x", podset.AnnotationHash: "x", podset.AnnotationMirror: "x",
		"quartet.dev/traceparent": "x", "mine": "kept",
	}
	if diff := cmp.Diff(map[string]string{"mine": "kept"}, podset.StripOwnAnnotations(given)); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	if len(given) != 6 {
		t.Error("the map that was given has been changed")
	}
}
