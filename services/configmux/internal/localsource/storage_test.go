package localsource

import (
	"errors"
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
)

// Storage classes and CSIDrivers have no namespace, survive a restart, and keep their immutable fields.
func TestAnAppliedStorageClassIsKept(t *testing.T) {
	class := func(change func(*storagev1.StorageClass)) *apiobject.Object {
		c := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: "dirs.example.com"}
		change(c)
		return &apiobject.Object{Class: c}
	}
	r := newRig(t)
	r.start()
	r.applyObject(class(func(*storagev1.StorageClass) {}))
	r.applyObject(&apiobject.Object{Driver: &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "dirs.example.com"}}})
	reading := r.restart()
	if len(reading.Objects) != 2 || len(reading.Errors) != 0 {
		t.Fatalf("there are %v, errors %v", reading.Objects, reading.Errors)
	}
	var invalid *InvalidError
	other := class(func(c *storagev1.StorageClass) { c.Provisioner = "other.example.com" })
	_, err := r.ApplyObject(t.Context(), other, false)
	if !errors.As(err, &invalid) || invalid.Problems[0].Field != "provisioner" {
		t.Errorf("another provisioner: %v", err)
	}
	larger := class(func(c *storagev1.StorageClass) { c.AllowVolumeExpansion = ptr.To(true) })
	if op := r.applyObject(larger); op != podset.Update {
		t.Errorf("allowVolumeExpansion: %v", op)
	}
	for _, key := range []apiobject.Key{
		{Kind: apiobject.Class, Name: "fast"}, {Kind: apiobject.Driver, Name: "dirs.example.com"},
	} {
		must(t, r.DeleteObject(t.Context(), key))
	}
	if reading = r.restart(); len(reading.Objects) != 0 {
		t.Errorf("there are %v after their deletion", reading.Objects)
	}
	r.stop()
}
