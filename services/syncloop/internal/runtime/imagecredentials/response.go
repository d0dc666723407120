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

// encode writes a request in a version of the protocol. The older ones have no fields for a token, and their requests
// have none.
func encode(version, repository string, who identity) ([]byte, error) {
	data, err := json.Marshal(pluginv1.CredentialProviderRequest{
		TypeMeta: metav1.TypeMeta{APIVersion: version, Kind: requestKind},
		Image:    repository, ServiceAccountToken: who.token, ServiceAccountAnnotations: who.annotations,
	})
	return append(data, '\n'), err
}

// decode reads a response, strictly. Nothing of what it read is in the error: it may be a credential.
func decode(version string, data []byte) (*pluginv1.CredentialProviderResponse, error) {
	var kind metav1.TypeMeta
	if json.Unmarshal(data, &kind) != nil {
		return nil, fmt.Errorf("has written no JSON to its standard output: it must write one %s and nothing else", responseKind)
	}
	if kind.APIVersion != version {
		return nil, fmt.Errorf("has answered in another apiVersion than %s, in which it was asked: see which one it speaks, and name that in its configuration", version)
	}
	if kind.Kind != responseKind {
		return nil, fmt.Errorf("has answered with another kind than %s", responseKind)
	}
	var response pluginv1.CredentialProviderResponse
	strict, err := kjson.UnmarshalStrict(data, &response)
	if err != nil || len(strict) > 0 {
		return nil, fmt.Errorf("has written a %s with fields that there are not, that are there twice or that have a wrong type", responseKind)
	}
	known := []pluginv1.PluginCacheKeyType{pluginv1.ImagePluginCacheKeyType, pluginv1.RegistryPluginCacheKeyType, pluginv1.GlobalPluginCacheKeyType}
	if !slices.Contains(known, response.CacheKeyType) {
		return nil, errors.New("has answered with a cacheKeyType that is none of Image, Registry and Global")
	}
	return &response, nil
}
