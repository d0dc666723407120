package mux_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

// A manifest that names an applied claim takes precedence over it, and keeps its data: the UID stays that of the
// applied claim until that is deleted.
func TestAManifestThatTakesAnAppliedClaimOverKeepsItsUID(t *testing.T) {
	r := newRig(t)
	manifest := &apiobject.Object{Claim: &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data"},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources: v1.VolumeResourceRequirements{
				Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")},
			},
		},
	}}
	if errs := manifest.Prepare(); len(errs) > 0 {
		t.Fatalf("Prepare() = %v, want no error", errs)
	}
	given := []source.Object{{Object: manifest, Path: "/m/data.yaml"}}
	applied := []source.Object{{Object: manifest.WithUID("applied"), Path: "/state/data.claim"}}
	want := func(what, from, uid string) {
		t.Helper()
		all := r.Objects(apiobject.Claim)
		if len(all) != 1 {
			t.Fatalf("%s: there are %v, want one claim", what, all)
		}
		claim := &v1.PersistentVolumeClaim{}
		if err := claim.Unmarshal(all[0].GetPersistentVolumeClaim()); err != nil {
			t.Fatal(err)
		}
		if string(claim.UID) != uid || all[0].GetSource() != from {
			t.Errorf("%s: UID %q of %s, want %q of %s", what, claim.UID, all[0].GetSource(), uid, from)
		}
	}
	r.Set("api", source.Reading{Objects: applied})
	want("applied alone", "api", "applied")
	r.Set("file", source.Reading{Objects: given})
	want("taken over", "file", "applied")
	metricstest.Want(t, r.registry, 1, "quartet_configmux_source_objects", "source", "file", "kind", "persistentvolumeclaim")
	r.Set("file", source.Reading{Objects: given})
	metricstest.Want(t, r.registry, 1, "quartet_configmux_object_changes_total", "source", "file", "kind",
		"persistentvolumeclaim", "op", "update")
	r.Set("file", source.Reading{})
	want("given back", "api", "applied")
	r.Set("file", source.Reading{Objects: given})
	r.Set("api", source.Reading{})
	want("deleted", "file", string(manifest.Claim.UID))
}
