package imagecredentials

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	pluginv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
	kjson "sigs.k8s.io/json"
)

const (
	requestKind  = "CredentialProviderRequest"
	responseKind = "CredentialProviderResponse"
)

// encode encodes a request in a version of the protocol. Requests of older versions contain no token, because they have
// no field for it.
func encode(version, repository string, id identity) ([]byte, error) {
	data, err := json.Marshal(pluginv1.CredentialProviderRequest{
		TypeMeta: metav1.TypeMeta{APIVersion: version, Kind: requestKind},
		Image:    repository, ServiceAccountToken: id.token, ServiceAccountAnnotations: id.annotations,
	})
	return append(data, '\n'), err
}

// decode decodes a response strictly. Its errors contain nothing of the response, because that may be a credential.
func decode(version string, data []byte) (*pluginv1.CredentialProviderResponse, error) {
	var kind metav1.TypeMeta
	if json.Unmarshal(data, &kind) != nil {
		return nil, fmt.Errorf("has not written valid JSON to its standard output: it must write exactly one %s", responseKind)
	}
	if kind.APIVersion != version {
		return nil, fmt.Errorf("has returned an apiVersion other than the requested %s: set the apiVersion that it supports in its configuration", version)
	}
	if kind.Kind != responseKind {
		return nil, fmt.Errorf("has returned a kind other than %s", responseKind)
	}
	var response pluginv1.CredentialProviderResponse
	strict, err := kjson.UnmarshalStrict(data, &response)
	if err != nil || len(strict) > 0 {
		return nil, fmt.Errorf("has returned a %s with unknown or duplicate fields, or fields of a wrong type", responseKind)
	}
	known := []pluginv1.PluginCacheKeyType{
		pluginv1.ImagePluginCacheKeyType, pluginv1.RegistryPluginCacheKeyType, pluginv1.GlobalPluginCacheKeyType,
	}
	if !slices.Contains(known, response.CacheKeyType) {
		return nil, errors.New("has returned a cacheKeyType other than Image, Registry and Global")
	}
	return &response, nil
}
