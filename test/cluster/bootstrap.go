package cluster

import (
	"crypto/rand"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Bootstrap creates a bootstrap token, as `kubeadm token create` does. It returns the token and the path of a
// kubeconfig with it, for a node that joins. Its user may request a node's certificate and, in a cluster with
// Controllers, gets it. The file is removed after the test.
func (c *Cluster) Bootstrap(t testing.TB) (kubeconfig, token string) {
	t.Helper()
	random := strings.ToLower(rand.Text())
	id, secret := random[:6], random[6:22]
	_, err := c.Client(t).CoreV1().Secrets(metav1.NamespaceSystem).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id}, Type: "bootstrap.kubernetes.io/token",
		StringData: map[string]string{
			"token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true", "auth-extra-groups": Bootstrappers,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("cluster: create a bootstrap token: %v", err)
	}
	const name = "bootstrap"
	token, kubeconfig = id+"."+secret, filepath.Join(t.TempDir(), "bootstrap.conf")
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: c.URL(), CertificateAuthorityData: c.authority.pem}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
		t.Fatalf("cluster: write a kubeconfig: %v", err)
	}
	return kubeconfig, token
}
