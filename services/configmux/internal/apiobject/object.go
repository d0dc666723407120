// Package apiobject is what configmux knows of a config map or a secret: which one it is, what makes it whole (defaults,
// stringData folded into data, as an API server does), and what is wrong with it.
//
// It stands beside the pods: staticpod decodes objects out of manifests with it, localsource keeps those that are applied,
// the mux merges and publishes them. It is a function of its arguments, and nothing that it says has a value of a secret:
// not an error, and not what fmt and slog make of an Object.
package apiobject

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Kind is the kind of an object.
type Kind string

// The kinds that there are, as manifests and the contract name them.
const (
	ConfigMap Kind = "ConfigMap"
	Secret    Kind = "Secret"
)

// Known reports whether it is one of the kinds that there are.
func (k Kind) Known() bool { return k == ConfigMap || k == Secret }

// Key says which object it is.
type Key struct {
	Kind            Kind
	Namespace, Name string
}

// String is how people name the object: "configmap default/settings".
func (k Key) String() string {
	return strings.ToLower(string(k.Kind)) + " " + k.Namespace + "/" + k.Name
}

// Path is the object's key in the stream of objects: "ConfigMap/default/settings". None of its parts has a slash.
func (k Key) Path() string { return string(k.Kind) + "/" + k.Namespace + "/" + k.Name }

// Compare orders keys by kind, namespace and name.
func (k Key) Compare(other Key) int {
	return cmp.Or(cmp.Compare(k.Kind, other.Kind), cmp.Compare(k.Namespace, other.Namespace), cmp.Compare(k.Name, other.Name))
}

// Object is a config map or a secret: exactly one of the two is set. It is not changed once it is prepared.
type Object struct {
	ConfigMap *v1.ConfigMap
	Secret    *v1.Secret
}

// Kind returns which of the two it is.
func (o *Object) Kind() Kind {
	if o.Secret != nil {
		return Secret
	}
	return ConfigMap
}

// Meta returns the metadata, which may be changed of an object that is not prepared yet.
func (o *Object) Meta() *metav1.ObjectMeta {
	if o.Secret != nil {
		return &o.Secret.ObjectMeta
	}
	return &o.ConfigMap.ObjectMeta
}

// Key says which object it is.
func (o *Object) Key() Key {
	return Key{Kind: o.Kind(), Namespace: o.Meta().Namespace, Name: o.Meta().Name}
}

// Immutable reports whether the object says that its data are not to be changed.
func (o *Object) Immutable() bool {
	var set *bool
	if o.Secret != nil {
		set = o.Secret.Immutable
	} else {
		set = o.ConfigMap.Immutable
	}
	return set != nil && *set
}

// String names the object and has nothing of its data, so that one that comes into a log or an error tells no secret.
func (o *Object) String() string { return o.Key().String() }

// Format does so for every verb of fmt.
func (o *Object) Format(state fmt.State, _ rune) { _, _ = fmt.Fprint(state, o.String()) }

// LogValue implements slog.LogValuer, so that no handler looks into the object.
func (o *Object) LogValue() slog.Value { return slog.StringValue(o.String()) }

// Marshal returns the bytes of the v1.ConfigMap or v1.Secret. Equal objects have equal bytes.
func (o *Object) Marshal() ([]byte, error) {
	var data []byte
	var err error
	if o.Secret != nil {
		data, err = o.Secret.Marshal()
	} else {
		data, err = o.ConfigMap.Marshal()
	}
	if err != nil {
		return nil, fmt.Errorf("encode the %s: %w", o, err)
	}
	return data, nil
}

// Unmarshal reads what Marshal has written.
func Unmarshal(kind Kind, data []byte) (*Object, error) {
	switch kind {
	case ConfigMap:
		o := &Object{ConfigMap: &v1.ConfigMap{}}
		if err := o.ConfigMap.Unmarshal(data); err != nil {
			return nil, fmt.Errorf("it is not the bytes of a v1.ConfigMap: %w", err)
		}
		return o, nil
	case Secret:
		o := &Object{Secret: &v1.Secret{}}
		if err := o.Secret.Unmarshal(data); err != nil {
			// The decoder's own words are of the bytes, which are a secret's.
			return nil, fmt.Errorf("it is not the bytes of a v1.Secret")
		}
		return o, nil
	default:
		return nil, &KindError{Kind: string(kind)}
	}
}

// KindError says that a kind is none of those that there are.
type KindError struct{ Kind string }

// Error says which there are.
func (e *KindError) Error() string {
	return fmt.Sprintf("kind: must be %s or %s, not %q", ConfigMap, Secret, e.Kind)
}

// Sizes returns how many bytes the value of each key has.
func (o *Object) Sizes() map[string]int {
	sizes := map[string]int{}
	if o.Secret != nil {
		for key, value := range o.Secret.Data {
			sizes[key] = len(value)
		}
		return sizes
	}
	for key, value := range o.ConfigMap.Data {
		sizes[key] = len(value)
	}
	for key, value := range o.ConfigMap.BinaryData {
		sizes[key] = len(value)
	}
	return sizes
}

// Keys returns the keys of the data, in their order.
func (o *Object) Keys() []string { return slices.Sorted(maps.Keys(o.Sizes())) }

// Repeated is an object that was left out of its source's.
type Repeated struct {
	// Index is its place in what was given, and By that of the one that is there instead.
	Index, By int
}

// Filter leaves out each object that has the key of one before it. The order given decides and nothing else.
func Filter(objects []*Object) (kept []*Object, repeated []Repeated) {
	first := make(map[Key]int, len(objects))
	for i, o := range objects {
		if by, is := first[o.Key()]; is {
			repeated = append(repeated, Repeated{Index: i, By: by})
			continue
		}
		first[o.Key()] = i
		kept = append(kept, o)
	}
	return kept, repeated
}
