package claims

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"
)

// answer draws what the API server says of an object, in a new version.
func answer(t *rapid.T, k key, version int) (runtime.Object, error) {
	about := metav1.ObjectMeta{Namespace: k.namespace, Name: k.name, ResourceVersion: strconv.Itoa(version)}
	switch rapid.IntRange(0, 3).Draw(t, "answer") {
	case 0:
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: string(k.kind)}, k.name)
	case 1:
		return nil, apierrors.NewServiceUnavailable("away")
	}
	switch k.kind {
	case claimKind:
		bound := rapid.SampledFrom([]string{"", "pv-1", "pv-2"}).Draw(t, "bound")
		return &v1.PersistentVolumeClaim{ObjectMeta: about, Spec: v1.PersistentVolumeClaimSpec{VolumeName: bound}}, nil
	case volumeKind:
		volume := &v1.PersistentVolume{ObjectMeta: about}
		volume.Spec.CSI = &v1.CSIPersistentVolumeSource{
			Driver: "d", VolumeHandle: k.name, NodeStageSecretRef: &v1.SecretReference{Namespace: "shop", Name: "login"},
		}
		return volume, nil
	case attachmentKind, secretKind:
	}
	return &v1.Secret{ObjectMeta: about}, nil
}

// TestWhatIsHeldIsWhatPodsDependOn checks the books of a Cluster after any sequence of pods, answers and errors:
// nothing is requested that no pod needs, no content of a secret is kept, and a pod that got an error is told of each
// change.
func TestWhatIsHeldIsWhatPodsDependOn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := NewCluster(Config{NodeName: "n1", Clock: testingclock.NewFakeClock(time.Unix(0, 0))})
		for step := range rapid.IntRange(1, 60).Draw(t, "steps") {
			uid := rapid.SampledFrom([]types.UID{"u1", "u2", "u3"}).Draw(t, "pod")
			byName := func(a, b key) int { return cmp.Compare(a.String(), b.String()) }
			switch keys := slices.SortedFunc(maps.Keys(c.held), byName); {
			case len(keys) == 0, rapid.IntRange(0, 3).Draw(t, "what") == 0:
				c.Use(drawnPod(t, uid))
			case rapid.IntRange(0, 4).Draw(t, "ends") == 0:
				c.Forget(uid)
			case rapid.IntRange(0, 4).Draw(t, "secret") == 0:
				name := rapid.SampledFrom([]string{"login", "inline"}).Draw(t, "name")
				if rapid.Bool().Draw(t, "accepted") {
					c.Accepted(uid, "shop", name)
					break
				}
				version := strconv.Itoa(rapid.IntRange(0, step).Draw(t, "version"))
				c.Refused(uid, &v1.Secret{ObjectMeta: metav1.ObjectMeta{
					Namespace: "shop", Name: name, ResourceVersion: version,
				}})
			default:
				k := rapid.SampledFrom(keys).Draw(t, "object")
				if rapid.Bool().Draw(t, "fails") {
					_ = c.failed(k, &Error{}, uid)
					break
				}
				h := c.held[k]
				before, waiters, users := h.version, slices.Collect(maps.Keys(h.waiters)), c.usersOf(k)
				was := h.known
				object, err := answer(t, k, step)
				affected := c.note(k, h, object, err)
				if was && before != h.version && !slices.Equal(sorted(affected), sorted(users)) {
					t.Fatalf("%s has changed, and %v are told, not %v", k, affected, users)
				}
				if was && before != h.version && len(missing(waiters, affected)) > 0 {
					t.Fatalf("%s has changed, and %v wait for it, but %v are told", k, waiters, affected)
				}
			}
			consistent(t, c)
		}
		for _, uid := range []types.UID{"u1", "u2", "u3"} {
			c.Forget(uid)
		}
		if consistent(t, c); len(c.held) > 0 || c.waiting != 0 {
			t.Fatalf("without pods %v are held", c.held)
		}
	})
}

