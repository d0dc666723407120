package siteobjects

import (
	"bytes"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/podobjects"
	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
)

// apiService is the service by which pods reach the API server, and apiServices are those of its namespace.
var (
	apiService = apiobject.Key{
		Kind: apiobject.Service, Namespace: metav1.NamespaceDefault, Name: podobjects.APIService,
	}
	apiServices = apiobject.Key{Kind: apiobject.Services, Namespace: metav1.NamespaceDefault}
)

// content is what is known of an object. It is immutable.
type content struct {
	// object is what the nodes get.
	object *configv1.Object
	// volume is the persistent volume that a claim is bound to; the zero key if there is none.
	volume apiobject.Key
	// claim is the claim that a persistent volume is for, and secrets are those that it names.
	claim   apiobject.Key
	secrets []apiobject.Key
}

// newContent returns the content of an object of the API server; nil data means that there is none. It fails for data
// that is no object of the kind.
func newContent(key apiobject.Key, data []byte) (*content, error) {
	c := &content{object: bare(key)}
	c.object.Object, c.object.Missing = data, data == nil
	if data == nil {
		return c, nil
	}
	switch key.Kind {
	case apiobject.Volume:
		return c, c.volumeOf(data)
	case apiobject.Service:
		return c, decode(key.Kind, &v1.Service{}, data)
	case apiobject.Services:
		return c, decode(key.Kind, &v1.ServiceList{}, data)
	case apiobject.ConfigMap, apiobject.Secret, apiobject.Claim, apiobject.Class, apiobject.Driver:
	}
	decoded, err := apiobject.Unmarshal(key.Kind, data)
	if err != nil {
		return nil, err
	}
	if claim := decoded.Claim; claim != nil && claim.Spec.VolumeName != "" {
		c.volume = apiobject.Key{Kind: apiobject.Volume, Name: claim.Spec.VolumeName}
	}
	return c, nil
}

// volumeOf sets what a persistent volume leads to.
func (c *content) volumeOf(data []byte) error {
	var volume v1.PersistentVolume
	if err := decode(apiobject.Volume, &volume, data); err != nil {
		return err
	}
	if ref := volume.Spec.ClaimRef; ref != nil {
		c.claim = apiobject.Key{Kind: apiobject.Claim, Namespace: ref.Namespace, Name: ref.Name}
	}
	if csi := volume.Spec.CSI; csi != nil {
		for _, ref := range []*v1.SecretReference{csi.NodeStageSecretRef, csi.NodePublishSecretRef, csi.NodeExpandSecretRef} {
			if ref != nil {
				c.secrets = append(c.secrets, apiobject.Key{Kind: apiobject.Secret, Namespace: ref.Namespace, Name: ref.Name})
			}
		}
	}
	if azure := volume.Spec.AzureFile; azure != nil { // a CSI driver mounts it today
		namespace := c.claim.Namespace
		if azure.SecretNamespace != nil {
			namespace = *azure.SecretNamespace
		}
		c.secrets = append(c.secrets, apiobject.Key{Kind: apiobject.Secret, Namespace: namespace, Name: azure.SecretName})
	}
	return nil
}

func decode(kind apiobject.Kind, into interface{ Unmarshal([]byte) error }, data []byte) error {
	if err := into.Unmarshal(data); err != nil {
		return fmt.Errorf("it is not an encoded v1.%s: %w", kind, err)
	}
	return nil
}

// is reports whether data is the content.
func (c *content) is(data []byte) bool {
	return c != nil && c.object.GetMissing() == (data == nil) && bytes.Equal(c.object.GetObject(), data)
}

// service returns a service of a list as bytes; nil if there is none.
func (c *content) service(name string) []byte {
	var list v1.ServiceList
	if err := list.Unmarshal(c.object.GetObject()); err != nil {
		return nil // newContent has decoded it
	}
	i := slices.IndexFunc(list.Items, func(s v1.Service) bool { return s.Name == name })
	if i < 0 {
		return nil
	}
	data, err := list.Items[i].Marshal()
	if err != nil {
		return nil // what was decoded can be encoded
	}
	return data
}

// leads reports whether objects of a kind lead to others.
func leads(kind apiobject.Kind) bool { return kind == apiobject.Claim || kind == apiobject.Volume }

// empty returns an empty object of what is watched for a kind.
func empty(kind apiobject.Kind) runtime.Object {
	switch kind {
	case apiobject.Secret:
		return &v1.Secret{}
	case apiobject.Claim:
		return &v1.PersistentVolumeClaim{}
	case apiobject.Volume:
		return &v1.PersistentVolume{}
	case apiobject.Service, apiobject.Services:
		return &v1.Service{}
	case apiobject.ConfigMap, apiobject.Class, apiobject.Driver:
	}
	return &v1.ConfigMap{}
}

// encode returns the bytes of an object without managedFields, which a node does not need. An empty object has bytes,
// too, because it has a name.
func encode(object runtime.Object) (data []byte, immutable, ok bool) {
	wrapped := &apiobject.Object{}
	switch o := object.(type) {
	case *v1.ConfigMap:
		wrapped.ConfigMap = o
	case *v1.Secret:
		wrapped.Secret = o
	case *v1.PersistentVolumeClaim:
		wrapped.Claim = o
	case *v1.PersistentVolume:
		o.ManagedFields = nil
		data, err := o.Marshal()
		return data, false, err == nil
	default:
		return nil, false, false
	}
	wrapped.Meta().ManagedFields = nil
	data, err := wrapped.Marshal()
	return data, wrapped.Immutable(), err == nil
}

// linked returns what the environment of a container needs of a service, so that no other change of it is sent.
func linked(service *v1.Service) v1.Service {
	s := v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: service.Namespace, Name: service.Name}}
	s.Spec.Type, s.Spec.ClusterIP = service.Spec.Type, service.Spec.ClusterIP
	for _, p := range service.Spec.Ports {
		s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Name: p.Name, Protocol: p.Protocol, Port: p.Port})
	}
	return s
}
