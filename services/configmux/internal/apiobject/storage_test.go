package apiobject_test

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
)

func class(changes ...func(*storagev1.StorageClass)) *apiobject.Object {
	c := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: "dirs.example.com"}
	for _, change := range changes {
		change(c)
	}
	return &apiobject.Object{Class: c}
}

func driver(changes ...func(*storagev1.CSIDriver)) *apiobject.Object {
	d := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "dirs.example.com"}}
	for _, change := range changes {
		change(d)
	}
	return &apiobject.Object{Driver: d}
}

// Storage classes and CSIDrivers have no namespace, the defaults of the API, and survive their encoding.
func TestAStorageClassAndACSIDriverHaveTheDefaultsOfTheAPI(t *testing.T) {
	for _, o := range []*apiobject.Object{class(), driver()} {
		if errs := o.Prepare(); len(errs) > 0 {
			t.Fatalf("Prepare() = %v, want no error", errs)
		}
		data, err := o.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		again, err := apiobject.Unmarshal(o.Kind(), data)
		if err != nil || again.Key() != o.Key() || again.Meta().Namespace != "" {
			t.Errorf("read again: %v, %v", again, err)
		}
		if _, err := apiobject.Unmarshal(o.Kind(), []byte("x")); err == nil {
			t.Error("bytes that are no object are read")
		}
		if o.Kind().APIVersion() != "storage.k8s.io/v1" || o.Immutable() || len(o.Keys()) > 0 {
			t.Errorf("%s: version %s, immutable %t, keys %v", o, o.Kind().APIVersion(), o.Immutable(), o.Keys())
		}
	}
	c, d := class(), driver()
	c.Prepare()
	d.Prepare()
	if *c.Class.ReclaimPolicy != v1.PersistentVolumeReclaimDelete || c.String() != "storageclass fast" ||
		*c.Class.VolumeBindingMode != storagev1.VolumeBindingImmediate || c.Key().Path() != "StorageClass//fast" {
		t.Errorf("the class is %+v with the key %s", c.Class, c.Key().Path())
	}
	if !*d.Driver.Spec.AttachRequired || *d.Driver.Spec.FSGroupPolicy != storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy {
		t.Errorf("the driver is %+v", d.Driver)
	}
}

func TestAWrongStorageClassOrCSIDriverIsRefusedByField(t *testing.T) {
	policy, mode := v1.PersistentVolumeReclaimRecycle, storagev1.VolumeBindingMode("Sometimes")
	fs := storagev1.FSGroupPolicy("Maybe")
	for want, o := range map[string]*apiobject.Object{
		"metadata.name: Invalid value":      class(func(c *storagev1.StorageClass) { c.Name = "A_b" }),
		"metadata.namespace: Forbidden":     class(func(c *storagev1.StorageClass) { c.Namespace = "shop" }),
		"provisioner: Required value":       class(func(c *storagev1.StorageClass) { c.Provisioner = "" }),
		"provisioner: Invalid value":        class(func(c *storagev1.StorageClass) { c.Provisioner = "a b" }),
		"reclaimPolicy: Unsupported value":  class(func(c *storagev1.StorageClass) { c.ReclaimPolicy = &policy }),
		"volumeBindingMode: Unsupported":    class(func(c *storagev1.StorageClass) { c.VolumeBindingMode = &mode }),
		"parameters: Invalid value":         class(func(c *storagev1.StorageClass) { c.Parameters = map[string]string{"": "x"} }),
		"spec.fsGroupPolicy: Unsupported":   driver(func(d *storagev1.CSIDriver) { d.Spec.FSGroupPolicy = &fs }),
		"metadata.name: Required value":     driver(func(d *storagev1.CSIDriver) { d.Name = "" }),
		"metadata.namespace: Forbidden: no": driver(func(d *storagev1.CSIDriver) { d.Namespace = "shop" }),
	} {
		if errs := o.Prepare(); len(errs) == 0 || !strings.Contains(errs.ToAggregate().Error(), want) {
			t.Errorf("got %v, want %s", errs, want)
		}
	}
}

// As with an API server, the fields of a class that volumes were made with stay as they are.
func TestOfAStorageClassTheExpansionMayChange(t *testing.T) {
	check := func(fresh, old *apiobject.Object) field.ErrorList {
		if errs := append(fresh.Prepare(), old.Prepare()...); len(errs) > 0 {
			t.Fatalf("Prepare() = %v, want no error", errs)
		}
		return fresh.CheckUpdate(old)
	}
	expandable := class(func(c *storagev1.StorageClass) { c.AllowVolumeExpansion = ptr.To(true) })
	if errs := check(expandable, class()); len(errs) > 0 {
		t.Errorf("allowVolumeExpansion: %v", errs)
	}
	informed := driver(func(d *storagev1.CSIDriver) { d.Spec.PodInfoOnMount = ptr.To(true) })
	if errs := check(informed, driver()); len(errs) > 0 {
		t.Errorf("podInfoOnMount: %v", errs)
	}
	for want, o := range map[string]*apiobject.Object{
		"provisioner": class(func(c *storagev1.StorageClass) { c.Provisioner = "other.example.com" }),
		"parameters":  class(func(c *storagev1.StorageClass) { c.Parameters = map[string]string{"a": "b"} }),
		"reclaimPolicy": class(func(c *storagev1.StorageClass) {
			c.ReclaimPolicy = ptr.To(v1.PersistentVolumeReclaimRetain)
		}),
	} {
		if errs := check(o, class()); len(errs) != 1 || errs[0].Field != want {
			t.Errorf("%s: %v", want, errs)
		}
	}
	required := driver(func(d *storagev1.CSIDriver) { d.Spec.AttachRequired = ptr.To(false) })
	if errs := check(required, driver()); len(errs) != 1 || errs[0].Field != "spec.attachedRequired" {
		t.Errorf("attachRequired: %v", errs)
	}
}
