package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/quartet-node/quartet/test/harness"
)

const (
	metricsServerName = "metrics-server"
	// metricsAPI is the group version that metrics-server serves behind the API server.
	metricsAPI = "v1beta1.metrics.k8s.io"
)

// MetricsServer starts metrics-server until the test ends, and returns when it serves. It sets up the objects of its
// own manifests: a service account whose token it presents to the nodes, roles, a service, and the API service by which
// the API server finds it. It scrapes the nodes every 10 s, and serves metrics of a node after two scrapes. There is no
// pod network here, so it is a process, and the service names the machine. The test is skipped as Require does when the
// binary has not been built.
func (c *Cluster) MetricsServer(t testing.TB) {
	t.Helper()
	binDir := harness.BinDir(t)
	if _, err := os.Stat(filepath.Join(binDir, "tools", metricsServerName)); err != nil {
		harness.Require(t, fmt.Errorf("%w: run 'make test-tools' first", err))
	}
	client := c.Client(t)
	if err := admitMetricsServer(t.Context(), client); err != nil {
		t.Fatalf("cluster: %v", err)
	}
	server, port, err := c.newMetricsServer(t, binDir, client)
	if err != nil {
		t.Fatalf("cluster: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(server.logFrom(0))
		}
		if err := server.kill(); err != nil {
			t.Errorf("cluster: %v", err)
		}
	})
	server.Start(t)
	c.publishMetrics(t, client, port)
}

// newMetricsServer prepares metrics-server. It finds the nodes' addresses and ports as in a cluster of kubeadm, whose
// nodes have self-signed certificates.
func (c *Cluster) newMetricsServer(t testing.TB, binDir string, client kubernetes.Interface) (*Server, int, error) {
	token, err := client.CoreV1().ServiceAccounts(metav1.NamespaceSystem).CreateToken(t.Context(), metricsServerName,
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return nil, 0, fmt.Errorf("request the token of metrics-server: %w", err)
	}
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := c.saveCredentials(kubeconfig, c.URL(), &clientcmdapi.AuthInfo{Token: token.Status.Token}); err != nil {
		return nil, 0, err
	}
	port, err := holdPort()
	if err != nil {
		return nil, 0, err
	}
	t.Cleanup(func() {
		if err := port.close(); err != nil {
			t.Error(err)
		}
	})
	serving, err := c.authority.serving(metricsServerName + "." + metav1.NamespaceSystem + ".svc")
	if err != nil {
		return nil, 0, err
	}
	certificate, key := filepath.Join(dir, "serving.crt"), filepath.Join(dir, "serving.key")
	for name, content := range map[string][]byte{certificate: serving.cert, key: serving.key} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			return nil, 0, fmt.Errorf("write a file of metrics-server: %w", err)
		}
	}
	roots := x509.NewCertPool()
	roots.AddCert(c.authority.cert)
	ready := func(ctx context.Context) error {
		config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
		_, err := ask(ctx, &http.Transport{TLSClientConfig: config}, http.MethodGet, "https://"+port.address()+"/livez", nil)
		return err
	}
	return newServer(dir, binDir, metricsServerName, ready,
		"--bind-address=127.0.0.1", "--secure-port="+strconv.Itoa(port.number), "--permit-port-sharing",
		"--tls-cert-file="+certificate, "--tls-private-key-file="+key,
		"--kubeconfig="+kubeconfig, "--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig,
		"--kubelet-preferred-address-types=InternalIP", "--kubelet-use-node-status-port", "--kubelet-insecure-tls",
		"--metric-resolution=10s", "--kubelet-request-timeout=9s"), port.number, nil
}

// admitMetricsServer creates its service account and its roles, as its manifests do. They are not removed.
func admitMetricsServer(ctx context.Context, client kubernetes.Interface) error {
	object := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: metricsServerName,
		Namespace: metav1.NamespaceSystem}}
	role := func(kind, name string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
	}
	const own = "system:metrics-server"
	options := metav1.CreateOptions{}
	for what, create := range map[string]func() error{
		"service account": func() error {
			_, err := client.CoreV1().ServiceAccounts(metav1.NamespaceSystem).Create(ctx,
				&corev1.ServiceAccount{ObjectMeta: object(metricsServerName)}, options)
			return err
		},
		"role": func() error {
			_, err := client.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: object(own),
				Rules: []rbacv1.PolicyRule{
					{APIGroups: []string{""}, Resources: []string{"nodes/metrics"}, Verbs: []string{"get"}},
					{APIGroups: []string{""}, Resources: []string{"pods", "nodes"}, Verbs: []string{"get", "list", "watch"}},
				}}, options)
			return err
		},
		"binding of its role": func() error {
			_, err := client.RbacV1().ClusterRoleBindings().Create(ctx,
				&rbacv1.ClusterRoleBinding{ObjectMeta: object(own), RoleRef: role("ClusterRole", own), Subjects: subjects}, options)
			return err
		},
		"right to review tokens": func() error {
			_, err := client.RbacV1().ClusterRoleBindings().Create(ctx,
				&rbacv1.ClusterRoleBinding{ObjectMeta: object(metricsServerName + ":system:auth-delegator"), RoleRef: role("ClusterRole", "system:auth-delegator"), Subjects: subjects}, options)
			return err
		},
		"right to read the API server's authentication settings": func() error {
			_, err := client.RbacV1().RoleBindings(metav1.NamespaceSystem).Create(ctx,
				&rbacv1.RoleBinding{ObjectMeta: object(metricsServerName + "-auth-reader"), RoleRef: role("Role", "extension-apiserver-authentication-reader"), Subjects: subjects}, options)
			return err
		},
	} {
		if err := create(); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create the %s of metrics-server: %w", what, err)
		}
	}
	return nil
}

// publishMetrics registers metrics-server at the API server until the test ends. A registered server that does not
// answer would keep every namespace from being deleted.
func (c *Cluster) publishMetrics(t testing.TB, client kubernetes.Interface, port int) {
	t.Helper()
	services, path := client.CoreV1().Services(metav1.NamespaceSystem), "/apis/apiregistration.k8s.io/v1/apiservices"
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		err := client.CoreV1().RESTClient().Delete().AbsPath(path, metricsAPI).Do(ctx).Error()
		if err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("cluster: remove %s: %v", metricsAPI, err)
		}
		if err := services.Delete(ctx, metricsServerName, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("cluster: remove the service of metrics-server: %v", err)
		}
	})
	_, err := services.Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: metricsServerName},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("cluster: create the service of metrics-server: %v", err)
	}
	body, err := json.Marshal(map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": metricsAPI},
		"spec": map[string]any{
			"group": "metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 100, "versionPriority": 100, "caBundle": c.authority.pem,
			"service": map[string]any{"namespace": metav1.NamespaceSystem, "name": metricsServerName, "port": port},
		},
	})
	if err == nil {
		err = client.CoreV1().RESTClient().Post().AbsPath(path).SetHeader("Content-Type", "application/json").Body(body).Do(t.Context()).Error()
	}
	if err != nil {
		t.Fatalf("cluster: create %s: %v", metricsAPI, err)
	}
}
