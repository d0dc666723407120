package containerspec

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// The errors of this file are the kubelet's, without the field, because people search for them. None contains a value.

// putAll adds the keys of an object, each with the prefix, sorted. Every key of an object is a valid variable name, as
// in the kubelet.
func (e *environment) putAll(namespace string, from v1.EnvFromSource, in Inputs) error {
	switch {
	case from.ConfigMapRef != nil:
		object, err := in.ConfigMap(from.ConfigMapRef.Name)
		if err != nil {
			return unlessOptional(err, from.ConfigMapRef.Optional)
		}
		for _, key := range slices.Sorted(maps.Keys(object.Data)) {
			value, err := variable([]byte(object.Data[key]), "ConfigMap", namespace, from.ConfigMapRef.Name, key)
			if err != nil {
				return err
			}
			e.put(from.Prefix+key, value)
		}
	case from.SecretRef != nil:
		object, err := in.Secret(from.SecretRef.Name)
		if err != nil {
			return unlessOptional(err, from.SecretRef.Optional)
		}
		for _, key := range slices.Sorted(maps.Keys(object.Data)) {
			value, err := variable(object.Data[key], "Secret", namespace, from.SecretRef.Name, key)
			if err != nil {
				return err
			}
			e.put(from.Prefix+key, value)
		}
	}
	return nil
}

// isOfObject reports whether a value comes from a config map or a secret.
func isOfObject(from *v1.EnvVarSource) bool {
	return from.FieldRef == nil && from.ResourceFieldRef == nil &&
		(from.ConfigMapKeyRef != nil || from.SecretKeyRef != nil)
}

// objectKey returns the value of a key of an object; ok is false if it is optional and missing.
func objectKey(namespace string, from *v1.EnvVarSource, in Inputs) (value string, ok bool, err error) {
	if ref := from.ConfigMapKeyRef; ref != nil {
		object, err := in.ConfigMap(ref.Name)
		if err != nil {
			return "", false, unlessOptional(err, ref.Optional)
		}
		text, found := object.Data[ref.Key]
		return keyOr([]byte(text), found, ref.Optional, "ConfigMap", namespace, ref.Name, ref.Key)
	}
	ref := from.SecretKeyRef
	object, err := in.Secret(ref.Name)
	if err != nil {
		return "", false, unlessOptional(err, ref.Optional)
	}
	data, found := object.Data[ref.Key]
	return keyOr(data, found, ref.Optional, "Secret", namespace, ref.Name, ref.Key)
}

// keyOr returns the value of a key.
func keyOr(
	data []byte, found bool, optional *bool, kind, namespace, name, key string,
) (value string, ok bool, err error) {
	switch {
	case found:
		value, err = variable(data, kind, namespace, name, key)
		return value, err == nil, err
	case isTrue(optional):
		return "", false, nil
	}
	return "", false, fmt.Errorf("couldn't find key %v in %s %v/%v", key, kind, namespace, name)
}

// NotServed is an error that means that this node has no config maps and secrets. Errors of ConfigMap and Secret
// implement it.
type NotServed interface {
	error
	NotServed()
}

// Unknown is an error that means that it is not known yet whether something exists that a pod needs, such as a secret,
// because its source has not answered. A pod that ran here before continues with what it had.
type Unknown interface {
	error
	Unknown()
}

// IsUnknown reports whether an error is or wraps an [Unknown].
func IsUnknown(err error) bool { return errors.As(err, new(Unknown)) }

// unlessOptional returns nil for an optional object that is missing, or not available on this node.
func unlessOptional(err error, optional *bool) error {
	if isTrue(optional) && (apierrors.IsNotFound(err) || errors.As(err, new(NotServed))) {
		return nil
	}
	return err
}

// variable converts a value to that of a variable. It refuses a NUL byte, which would end the value, because a
// runtime's error may quote the value.
func variable(data []byte, kind, namespace, name, key string) (string, error) {
	if bytes.IndexByte(data, 0) >= 0 {
		return "", fmt.Errorf("key %v in %s %v/%v has a NUL byte, which no environment variable can have; mount it as a file", key, kind, namespace, name)
	}
	return string(data), nil
}
