package apiobject

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	storageapi "k8s.io/kubernetes/pkg/apis/storage"
	storageapiv1 "k8s.io/kubernetes/pkg/apis/storage/v1"
	"k8s.io/kubernetes/pkg/apis/storage/validation"
)

// prepareStorage applies the defaults of a storage class or of a CSIDriver.
func (o *Object) prepareStorage() {
	types := metav1.TypeMeta{APIVersion: o.Kind().APIVersion(), Kind: string(o.Kind())}
	if o.Class != nil {
		o.Class.TypeMeta = types
		storageapiv1.SetObjectDefaults_StorageClass(o.Class)
		return
	}
	o.Driver.TypeMeta = types
	storageapiv1.SetObjectDefaults_CSIDriver(o.Driver)
}

// validateClass returns the validation errors of an API server.
func (o *Object) validateClass(old *Object) field.ErrorList {
	var internal, before storageapi.StorageClass
	convert := storageapiv1.Convert_v1_StorageClass_To_storage_StorageClass
	if err := convert(o.Class.DeepCopy(), &internal, nil); err != nil {
		return field.ErrorList{field.InternalError(nil, fmt.Errorf("cannot convert the storage class: %w", err))}
	}
	if old == nil {
		return validation.ValidateStorageClass(&internal)
	}
	if err := convert(old.Class.DeepCopy(), &before, nil); err != nil {
		return field.ErrorList{field.InternalError(nil, fmt.Errorf("cannot convert the storage class: %w", err))}
	}
	align(&internal.ObjectMeta, &before.ObjectMeta)
	return append(validation.ValidateStorageClass(&internal), validation.ValidateStorageClassUpdate(&internal, &before)...)
}

// validateDriver returns the validation errors of an API server.
func (o *Object) validateDriver(old *Object) field.ErrorList {
	var internal, before storageapi.CSIDriver
	convert := storageapiv1.Convert_v1_CSIDriver_To_storage_CSIDriver
	if err := convert(o.Driver.DeepCopy(), &internal, nil); err != nil {
		return field.ErrorList{field.InternalError(nil, fmt.Errorf("cannot convert the CSIDriver: %w", err))}
	}
	if old == nil {
		return validation.ValidateCSIDriver(&internal)
	}
	if err := convert(old.Driver.DeepCopy(), &before, nil); err != nil {
		return field.ErrorList{field.InternalError(nil, fmt.Errorf("cannot convert the CSIDriver: %w", err))}
	}
	align(&internal.ObjectMeta, &before.ObjectMeta)
	return validation.ValidateCSIDriverUpdate(&internal, &before)
}
