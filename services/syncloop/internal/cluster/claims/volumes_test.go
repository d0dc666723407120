package claims_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/claims"
)

func TestAVolumeIsUsedWhenItIsAttached(t *testing.T) {
	r := newRig(t, "attacher", clock.RealClock{})
	claim := r.bind(r.claim())
	pod := r.use("web", claimVolume())
	comesTo(t, claim.Spec.VolumeName, func() string { return r.gives(pod) })
	handle := "handle/of-" + string(claim.UID)
	name := claims.AttachmentName(driverName, handle, r.node)
	attach := func() string {
		got, err := r.Attachment(t.Context(), driverName, handle)
		if err != nil {
			return err.Error()
		}
		return cmp.Diff(map[string]string(nil), got)
	}
	comesTo(t, "volume "+handle+" has GET error for volume attachment "+name+": ", attach)
	r.untell()
	attachment := created(t, r.admin.StorageV1().VolumeAttachments().Create, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: driverName, NodeName: r.node,
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &claim.Spec.VolumeName},
		},
	})
	r.awaitNotified(pod)
	if got, want := attach(), "volume "+handle+" is not attached for volume attachment "+name; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	r.untell()
	attachment.Status.AttachError = &storagev1.VolumeError{Message: "rpc error: no place", ErrorCode: ptr.To[int32](8)}
	attachment = updated(t, r.admin.StorageV1().VolumeAttachments().UpdateStatus, attachment)
	r.awaitNotified(pod)
	_, err := r.Attachment(t.Context(), driverName, handle)
	if failure := (*claims.Error)(nil); !errors.As(err, &failure) || failure.Cause != claims.CauseAttachFailed ||
		err.Error() != "rpc error: no place" || failure.RejectsPod() != "" || failure.WaitsFor() != "volumeattachment "+name {
		t.Errorf("got %v", err)
	}

	r.untell()
	driver := created(t, r.admin.StorageV1().CSIDrivers().Create, &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: driverName},
		Spec:       storagev1.CSIDriverSpec{NodeAllocatableUpdatePeriodSeconds: ptr.To[int64](60)},
	})
	r.awaitNotified(pod)
	_, err = r.Attachment(t.Context(), driverName, handle)
	if failure := (*claims.Error)(nil); !errors.As(err, &failure) || failure.RejectsPod() != claims.ReasonLimitExceeded ||
		failure.ExhaustedDriver() != driverName {
		t.Errorf("got %v", err)
	}

	r.untell()
	attachment.Status = storagev1.VolumeAttachmentStatus{
		Attached: true, AttachmentMetadata: map[string]string{"device": "/dev/sdz"},
	}
	updated(t, r.admin.StorageV1().VolumeAttachments().UpdateStatus, attachment)
	r.awaitNotified(pod)
	if got, err := r.Attachment(t.Context(), driverName, handle); err != nil || got["device"] != "/dev/sdz" {
		t.Errorf("got %v, %v", got, err)
	}

	// The volume is detached. A new pod must not get what was true for another one.
	if err := r.admin.StorageV1().VolumeAttachments().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.use("second", claimVolume())
	comesTo(t, "volume "+handle+" has GET error for volume attachment "+name+": ", attach)

	if err := r.admin.StorageV1().CSIDrivers().Delete(t.Context(), driver.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	created(t, r.admin.StorageV1().CSIDrivers().Create, &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: driverName}, Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)},
	})
	comesTo(t, "false", func() string {
		known, err := r.Driver(t.Context(), driverName)
		if err != nil || known == nil {
			return "none"
		}
		return map[bool]string{true: "true", false: "false"}[*known.Spec.AttachRequired]
	})
	if got, err := r.Attachment(t.Context(), driverName, handle); err != nil || got != nil {
		t.Errorf("without a need for an attachment: %v, %v", got, err)
	}
	if known, err := r.Driver(t.Context(), "none.example.com"); err != nil || known != nil {
		t.Errorf("a driver without an object: %v, %v", known, err)
	}
	if err := r.admin.StorageV1().CSIDrivers().Delete(t.Context(), driverName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestADetachmentIsSeenAtOnce has a pod that has waited for something else since its volume was attached.
func TestADetachmentIsSeenAtOnce(t *testing.T) {
	r := newRig(t, "detacher", clock.RealClock{})
	claim := r.bind(r.claim())
	pod := r.use("web", claimVolume())
	comesTo(t, claim.Spec.VolumeName, func() string { return r.gives(pod) })
	handle := "handle/of-" + string(claim.UID)
	name := claims.AttachmentName(driverName, handle, r.node)
	attachment := created(t, r.admin.StorageV1().VolumeAttachments().Create, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{"external-attacher/disks-example-com"}},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: driverName, NodeName: r.node,
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &claim.Spec.VolumeName},
		},
	})
	attachment.Status = storagev1.VolumeAttachmentStatus{
		Attached: true, AttachmentMetadata: map[string]string{"device": "/dev/sdz"},
	}
	updated(t, r.admin.StorageV1().VolumeAttachments().UpdateStatus, attachment)
	comesTo(t, "/dev/sdz", func() string {
		got, err := r.Attachment(t.Context(), driverName, handle)
		if err != nil {
			return err.Error()
		}
		return got["device"]
	})
	if got, err := r.AttachmentNow(t.Context(), driverName, handle); err != nil || got["device"] != "/dev/sdz" {
		t.Errorf("got %v, %v", got, err)
	}
	if err := r.admin.StorageV1().VolumeAttachments().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := r.AttachmentNow(t.Context(), driverName, handle)
	if err == nil || err.Error() != "volume attachment is being deleted" {
		t.Errorf("while it is being detached: %v", err)
	}
	if _, err := r.Attachment(t.Context(), driverName, handle); err == nil {
		t.Error("what is known is still the old attachment")
	}
	r.untell()
	patch := []byte(`{"metadata":{"finalizers":null}}`)
	_, err = r.admin.StorageV1().VolumeAttachments().Patch(t.Context(), name, types.MergePatchType, patch,
		metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.awaitNotified(pod)
	if _, err := r.AttachmentNow(t.Context(), driverName, handle); err == nil {
		t.Error("a detached volume is attached")
	}
}

