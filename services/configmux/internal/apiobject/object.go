// Package apiobject represents a config map, a secret, a persistent volume claim, a storage class or the object of a
// CSI driver in configmux: its key, its preparation (defaults, stringData folded into data, as in an API server), and
// its validation.
//
// staticpod decodes objects out of manifests with it, localsource stores applied objects, and the mux merges and
// publishes them. It is pure, and it never reveals a value of a secret: neither in an error, nor when fmt or slog
// formats an Object.
package apiobject

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Kind is the kind of an object.
type Kind string

// The supported kinds, as manifests and the contract name them.
const (
	ConfigMap Kind = "ConfigMap"
	Secret    Kind = "Secret"
	Claim     Kind = "PersistentVolumeClaim"
	Class     Kind = "StorageClass"
	Driver    Kind = "CSIDriver"
)

// Kinds returns the supported kinds.
func Kinds() []Kind { return []Kind{ConfigMap, Secret, Claim, Class, Driver} }

// Known reports whether the kind is supported.
func (k Kind) Known() bool { return slices.Contains(Kinds(), k) }

// The kinds that only a configmux of a site has besides, from the API server.
const (
	Volume  Kind = "PersistentVolume"
	Service Kind = "Service"
	// Services are all services of a namespace. They have no name.
	Services Kind = "ServiceList"
)

// SiteKinds returns the kinds of objects of a site.
func SiteKinds() []Kind { return []Kind{ConfigMap, Secret, Claim, Volume, Service, Services} }

// OfSite reports whether a configmux of a site has the kind.
func (k Kind) OfSite() bool { return slices.Contains(SiteKinds(), k) }

// APIVersion returns the version of the API that has the kind.
func (k Kind) APIVersion() string {
	if k == Class || k == Driver {
		return storagev1.SchemeGroupVersion.String()
	}
	return v1.SchemeGroupVersion.String()
}

// Plural returns the word for many objects of the kind, as the command line has it: "configmaps".
func (k Kind) Plural() string {
	switch k {
	case Class:
		return "storageclasses"
	case Services:
		return "services"
	case ConfigMap, Secret, Claim, Driver, Volume, Service:
	}
	return strings.ToLower(string(k)) + "s"
}

// Namespace returns the namespace of an object that names the given one: "default" if it names none, and the given one
// for a kind whose objects have no namespace.
func (k Kind) Namespace(given string) string {
	if given == "" && !k.isOfNode() {
		return metav1.NamespaceDefault
	}
	return given
}

// isOfNode reports whether objects of the kind have no namespace.
func (k Kind) isOfNode() bool { return k == Class || k == Driver || k == Volume }

// Key identifies an object.
type Key struct {
	Kind            Kind
	Namespace, Name string
}

// String returns the readable name of the object: "configmap default/settings", "storageclass fast", "services shop".
func (k Key) String() string {
	if k.Kind == Services {
		return k.Kind.Plural() + " " + k.Namespace
	}
	word := strings.ToLower(string(k.Kind)) + " "
	if k.Namespace == "" && k.Kind.isOfNode() {
		return word + k.Name
	}
	return word + k.Namespace + "/" + k.Name
}

// Path returns the object's key in the stream of objects: "ConfigMap/default/settings", "StorageClass//fast". None of
// its parts contains a slash.
func (k Key) Path() string { return string(k.Kind) + "/" + k.Namespace + "/" + k.Name }

// Compare orders keys by kind, namespace and name.
func (k Key) Compare(other Key) int {
	return cmp.Or(
		cmp.Compare(k.Kind, other.Kind),
		cmp.Compare(k.Namespace, other.Namespace),
		cmp.Compare(k.Name, other.Name),
	)
}

// Object is an object of one of the kinds: exactly one field is set. It is immutable after Prepare.
type Object struct {
	ConfigMap *v1.ConfigMap
	Secret    *v1.Secret
	Claim     *v1.PersistentVolumeClaim
	Class     *storagev1.StorageClass
	Driver    *storagev1.CSIDriver
}

// Kind returns the kind of the object.
func (o *Object) Kind() Kind {
	switch {
	case o.Secret != nil:
		return Secret
	case o.Claim != nil:
		return Claim
	case o.Class != nil:
		return Class
	case o.Driver != nil:
		return Driver
	default:
		return ConfigMap
	}
}

// Meta returns the metadata, which may be changed before Prepare.
func (o *Object) Meta() *metav1.ObjectMeta {
	switch {
	case o.Secret != nil:
		return &o.Secret.ObjectMeta
	case o.Claim != nil:
		return &o.Claim.ObjectMeta
	case o.Class != nil:
		return &o.Class.ObjectMeta
	case o.Driver != nil:
		return &o.Driver.ObjectMeta
	default:
		return &o.ConfigMap.ObjectMeta
	}
}

