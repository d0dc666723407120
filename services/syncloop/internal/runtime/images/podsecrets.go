package images

import (
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/credentialprovider"
)

// podCredentials returns the credentials in a pod's pull secrets for a repository, the most specific first, from all
// secrets. It ignores secrets of other types and entries whose registry is not an address. As in the kubelet, it fails
// if a secret cannot be decoded; the error contains nothing of the secret.
func podCredentials(secrets []*v1.Secret, repository string) ([]credential, error) {
	keyring := &credentialprovider.BasicDockerKeyring{}
	for _, secret := range secrets {
		var config credentialprovider.DockerConfig
		var err error
		key := ""
		switch secret.Type { //nolint:exhaustive // the others have no credentials of registries
		case v1.SecretTypeDockerConfigJson:
			key = v1.DockerConfigJsonKey
			var whole credentialprovider.DockerConfigJSON
			if data := secret.Data[key]; len(data) > 0 {
				err = json.Unmarshal(data, &whole)
			}
			config = whole.Auths
		case v1.SecretTypeDockercfg:
			key = v1.DockerConfigKey
			if data := secret.Data[key]; len(data) > 0 {
				err = json.Unmarshal(data, &config)
			}
		}
		if err != nil { // the text of err contains parts of the secret
			return nil, fmt.Errorf("pull secret %s/%s: its %s cannot be decoded: check that it is docker's JSON", secret.Namespace, secret.Name, key)
		}
		source := &credentialprovider.SecretCoordinates{
			UID: string(secret.UID), Namespace: secret.Namespace, Name: secret.Name,
		}
		keyring.Add(&credentialprovider.CredentialSource{Secret: source}, withAddress(config))
	}
	return credentialsOf(keyring, repository), nil
}
