package localsource

import (
	"errors"
	"os"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
)

func claimOf(size string, mode v1.PersistentVolumeAccessMode) *apiobject.Object {
	return &apiobject.Object{Claim: &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data"},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{mode},
			Resources: v1.VolumeResourceRequirements{
				Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)},
			},
		},
	}}
}

// A claim's UID is that of its data: it stays over changes and restarts, and a claim that is deleted and applied again
// is another one.
func TestAnAppliedClaimKeepsItsUIDUntilItIsDeleted(t *testing.T) {
	r := newRig(t)
	reading := r.start()
	uid := func() types.UID {
		t.Helper()
		if len(reading.Objects) != 1 || reading.Objects[0].Claim == nil {
			t.Fatalf("there are %v, errors %v; want a claim", reading.Objects, reading.Errors)
		}
		return reading.Objects[0].Claim.UID
	}
	ops := []podset.Op{r.applyObject(claimOf("1Gi", v1.ReadWriteOnce)), r.applyObject(claimOf("1Gi", v1.ReadWriteOnce))}
	reading = r.restart()
	first := uid()
	if ops[0] != podset.Add || ops[1] != podset.None || first == "" || !reading.Objects[0].IsApplied() {
		t.Errorf("operations %v, UID %q", ops, first)
	}
	if op := r.applyObject(claimOf("2Gi", v1.ReadWriteOnce)); op != podset.Update {
		t.Errorf("another size: %v", op)
	}
	var invalid *InvalidError
	if _, err := r.ApplyObject(t.Context(), claimOf("2Gi", v1.ReadWriteMany), false); !errors.As(err, &invalid) ||
		invalid.Problems[0].Field != "spec" {
		t.Errorf("another access mode: %v", err)
	}
	reading = r.restart()
	if request := reading.Objects[0].Claim.Spec.Resources.Requests.Storage(); uid() != first || request.String() != "2Gi" {
		t.Errorf("UID %q, size %s; want that of before, and 2Gi", uid(), request)
	}
	key := apiobject.Key{Kind: apiobject.Claim, Name: "data"}
	must(t, r.DeleteObject(t.Context(), key))
	var unknown *UnknownObjectError
	if err := r.DeleteObject(t.Context(), key); !errors.As(err, &unknown) {
		t.Errorf("deleting it again: %v", err)
	}
	r.applyObject(claimOf("2Gi", v1.ReadWriteMany))
	if reading = r.restart(); uid() == first {
		t.Error("a claim that was deleted and applied again has the UID of before")
	}
	r.stop()
}

// A damaged file of a claim is set aside: a claim with another UID would start without its data.
func TestAClaimWithoutItsUIDIsSetAside(t *testing.T) {
	r := newRig(t)
	r.start()
	r.applyObject(claimOf("1Gi", v1.ReadWriteOnce))
	r.stop()
	path := r.objectPath(apiobject.Key{Kind: apiobject.Claim, Namespace: "default", Name: "data"})
	content, err := os.ReadFile(path)
	must(t, err)
	content, err = statedir.Checked(content, "") // as v0.1.0 has written it
	must(t, err)
	must(t, os.WriteFile(path, []byte(strings.Replace(string(content), `"uid":"`, `"generateName":"`, 1)), 0o600))
	reading := r.start()
	if len(reading.Objects) != 0 || len(reading.Errors) != 1 ||
		!strings.Contains(reading.Errors[0].Message, "it has no claim with a UID; it was renamed: apply the claim again") {
		t.Errorf("there are %v, errors %v, want none, exactly one and reading.Errors[0].Message with %q",
			reading.Objects, reading.Errors, "it has no claim with a UID; it was renamed: apply the claim again")
	}
	r.stop()
}