// Key returns the key of the object.
func (o *Object) Key() Key {
	return Key{Kind: o.Kind(), Namespace: o.Meta().Namespace, Name: o.Meta().Name}
}

// Immutable reports whether the object's field immutable is true.
func (o *Object) Immutable() bool {
	var set *bool
	switch {
	case o.Secret != nil:
		set = o.Secret.Immutable
	case o.ConfigMap != nil:
		set = o.ConfigMap.Immutable
	}
	return set != nil && *set
}

// String returns the name of the object without its data, so that logs and errors reveal no secret.
func (o *Object) String() string { return o.Key().String() }

// Format formats the name for every verb of fmt.
func (o *Object) Format(state fmt.State, _ rune) { _, _ = fmt.Fprint(state, o.String()) }

// LogValue implements slog.LogValuer, so that no handler reads the data.
func (o *Object) LogValue() slog.Value { return slog.StringValue(o.String()) }

// Marshal returns the bytes of the object of Kubernetes. Equal objects have equal bytes.
func (o *Object) Marshal() ([]byte, error) {
	var data []byte
	var err error
	switch {
	case o.Secret != nil:
		data, err = o.Secret.Marshal()
	case o.Claim != nil:
		data, err = o.Claim.Marshal()
	case o.Class != nil:
		data, err = o.Class.Marshal()
	case o.Driver != nil:
		data, err = o.Driver.Marshal()
	default:
		data, err = o.ConfigMap.Marshal()
	}
	if err != nil {
		return nil, fmt.Errorf("encode the %s: %w", o, err)
	}
	return data, nil
}

// Unmarshal decodes the bytes of Marshal.
func Unmarshal(kind Kind, data []byte) (*Object, error) {
	switch kind {
	case ConfigMap:
		o := &Object{ConfigMap: &v1.ConfigMap{}}
		if err := o.ConfigMap.Unmarshal(data); err != nil {
			return nil, fmt.Errorf("it is not an encoded v1.ConfigMap: %w", err)
		}
		return o, nil
	case Secret:
		o := &Object{Secret: &v1.Secret{}}
		if err := o.Secret.Unmarshal(data); err != nil {
			// The decoder's error is not used because it may quote the bytes of the secret.
			return nil, fmt.Errorf("it is not an encoded v1.Secret")
		}
		return o, nil
	case Claim:
		o := &Object{Claim: &v1.PersistentVolumeClaim{}}
		if err := o.Claim.Unmarshal(data); err != nil {
			return nil, fmt.Errorf("it is not an encoded v1.PersistentVolumeClaim: %w", err)
		}
		return o, nil
	case Class:
		o := &Object{Class: &storagev1.StorageClass{}}
		if err := o.Class.Unmarshal(data); err != nil {
			return nil, fmt.Errorf("it is not an encoded storagev1.StorageClass: %w", err)
		}
		return o, nil
	case Driver:
		o := &Object{Driver: &storagev1.CSIDriver{}}
		if err := o.Driver.Unmarshal(data); err != nil {
			return nil, fmt.Errorf("it is not an encoded storagev1.CSIDriver: %w", err)
		}
		return o, nil
	case Volume, Service, Services:
	}
	return nil, &KindError{Kind: string(kind)}
}

// KindError is the error of an unsupported kind.
type KindError struct{ Kind string }

// Error names the supported kinds.
func (e *KindError) Error() string {
	return fmt.Sprintf("kind: must be %s, %s, %s, %s or %s, not %q", ConfigMap, Secret, Claim, Class, Driver, e.Kind)
}

// Sizes returns the size in bytes of the value of each key; none for a kind without data.
func (o *Object) Sizes() map[string]int {
	sizes := map[string]int{}
	if o.Secret != nil {
		for key, value := range o.Secret.Data {
			sizes[key] = len(value)
		}
	}
	if o.ConfigMap != nil {
		for key, value := range o.ConfigMap.Data {
			sizes[key] = len(value)
		}
		for key, value := range o.ConfigMap.BinaryData {
			sizes[key] = len(value)
		}
	}
	return sizes
}

// Keys returns the sorted keys of the data.
func (o *Object) Keys() []string { return slices.Sorted(maps.Keys(o.Sizes())) }

// Repeated is an object that was removed from its source's set because its key is a duplicate.
type Repeated struct {
	// Index is the object's position in the input, and By that of the object that was kept.
	Index, By int
}

// Filter removes each object that has the key of one before it. Only the order of the input decides.
func Filter(objects []*Object) (kept []*Object, repeated []Repeated) {
	first := make(map[Key]int, len(objects))
	for i, o := range objects {
		if by, found := first[o.Key()]; found {
			repeated = append(repeated, Repeated{Index: i, By: by})
			continue
		}
		first[o.Key()] = i
		kept = append(kept, o)
	}
	return kept, repeated
}
