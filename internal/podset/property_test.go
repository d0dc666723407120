package podset_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/quartet-node/quartet/internal/podset"
)

// pods draws up to ten pods from a small space, so that sets overlap and repeat often.
func pods(t *rapid.T, label string) []*v1.Pod {
	one := rapid.Custom(func(t *rapid.T) *v1.Pod {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "namespace"),
			Name:      fmt.Sprintf("pod-%d", rapid.IntRange(0, 5).Draw(t, "name")),
			UID:       types.UID(fmt.Sprintf("uid-%d", rapid.IntRange(0, 9).Draw(t, "uid"))),
		}}
		p.Spec.NodeName = rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "spec")
		p.Status.Phase = rapid.SampledFrom([]v1.PodPhase{"", v1.PodRunning}).Draw(t, "phase")
		p.Labels = rapid.SampledFrom([]map[string]string{nil, {}, {"l": "1"}}).Draw(t, "labels")
		p.Annotations = rapid.SampledFrom([]map[string]string{
			nil, {podset.AnnotationSeen: "1"}, {"a": "1"}, {"a": "2", podset.AnnotationSource: "z"},
		}).Draw(t, "annotations")
		if rapid.Bool().Draw(t, "deleted") {
			at := metav1.NewTime(time.Unix(1000, 0))
			p.DeletionTimestamp = &at
		}
		return p
	})
	return rapid.SliceOfN(one, 0, 10).Draw(t, label)
}

// clean draws pods that no filter would reject.
func clean(t *rapid.T, label string) []*v1.Pod {
	kept, _ := podset.Filter(pods(t, label))
	return kept
}

// equalSets compares the relevant fields of the pods of two sets.
func equalSets(a, b podset.Set) bool {
	if len(a) != len(b) {
		return false
	}
	for uid, p := range a {
		if q, has := b[uid]; !has || !podset.Equal(p, q) {
			return false
		}
	}
	return true
}

func TestApplyingAMergeGivesTheNewSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		old := podset.Merge(nil, clean(t, "old")).Set
		merged := podset.Merge(old, clean(t, "new"))
		if got := podset.Apply(old, merged.List); !equalSets(got, merged.Set) {
			t.Fatalf("applying %d changes does not give the new set:\n%s", len(merged.List), cmp.Diff(merged.Set, got))
		}
		again := podset.Merge(merged.Set, podsOf(merged.Set))
		if len(again.List) != 0 {
			t.Fatalf("merging a set with itself yields %d changes, want 0", len(again.List))
		}
	})
}

func TestEqualPodsChangeNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		given := clean(t, "pods")
		old := podset.Merge(nil, given).Set
		copies := make([]*v1.Pod, len(given))
		for i, p := range given {
			copies[i] = p.DeepCopy()
			if copies[i].Annotations == nil {
				copies[i].Annotations = map[string]string{}
			}
			copies[i].Annotations[podset.AnnotationSeen] = "another time"
		}
		if merged := podset.Merge(old, copies); len(merged.List) != 0 {
			t.Fatalf("equal pods yield %v, want none", merged.List)
		}
	})
}

func TestChangesAreOrderedAndNameEachPodOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		old := podset.Merge(nil, clean(t, "old")).Set
		merged := podset.Merge(old, clean(t, "new"))
		seen := map[types.UID]bool{}
		for _, c := range merged.List {
			if c.Op == podset.None || c.Op == podset.Restore {
				t.Fatalf("a merge yields %s", c.Op)
			}
			if seen[c.UID()] {
				t.Fatalf("two changes of %s", c.UID())
			}
			seen[c.UID()] = true
			if _, known := old[c.UID()]; known != (c.Old != nil) || (c.New == nil) != (c.Op == podset.Remove) {
				t.Fatalf("%s of %s: old %v new %v", c.Op, c.UID(), c.Old != nil, c.New != nil)
			}
		}
		if !slices.IsSortedFunc(merged.List, func(a, b podset.Change) int { return int(a.Op) - int(b.Op) }) {
			t.Fatalf("changes out of order: %v", merged.List)
		}
	})
}

// The pods of a source do not depend on other sources: a reading is merged with the set of its own source only, and
// merging changes neither the set nor the given pods.
func TestSourcesNeverSeeEachOther(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sets := map[string]podset.Set{}
		last := map[string][]*v1.Pod{}
		for range rapid.IntRange(1, 6).Draw(t, "steps") {
			source := rapid.SampledFrom([]string{"file", "http", "api"}).Draw(t, "source")
			before := map[string]podset.Set{}
			for name, set := range sets {
				before[name] = podset.Apply(set, nil)
			}
			last[source] = clean(t, "pods")
			merged := podset.Merge(sets[source], last[source])
			for name, set := range before {
				if !cmp.Equal(set, sets[name]) {
					t.Fatalf("merging %s changed the set of %s", source, name)
				}
			}
			sets[source] = merged.Set
		}
		for name, given := range last {
			if !equalSets(sets[name], podset.Merge(nil, given).Set) {
				t.Fatalf("the set of %s is not what it gave last", name)
			}
		}
	})
}

func TestFilterKeepsNoRepetition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		given := pods(t, "pods")
		kept, rejected := podset.Filter(given)
		if len(kept)+len(rejected) != len(given) {
			t.Fatalf("%d kept and %d rejected of %d", len(kept), len(rejected), len(given))
		}
		if again, more := podset.Filter(kept); len(more) != 0 || len(again) != len(kept) {
			t.Fatalf("filtering twice rejects %d more", len(more))
		}
	})
}

func podsOf(set podset.Set) []*v1.Pod {
	var out []*v1.Pod
	for _, p := range set {
		out = append(out, p)
	}
	return out
}
