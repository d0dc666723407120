package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	controllerManagerName = "kube-controller-manager"
	schedulerName         = "kube-scheduler"

	// Bootstrappers is the group of the users of kubeadm's bootstrap tokens. Its members may request a node's certificate
	// and get it.
	Bootstrappers = "system:bootstrappers:kubeadm:default-node-token"
)

// newControllers prepares kube-controller-manager and kube-scheduler, with a user for each.
func (c *Cluster) newControllers(binDir string, o options) (err error) {
	key, err := c.authority.keyPEM()
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.file("ca.key"), key, 0o600); err != nil {
		return fmt.Errorf("write the key of the certificate authority: %w", err)
	}
	// There is one instance of each, so no election is needed.
	common := []string{"--leader-elect=false"}
	c.ControllerManager, err = c.newController(binDir, controllerManagerName, append(append(common,
		"--controllers=*,bootstrapsigner,tokencleaner", "--use-service-account-credentials",
		"--cluster-signing-cert-file="+c.file("ca.crt"), "--cluster-signing-key-file="+c.file("ca.key"),
		"--root-ca-file="+c.file("ca.crt"), "--service-account-private-key-file="+c.file("service-accounts.key")),
		o.controllerFlags...))
	if err != nil {
		return err
	}
	c.Scheduler, err = c.newController(binDir, schedulerName, common)
	return err
}

// newController prepares one of them. It serves its health on a port of its own, and its user is "system:" with its
// name.
func (c *Cluster) newController(binDir, name string, args []string) (*Server, error) {
	port, err := c.holdPort()
	if err != nil {
		return nil, err
	}
	serving, err := c.authority.serving()
	if err != nil {
		return nil, err
	}
	for suffix, content := range map[string][]byte{".crt": serving.cert, ".key": serving.key} {
		if err := os.WriteFile(c.file(name+suffix), content, 0o600); err != nil {
			return nil, fmt.Errorf("write a file of %s: %w", name, err)
		}
	}
	kubeconfig := c.file(name + ".conf")
	if err := c.saveKubeconfig(kubeconfig, c.URL(), "system:"+name, nil); err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(c.authority.cert)
	ready := func(ctx context.Context) error {
		config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
		_, err := ask(ctx, &http.Transport{TLSClientConfig: config}, http.MethodGet, "https://"+port.address()+"/healthz", nil)
		return err
	}
	return newServer(c.dir, binDir, name, ready, append([]string{
		"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(port.number), "--permit-port-sharing",
		"--tls-cert-file=" + c.file(name+".crt"), "--tls-private-key-file=" + c.file(name+".key"), "--client-ca-file=" + c.file("ca.crt"),
		"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
	}, args...)...), nil
}

func (c *Cluster) file(name string) string { return filepath.Join(c.dir, name) }

// admit grants the roles that kubeadm grants: the API server may use the nodes' API, the user of a bootstrap token may
// request a node's certificate and gets it, and a node gets a new certificate before its own expires.
func (c *Cluster) admit(ctx context.Context) error {
	client, closeIdle, err := c.clientFor(admin, []string{Masters})
	if err != nil {
		return err
	}
	defer closeIdle()
	const csr = "system:certificates.k8s.io:certificatesigningrequests:"
	var errs []error
	for _, binding := range []struct{ name, role, kind, subject string }{
		{"quartet-test:kubelet-api", "system:kubelet-api-admin", rbacv1.UserKind, nodeClient},
		{"kubeadm:kubelet-bootstrap", "system:node-bootstrapper", rbacv1.GroupKind, Bootstrappers},
		{"kubeadm:node-autoapprove-bootstrap", csr + "nodeclient", rbacv1.GroupKind, Bootstrappers},
		{"kubeadm:node-autoapprove-certificate-rotation", csr + "selfnodeclient", rbacv1.GroupKind, Nodes},
	} {
		_, err := client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: binding.name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: binding.role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: binding.kind, Name: binding.subject}},
		}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			errs = append(errs, fmt.Errorf("bind the role %s: %w", binding.role, err))
		}
	}
	return errors.Join(errs...)
}
