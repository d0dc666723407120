package images

import (
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/credentialprovider"
)

// podCredentials gives what a pod's pull secrets have for a repository, the most specific first, whichever secret it is
// of. Secrets of other types are left out, and so are entries whose registry is no address. It fails, as the kubelet
// does, for one that cannot be read, and says nothing of what is in it.
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
		if err != nil { // whose text has some of it
			return nil, fmt.Errorf("pull secret %s/%s: its %s cannot be read: see that it is docker's JSON", secret.Namespace, secret.Name, key)
		}
		source := &credentialprovider.SecretCoordinates{UID: string(secret.UID), Namespace: secret.Namespace, Name: secret.Name}
		keyring.Add(&credentialprovider.CredentialSource{Secret: source}, withAddress(config))
	}
	return credentialsOf(keyring, repository), nil
}
