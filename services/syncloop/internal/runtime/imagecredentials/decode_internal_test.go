package imagecredentials

import (
	"slices"
	"testing"
)

// FuzzDecode checks that any output of a plugin is a response of the requested version, or an error that contains
// nothing of the output.
func FuzzDecode(f *testing.F) {
	const version = "credentialprovider.kubelet.k8s.io/v1"
	known := []string{
		"has not written valid JSON to its standard output: it must write exactly one CredentialProviderResponse",
		"has returned an apiVersion other than the requested credentialprovider.kubelet.k8s.io/v1: set the apiVersion that it supports in its configuration",
		"has returned a kind other than CredentialProviderResponse",
		"has returned a CredentialProviderResponse with unknown or duplicate fields, or fields of a wrong type",
		"has returned a cacheKeyType other than Image, Registry and Global",
	}
	f.Add(`{"apiVersion": "` + version + `", "kind": "CredentialProviderResponse", "cacheKeyType": "Image", "cacheDuration": "5m", "auth": {"a.test": {"username": "u", "password": "p"}}}`)
	f.Add(`{"apiVersion": "` + version + `", "kind": "CredentialProviderResponse", "cacheKeyType": "Image", "auth": null, "auth": {"hunter2": {}}}`)
	f.Add(`{"apiVersion": "` + version + `", "kind": "CredentialProviderResponse", "cacheKeyType": "Tag", "cacheDuration": "soon"}`)
	f.Add(`{"cacheDuration": 5}`)
	f.Fuzz(func(t *testing.T, data string) {
		response, err := decode(version, []byte(data))
		switch {
		case (response == nil) == (err == nil):
			t.Errorf("%q: response %v, error %v", data, response, err)
		case err != nil && !slices.Contains(known, err.Error()):
			t.Errorf("%q: %v", data, err)
		case response != nil && (response.APIVersion != version || response.CacheKeyType == ""):
			t.Errorf("%q is taken", data)
		}
	})
}