func TestSecretsOfVolumes(t *testing.T) {
	r := newRig(t, "secret", clock.RealClock{})
	claim := r.bind(r.claim())
	pod := r.use("web", claimVolume(), v1.Volume{Name: "inline", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{
		Driver: driverName, NodePublishSecretRef: &v1.LocalObjectReference{Name: "inline"},
	}}})
	comesTo(t, claim.Spec.VolumeName, func() string { return r.gives(pod) })
	for _, name := range []string{"login", "inline"} {
		ask := func() string {
			secret, err := r.Secret(t.Context(), r.shop, name)
			if err != nil {
				return err.Error()
			}
			return string(secret.Data["password"])
		}
		comesTo(t, "failed to find the secret "+name+" in the namespace "+r.shop+` with error: secrets "`+name+`" not found`, ask)
		r.untell()
		created(t, r.admin.CoreV1().Secrets(r.shop).Create, &v1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string][]byte{"password": []byte("hunter2")},
		})
		r.awaitNotified(pod)
		if got := ask(); got != "hunter2" {
			t.Errorf("got %q", got)
		}
	}
	// A driver refuses the content, which is corrected later.
	refused, err := r.Secret(t.Context(), r.shop, "login")
	if err != nil {
		t.Fatal(err)
	}
	r.untell()
	r.Refused(pod.UID, refused)
	correct := []byte(`{"stringData":{"password":"correct"}}`)
	_, err = r.admin.CoreV1().Secrets(r.shop).Patch(t.Context(), "login", types.MergePatchType, correct,
		metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.awaitNotified(pod)
	if got, err := r.Secret(t.Context(), r.shop, "login"); err != nil || string(got.Data["password"]) != "correct" {
		t.Errorf("got %v, %v", got, err)
	}
	_, err = r.Secret(t.Context(), "kube-system", "login")
	if !apierrors.IsForbidden(err) {
		t.Errorf("a secret that no volume of the node names: %v", err)
	}
	// A name is a part of a path.
	for _, name := range []string{"../../other/persistentvolumeclaims/data", "other/data", ".."} {
		pod := pod.DeepCopy()
		pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = name
		if got := r.gives(pod); !strings.Contains(got, "invalid resource name") {
			t.Errorf("claim %q: %v", name, got)
		}
	}
}

