package imagecredentials

import (
	"slices"
	"testing"
)

// FuzzDecode: whatever a plugin writes, it is a response of the version that was asked for, or an error that repeats
// nothing of it.
func FuzzDecode(f *testing.F) {
	const version = "credentialprovider.kubelet.k8s.io/v1"
	known := []string{
		"has written no JSON to its standard output: it must write one CredentialProviderResponse and nothing else",
		"has answered in another apiVersion than credentialprovider.kubelet.k8s.io/v1, in which it was asked: see which one it speaks, and name that in its configuration",
		"has answered with another kind than CredentialProviderResponse",
		"has written a CredentialProviderResponse with fields that there are not, that are there twice or that have a wrong type",
		"has answered with a cacheKeyType that is none of Image, Registry and Global",
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