func drawnPod(t *rapid.T, uid types.UID) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: string(uid), UID: uid}}
	for _, name := range rapid.SliceOfDistinct(rapid.SampledFrom([]string{"a", "b", "c"}), rapid.ID).Draw(t, "claims") {
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		}})
	}
	if rapid.Bool().Draw(t, "inline") {
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: "inline", VolumeSource: v1.VolumeSource{
			CSI: &v1.CSIVolumeSource{Driver: "d", NodePublishSecretRef: &v1.LocalObjectReference{Name: "inline"}},
		}})
	}
	return pod
}

// consistent checks what always holds.
func consistent(t *rapid.T, c *Cluster) {
	used := map[key]bool{}
	for _, u := range c.pods {
		for _, k := range c.reach(u) {
			used[k] = true
			if needed := k.kind == claimKind || k.kind == volumeKind; needed && c.held[k] == nil {
				t.Fatalf("%s is used and not held", k)
			}
		}
	}
	waiting := 0
	for k, h := range c.held {
		if !used[k] {
			t.Fatalf("%s is held, and no pod depends on it", k)
		}
		if k.kind == secretKind && h.object != nil {
			t.Fatalf("%s is kept", k)
		}
		if len(h.waiters) > 0 {
			waiting++
		}
		for uid := range h.waiters {
			if _, known := c.pods[uid]; !known {
				t.Fatalf("%s waits for %s and is gone", uid, k)
			}
		}
	}
	if waiting != c.waiting {
		t.Fatalf("%d objects are waited for, and %d are counted", waiting, c.waiting)
	}
}

func sorted(uids []types.UID) []types.UID { return slices.Sorted(slices.Values(uids)) }

func missing(some, from []types.UID) []types.UID {
	return slices.DeleteFunc(slices.Clone(some), func(uid types.UID) bool { return slices.Contains(from, uid) })
}

// TestANewPodGetsNothingThatTheNodeMayNotReadAnyMore checks that a running pod does, and that the new one is told when
// the node may read it again, although it is as it was.
func TestANewPodGetsNothingThatTheNodeMayNotReadAnyMore(t *testing.T) {
	fake := testingclock.NewFakeClock(time.Unix(1_000_000, 0))
	c := NewCluster(Config{NodeName: "n1", Clock: fake})
	k := key{kind: claimKind, namespace: "shop", name: "data"}
	pod := func(uid types.UID) *v1.Pod {
		return &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: string(uid), UID: uid},
			Spec: v1.PodSpec{Volumes: []v1.Volume{{VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
			}}}},
		}
	}
	answer := func(object runtime.Object, err error) []types.UID {
		h := c.held[k]
		h.requestedAt = fake.Now()
		told := c.note(k, h, object, err)
		if !isClosed(h.answered) {
			close(h.answered)
		}
		return told
	}
	about := metav1.ObjectMeta{Namespace: "shop", Name: "data", ResourceVersion: "1"}
	claim := &v1.PersistentVolumeClaim{ObjectMeta: about}
	c.Use(pod("old"))
	answer(claim, nil)
	fake.Step(time.Minute)
	c.Use(pod("new"))
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "persistentvolumeclaims"}, "data", nil)
	if told := answer(nil, forbidden); len(told) != 0 {
		t.Errorf("%v are told, want none", told)
	}
	if got, err := c.get(t.Context(), k, "old"); got != claim || err != nil {
		t.Errorf("the running pod gets %v, %v, want %v", got, err, claim)
	}
	if got, err := c.get(t.Context(), k, "new"); got != nil || !apierrors.IsForbidden(err) {
		t.Errorf("the new pod gets %v, %v", got, err)
	}
	if told := answer(claim, nil); !slices.Contains(told, "new") {
		t.Errorf("%v are told, want %q among them", told, "new")
	}
	if got, err := c.get(t.Context(), k, "new"); got != claim || err != nil {
		t.Errorf("then the new pod gets %v, %v, want %v", got, err, claim)
	}
}