func TestTheProgressOfAnExpansionIsInTheStatusOfTheClaim(t *testing.T) {
	r := newRig(t, "expander", clock.RealClock{})
	claim := r.bind(r.claim())
	pod := r.use("web", claimVolume())
	comesTo(t, claim.Spec.VolumeName, func() string { return r.gives(pod) })
	// As external-resizer does.
	claim.Status.AllocatedResources = v1.ResourceList{v1.ResourceStorage: resource.MustParse("2Gi")}
	claim.Status.AllocatedResourceStatuses = map[v1.ResourceName]v1.ClaimResourceStatus{
		v1.ResourceStorage: v1.PersistentVolumeClaimNodeResizePending,
	}
	claim.Status.Conditions = []v1.PersistentVolumeClaimCondition{
		{Type: v1.PersistentVolumeClaimFileSystemResizePending, Status: v1.ConditionTrue},
		{Type: "example.com/Other", Status: v1.ConditionTrue},
	}
	pending := updated(t, r.admin.CoreV1().PersistentVolumeClaims(r.shop).UpdateStatus, claim)

	expanding, err := r.MarkExpanding(t.Context(), pending)
	if err != nil || resizing(expanding) != v1.PersistentVolumeClaimNodeResizeInProgress {
		t.Fatalf("got %+v, %v", expanding, err)
	}
	got, _, err := r.Claim(t.Context(), pod, &pod.Spec.Volumes[0])
	if err != nil || got.ResourceVersion != expanding.ResourceVersion {
		t.Errorf("the new state is not known: %v, %v", got, err)
	}
	if _, err := r.MarkExpanding(t.Context(), pending); !apierrors.IsConflict(err) {
		t.Errorf("with an old claim: %v", err)
	}
	failed, err := r.MarkExpansionFailed(t.Context(), expanding, errors.New("rpc error: busy"), false)
	if err != nil || resizing(failed) != v1.PersistentVolumeClaimNodeResizeInProgress ||
		conditions(failed) != "FileSystemResizePending NodeResizeError: failed to expand pvc with rpc error: busy example.com/Other" {
		t.Fatalf("got %+v, %v", failed, err)
	}
	if again, err := r.MarkExpansionFailed(t.Context(), failed, errors.New("another"), false); err != nil || conditions(again) != conditions(failed) {
		t.Errorf("again: %+v, %v", again, err)
	}
	infeasible, err := r.MarkExpansionFailed(t.Context(), failed, errors.New("too small"), true)
	if err != nil || resizing(infeasible) != v1.PersistentVolumeClaimNodeResizeInfeasible {
		t.Fatalf("got %+v, %v", infeasible, err)
	}
	done, err := r.MarkExpanded(t.Context(), infeasible, resource.MustParse("2Gi"))
	if err != nil || len(done.Status.AllocatedResourceStatuses) != 0 || done.Status.Capacity.Storage().String() != "2Gi" ||
		done.Status.AllocatedResources.Storage().String() != "2Gi" || conditions(done) != "example.com/Other" {
		t.Fatalf("got %+v, %v", done, err)
	}
}

func resizing(claim *v1.PersistentVolumeClaim) v1.ClaimResourceStatus {
	return claim.Status.AllocatedResourceStatuses[v1.ResourceStorage]
}

func conditions(claim *v1.PersistentVolumeClaim) string {
	var texts []string
	for _, c := range claim.Status.Conditions {
		text := string(c.Type)
		if c.Message != "" {
			text += ": " + c.Message
		}
		texts = append(texts, text)
	}
	slices.Sort(texts)
	return strings.Join(texts, " ")
}
