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

// Prepare makes an object what an API server would make of one that is created: without what only a server sets, in the
// namespace "default" unless it names one, with the defaults of the API, and with the stringData of a secret in its data. It
// returns what is wrong with it then, by field.
func (o *Object) Prepare() field.ErrorList {
	meta := o.Meta()
	if meta.Namespace == "" {
		meta.Namespace = metav1.NamespaceDefault
	}
	meta.UID, meta.ResourceVersion, meta.Generation = "", "", 0
	meta.CreationTimestamp, meta.DeletionTimestamp, meta.DeletionGracePeriodSeconds = metav1.Time{}, nil, nil
	meta.ManagedFields = nil
	// kubectl keeps a copy of the whole object there, the values of a secret among them.
	meta.Annotations = without(meta.Annotations, v1.LastAppliedConfigAnnotation)
	if meta.Name == "" {
		return field.ErrorList{field.Required(field.NewPath("metadata", "name"), "name the "+string(o.Kind()))}
	}
	if o.Secret != nil {
		o.Secret.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: string(Secret)}
		o.fold()
		corev1.SetObjectDefaults_Secret(o.Secret)
	} else {
		o.ConfigMap.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: string(ConfigMap)}
		corev1.SetObjectDefaults_ConfigMap(o.ConfigMap)
	}
	return o.validate(nil)
}

// CheckUpdate returns what is wrong with putting the object in the place of another of its key: a type that differs, or
// data of one that is immutable. Both are prepared.
func (o *Object) CheckUpdate(old *Object) field.ErrorList { return o.validate(old) }

// fold puts the stringData of a secret into its data.
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

// validate returns what an API server would find wrong: with an object that is new, or that takes the place of another.
func (o *Object) validate(old *Object) field.ErrorList {
	if o.Secret != nil {
		return withoutValues(o.validateSecret(old))
	}
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

// align gives metadata what a server would have set, so that its validation finds an update of one object.
func align(fresh, old *metav1.ObjectMeta) {
	fresh.ResourceVersion, old.ResourceVersion = "1", "1"
	fresh.CreationTimestamp = old.CreationTimestamp
}

// withoutValues leaves out of errors what they may quote of a secret's data. What they say of keys stays.
func withoutValues(errs field.ErrorList) field.ErrorList {
	for _, err := range errs {
		if value, is := err.BadValue.(string); is && value == redacted {
			// The library's text may quote a letter of it.
			err.BadValue, err.Detail = field.OmitValueType{}, "its content must be a JSON object"
		}
	}
	return errs
}

// redacted is what the validation says in the place of a value.
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
