package apiobject_test

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
)

// claim returns a valid claim, changed by some functions.
func claim(changes ...func(*v1.PersistentVolumeClaim)) *apiobject.Object {
	c := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data"},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources: v1.VolumeResourceRequirements{
				Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")},
			},
		},
	}
	for _, change := range changes {
		change(c)
	}
	return &apiobject.Object{Claim: c}
}

func size(text string) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) {
		c.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse(text)
	}
}

// A claim of a manifest has the defaults of the API, no status of another node, and a UID that depends on its name
// alone, so that its data survive every edit of the manifest.
func TestAClaimOfAManifestHasAUIDOfItsName(t *testing.T) {
	one := claim(func(c *v1.PersistentVolumeClaim) {
		c.UID, c.Status.Phase = "theirs", v1.ClaimLost
	})
	other := claim(size("2Gi"), func(c *v1.PersistentVolumeClaim) { c.Labels = map[string]string{"a": "b"} })
	elsewhere := claim(func(c *v1.PersistentVolumeClaim) { c.Namespace = "elsewhere" })
	for _, o := range []*apiobject.Object{one, other, elsewhere} {
		if errs := o.Prepare(); len(errs) > 0 {
			t.Fatalf("Prepare() = %v, want no error", errs)
		}
	}
	c := one.Claim
	if c.Kind != "PersistentVolumeClaim" || c.Namespace != "default" || *c.Spec.VolumeMode != v1.PersistentVolumeFilesystem ||
		c.Status.Phase != v1.ClaimPending || len(c.UID) != 36 {
		t.Errorf("the claim is %+v", c)
	}
	if one.Key().String() != "persistentvolumeclaim default/data" || len(one.Keys()) != 0 || one.Immutable() {
		t.Errorf("key %s, data %v, immutable %v", one.Key(), one.Keys(), one.Immutable())
	}
	if c.UID != other.Claim.UID || c.UID == elsewhere.Claim.UID || one.IsApplied() || !one.WithUID("own").IsApplied() {
		t.Errorf("UIDs %q, %q of the same, %q of another", c.UID, other.Claim.UID, elsewhere.Claim.UID)
	}
	data, err := one.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	again, err := apiobject.Unmarshal(apiobject.Claim, data)
	if err != nil || again.Key() != one.Key() || again.Claim.UID != c.UID {
		t.Errorf("read again: %v, %v", again, err)
	}
	if _, err := apiobject.Unmarshal(apiobject.Claim, []byte("x")); err == nil {
		t.Error("bytes that are no claim are read")
	}
}

func TestAClaimThatTheNodeCannotServeIsRefusedByField(t *testing.T) {
	class, empty, block, group := "fast", "", v1.PersistentVolumeBlock, "snapshot.storage.k8s.io"
	for want, change := range map[string]func(*v1.PersistentVolumeClaim){
		"metadata.name: Invalid value":                  func(c *v1.PersistentVolumeClaim) { c.Name = "A_b" },
		"spec.accessModes: Required value":              func(c *v1.PersistentVolumeClaim) { c.Spec.AccessModes = nil },
		"spec.accessModes: Unsupported value":           func(c *v1.PersistentVolumeClaim) { c.Spec.AccessModes[0] = "Sometimes" },
		"spec.resources[storage]: Required value":       func(c *v1.PersistentVolumeClaim) { c.Spec.Resources.Requests = nil },
		"spec.resources[storage]: Invalid value":        size("-1"),
		"spec.volumeName: Forbidden: a node":            func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeName = "pv" },
		"spec.selector: Forbidden: a node":              func(c *v1.PersistentVolumeClaim) { c.Spec.Selector = &metav1.LabelSelector{} },
		"spec.volumeMode: Forbidden: a claim without a": func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeMode = &block },
		"spec.dataSource: Forbidden: a node": func(c *v1.PersistentVolumeClaim) {
			c.Spec.DataSource = &v1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: "s"}
		},
		"spec.dataSourceRef: Forbidden: a node": func(c *v1.PersistentVolumeClaim) {
			c.Spec.DataSourceRef = &v1.TypedObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: "s"}
		},
		"spec.volumeAttributesClassName: Forbidden: a node": func(c *v1.PersistentVolumeClaim) {
			c.Spec.VolumeAttributesClassName = &class
		},
	} {
		if errs := claim(change).Prepare(); len(errs) == 0 || !strings.Contains(errs.ToAggregate().Error(), want) {
			t.Errorf("got %v, want %s", errs, want)
		}
	}
	if errs := claim(func(c *v1.PersistentVolumeClaim) { c.Spec.StorageClassName = &empty }).Prepare(); len(errs) > 0 {
		t.Errorf("without a storage class: %v", errs)
	}
	device := claim(func(c *v1.PersistentVolumeClaim) { c.Spec.StorageClassName, c.Spec.VolumeMode = &class, &block })
	if errs := device.Prepare(); len(errs) > 0 {
		t.Errorf("a block device of a storage class: %v", errs)
	}
}

// As with an API server, the size of a claim may change, and nothing else of its spec.
func TestOfAClaimTheSizeMayChange(t *testing.T) {
	before := claim()
	shared := claim(func(c *v1.PersistentVolumeClaim) { c.Spec.AccessModes[0] = v1.ReadWriteMany })
	larger, smaller := claim(size("2Gi")), claim(size("1Mi"))
	for _, o := range []*apiobject.Object{before, shared, larger, smaller} {
		if errs := o.Prepare(); len(errs) > 0 {
			t.Fatalf("Prepare() = %v, want no error", errs)
		}
	}
	before = before.WithUID("applied")
	for _, o := range []*apiobject.Object{larger, smaller} {
		if errs := o.CheckUpdate(before); len(errs) > 0 {
			t.Errorf("another size: %v", errs)
		}
	}
	if errs := shared.CheckUpdate(before); len(errs) != 1 || errs[0].Field != "spec" ||
		!strings.Contains(errs[0].Detail, "spec is immutable after creation") {
		t.Errorf("another access mode: %v", errs)
	}
}
