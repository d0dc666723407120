package claims

import (
	"errors"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"pgregory.net/rapid"
)

// TestTheNameOfAnAttachment compares with sha256sum: the controller of the cluster makes the object.
func TestTheNameOfAnAttachment(t *testing.T) {
	const want = "csi-67beaef07640111ae4680dbb1618fdc2d7e8b400988a31892dc9e25a33572edd"
	if got := AttachmentName("disk.example.com", "vol-1", "n1"); got != want {
		t.Errorf("got %s", got)
	}
}

func TestAClaimThatCannotBeUsed(t *testing.T) {
	bound := func() *v1.PersistentVolumeClaim {
		return &v1.PersistentVolumeClaim{
			Spec:   v1.PersistentVolumeClaimSpec{VolumeName: "pv-1"},
			Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound},
		}
	}
	for name, c := range map[string]struct {
		change func(*v1.PersistentVolumeClaim)
		cause  Cause
		text   string
	}{
		"bound":   {func(*v1.PersistentVolumeClaim) {}, "", ""},
		"pending": {func(c *v1.PersistentVolumeClaim) { c.Status.Phase = v1.ClaimPending }, CauseNotBound, "PVC is not bound"},
		"lost": {func(c *v1.PersistentVolumeClaim) { c.Status.Phase = v1.ClaimLost }, CauseLost,
			`PVC is not bound: it is lost, because its volume "pv-1" is gone`},
		"no volume": {func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeName = "" }, CauseNotBound, "PVC has empty pvc.Spec.VolumeName"},
		"deleted":   {func(c *v1.PersistentVolumeClaim) { c.DeletionTimestamp = &metav1.Time{} }, CauseDeleting, "PVC is being deleted"},
		"protected": {func(c *v1.PersistentVolumeClaim) {
			c.DeletionTimestamp, c.Finalizers = &metav1.Time{}, []string{protectionFinalizer}
		}, "", ""},
	} {
		claim := bound()
		c.change(claim)
		cause, err := usable(claim)
		if text := why(err); cause != c.cause || (err == nil) != (c.text == "") || err != nil && text != c.text {
			t.Errorf("%s: got %q, %v", name, cause, err)
		}
	}
}

func TestAVolumeThatIsNotTheClaims(t *testing.T) {
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{UID: "c1"}}
	local := v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: "/mnt"}}
	for name, c := range map[string]struct {
		spec  v1.PersistentVolumeSpec
		cause Cause
	}{
		"its own":   {v1.PersistentVolumeSpec{ClaimRef: &v1.ObjectReference{UID: "c1"}, PersistentVolumeSource: local}, ""},
		"free":      {v1.PersistentVolumeSpec{PersistentVolumeSource: local}, CauseMismatch},
		"another's": {v1.PersistentVolumeSpec{ClaimRef: &v1.ObjectReference{UID: "c2"}, PersistentVolumeSource: local}, CauseMismatch},
		"nothing":   {v1.PersistentVolumeSpec{ClaimRef: &v1.ObjectReference{UID: "c1"}}, CauseNoSource},
	} {
		volume := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-1"}, Spec: c.spec}
		if cause, err := belongs(volume, claim); cause != c.cause || (err == nil) != (cause == "") {
			t.Errorf("%s: got %q, %v", name, cause, err)
		}
	}
}

func TestAnAttachmentThatIsBeingDeletedIsNone(t *testing.T) {
	attachment := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{}},
		Status:     storagev1.VolumeAttachmentStatus{Attached: true},
	}
	if cause, err := attached(attachment, "vol-1", nil); cause != CauseNotAttached || err == nil || err.Error() != "volume attachment is being deleted" {
		t.Errorf("got %q, %v", cause, err)
	}
}

// TestPausesBetweenRequests checks that they grow, that many objects do not use up the client's limit, and that no pod
// waits much longer than it must.
func TestPausesBetweenRequests(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		polls, waiting := rapid.IntRange(0, 100).Draw(t, "polls"), rapid.IntRange(1, 1000).Draw(t, "waiting")
		got, next := pause(polls, waiting), pause(polls+1, waiting)
		rate := float64(waiting) / got.Seconds()
		if got < pollMin || got > next || rate > 25.001 || got > max(pollMax, time.Duration(waiting)*pollShare) {
			t.Fatalf("after %d requests, with %d objects: %v, then %v", polls, waiting, got, next)
		}
	})
	if pause(0, 1) != pollMin || pause(9, 1) != pollMax {
		t.Errorf("got %v and %v, want %v and %v", pause(0, 1), pause(9, 1), pollMin, pollMax)
	}
}

func TestAnErrorNamesWhatItWaitsFor(t *testing.T) {
	c := NewCluster(Config{NodeName: "n1"})
	failure := c.failed(key{kind: claimKind, namespace: "shop", name: "data"}, &Error{Cause: CauseNotBound, message: "PVC is not bound"})
	if got := failure.WaitsFor(); got != "persistentvolumeclaim shop/data" || failure.RejectsPod() != "" || !strings.Contains(failure.Error(), "bound") {
		t.Errorf("got %q", got)
	}
}

// TestOnlyAnAttachmentIsRoutine checks which errors are no events at first: those of a pod whose volume is being
// attached.
func TestOnlyAnAttachmentIsRoutine(t *testing.T) {
	attachment := key{kind: attachmentKind, name: "csi-1"}.String()
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "volumeattachments"}, "csi-1", nil)
	for name, c := range map[string]struct {
		failure Error
		routine bool
	}{
		"not attached":     {Error{Object: attachment, Cause: CauseNotAttached}, true},
		"missing":          {Error{Object: attachment, Cause: CauseMissing}, true},
		"forbidden":        {Error{Object: attachment, Cause: CauseUnknown, err: forbidden}, true},
		"away":             {Error{Object: attachment, Cause: CauseUnknown, err: errors.New("connection refused")}, false},
		"attaching failed": {Error{Object: attachment, Cause: CauseAttachFailed}, false},
		"a claim":          {Error{Object: key{kind: claimKind, name: "data"}.String(), Cause: CauseMissing}, false},
	} {
		if got := c.failure.IsRoutine(); got != c.routine {
			t.Errorf("%s: routine %t, want %t", name, got, c.routine)
		}
	}
}
