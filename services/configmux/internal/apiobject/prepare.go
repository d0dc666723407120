package apiobject

import (
	"fmt"
	"maps"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/core"
	corev1 "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/apis/core/validation"
)

// Prepare processes an object as an API server does on creation: it removes fields that only a server sets, sets the
// namespace "default" if there is none and the kind has namespaces, applies the defaults of the API, and folds the
// stringData of a secret into its data. It returns the validation errors of the result.
func (o *Object) Prepare() field.ErrorList {
	meta := o.Meta()
	meta.Namespace = o.Kind().Namespace(meta.Namespace)
	meta.UID, meta.ResourceVersion, meta.Generation = "", "", 0
	meta.CreationTimestamp, meta.DeletionTimestamp, meta.DeletionGracePeriodSeconds = metav1.Time{}, nil, nil
	meta.ManagedFields = nil
	// kubectl stores a copy of the whole object there, including the values of a secret.
	meta.Annotations = without(meta.Annotations, v1.LastAppliedConfigAnnotation)
	if meta.Name == "" {
		return field.ErrorList{field.Required(field.NewPath("metadata", "name"), "name the "+string(o.Kind()))}
	}
	switch {
	case o.Secret != nil:
		o.Secret.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: string(Secret)}
		o.fold()
		corev1.SetObjectDefaults_Secret(o.Secret)
	case o.Claim != nil:
		o.prepareClaim()
	case o.Class != nil, o.Driver != nil:
		o.prepareStorage()
	default:
		o.ConfigMap.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: string(ConfigMap)}
		corev1.SetObjectDefaults_ConfigMap(o.ConfigMap)
	}
	return o.validate(nil)
}

// CheckUpdate returns the validation errors of replacing another object of the same key: a different type, changed
// data of an immutable object, a changed claim, except its size, or a field of a storage class or a CSIDriver that must
// stay as it is. Both must be prepared.
func (o *Object) CheckUpdate(old *Object) field.ErrorList { return o.validate(old) }

// fold folds the stringData of a secret into its data.
func (o *Object) fold() {
	if len(o.Secret.StringData) > 0 {
		data := make(map[string][]byte, len(o.Secret.Data)+len(o.Secret.StringData))
		maps.Copy(data, o.Secret.Data)
		for key, value := range o.Secret.StringData {
			data[key] = []byte(value)
		}
		o.Secret.Data = data
	}
	o.Secret.StringData = nil
}

// validate returns the validation errors of an API server for a new object, or for one that replaces old.
func (o *Object) validate(old *Object) field.ErrorList {
	switch {
	case o.Secret != nil:
		return withoutValues(o.validateSecret(old))
	case o.Claim != nil:
		return o.validateClaim(old)
	case o.Class != nil:
		return o.validateClass(old)
	case o.Driver != nil:
		return o.validateDriver(old)
	default:
		return o.validateConfigMap(old)
	}
}

func (o *Object) validateConfigMap(old *Object) field.ErrorList {
	var internal, before core.ConfigMap
	if err := corev1.Convert_v1_ConfigMap_To_core_ConfigMap(o.ConfigMap.DeepCopy(), &internal, nil); err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	if old == nil {
		return validation.ValidateConfigMap(&internal)
	}
	if err := corev1.Convert_v1_ConfigMap_To_core_ConfigMap(old.ConfigMap.DeepCopy(), &before, nil); err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	align(&internal.ObjectMeta, &before.ObjectMeta)
	return validation.ValidateConfigMapUpdate(&internal, &before)
}

func (o *Object) validateSecret(old *Object) field.ErrorList {
	var internal, before core.Secret
	if err := corev1.Convert_v1_Secret_To_core_Secret(o.Secret.DeepCopy(), &internal, nil); err != nil {
		return field.ErrorList{field.InternalError(nil, fmt.Errorf("cannot convert the secret"))}
	}
	if old == nil {
		return validation.ValidateSecret(&internal)
	}
	if err := corev1.Convert_v1_Secret_To_core_Secret(old.Secret.DeepCopy(), &before, nil); err != nil {
		return field.ErrorList{field.InternalError(nil, fmt.Errorf("cannot convert the secret"))}
	}
	align(&internal.ObjectMeta, &before.ObjectMeta)
	return validation.ValidateSecretUpdate(&internal, &before)
}

// align sets the metadata that a server would have set, so that validation treats the two as versions of one object.
func align(fresh, old *metav1.ObjectMeta) {
	fresh.ResourceVersion, old.ResourceVersion = "1", "1"
	fresh.CreationTimestamp = old.CreationTimestamp
}

// withoutValues removes quoted data of a secret from errors. Keys stay.
func withoutValues(errs field.ErrorList) field.ErrorList {
	for _, err := range errs {
		if value, ok := err.BadValue.(string); ok && value == redacted {
			// The library's text may quote a character of it.
			err.BadValue, err.Detail = field.OmitValueType{}, "its content must be a JSON object"
		}
	}
	return errs
}

// redacted is the library's placeholder for a value.
const redacted = "<secret contents redacted>"

func without(all map[string]string, key string) map[string]string {
	if _, has := all[key]; !has {
		return all
	}
	all = maps.Clone(all)
	delete(all, key)
	if len(all) == 0 {
		return nil
	}
	return all
}
