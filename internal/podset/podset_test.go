package podset_test

import (
	"maps"
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

func TestMergePart(t *testing.T) {
	old := podset.Merge(nil, []*v1.Pod{pod("kept"), pod("changed"), pod("status"), pod("gone")}).Set
	deleted := metav1.NewTime(time.Unix(1000, 0))
	changed := pod("changed", func(p *v1.Pod) { p.Spec.NodeName = "n" })
	status := pod("status", func(p *v1.Pod) { p.Status.Phase = v1.PodRunning })
	ending := pod("gone", func(p *v1.Pod) { p.DeletionTimestamp = &deleted })
	for _, tc := range []struct {
		name string
		op   podset.Op
		pods []*v1.Pod
		want []string
	}{
		{"pods come", podset.Add, []*v1.Pod{status, pod("new"), changed, pod("kept")}, []string{"ADD new", "UPDATE changed", "RECONCILE status"}},
		{"an update may be of a pod that was not known", podset.Update, []*v1.Pod{pod("new")}, []string{"ADD new"}},
		{"a pod ends with grace", podset.Delete, []*v1.Pod{ending}, []string{"DELETE gone"}},
		{"pods are gone", podset.Remove, []*v1.Pod{{ObjectMeta: metav1.ObjectMeta{UID: "gone"}}, pod("unknown")}, []string{"REMOVE gone"}},
		{"pods are restored", podset.Restore, []*v1.Pod{pod("old"), changed}, []string{"UPDATE changed", "RESTORE old"}},
		{"the last of two counts", podset.Add, []*v1.Pod{changed, pod("changed")}, nil},
		{"there are none", podset.Add, nil, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			set := maps.Clone(old)
			got := podset.MergePart(set, tc.op, tc.pods)
			var ops []string
			for _, c := range got {
				ops = append(ops, c.Op.String()+" "+string(c.UID()))
			}
			if diff := cmp.Diff(tc.want, ops); diff != "" {
				t.Errorf("changes (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(podset.Apply(old, got), set); diff != "" {
				t.Errorf("the set is not the old one with the changes (-applied +set):\n%s", diff)
			}
			if old["changed"].Spec.NodeName != "" {
				t.Error("a pod was changed")
			}
		})
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
