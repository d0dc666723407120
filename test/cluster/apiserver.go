package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
)

// apiServerName is the name of the API server's binary.
const apiServerName = "kube-apiserver"

// nodeClient is the user name of the API server at the nodes, for logs and programs in containers.
const nodeClient = "kube-apiserver-kubelet-client"

// frontProxyClient is the user name of the API server at the servers behind it. They trust it to name the user of a
// request.
const frontProxyClient = "front-proxy-client"

// newAPIServer writes the certificates and keys of the API server and returns the server, which is not started.
func (c *Cluster) newAPIServer(binDir string, o options) (*Server, error) {
	serving, err := c.authority.serving()
	if err != nil {
		return nil, err
	}
	_, signing, err := newKey()
	if err != nil {
		return nil, err
	}
	toNodes, err := c.authority.client(nodeClient, nil)
	if err != nil {
		return nil, err
	}
	frontProxy, err := newAuthority()
	if err != nil {
		return nil, err
	}
	toServers, err := frontProxy.client(frontProxyClient, nil)
	if err != nil {
		return nil, err
	}
	file := c.file
	for name, content := range map[string][]byte{
		"ca.crt": c.authority.pem, "serving.crt": serving.cert, "serving.key": serving.key, "service-accounts.key": signing,
		"to-nodes.crt": toNodes.cert, "to-nodes.key": toNodes.key,
		"front-proxy-ca.crt": frontProxy.pem, "front-proxy.crt": toServers.cert, "front-proxy.key": toServers.key,
	} {
		if err := os.WriteFile(file(name), content, 0o600); err != nil {
			return nil, fmt.Errorf("write a file of the API server: %w", err)
		}
	}
	ready, err := c.apiServerReady()
	if err != nil {
		return nil, err
	}
	args := []string{
		"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(c.apiPort.number), "--permit-port-sharing",
		"--tls-cert-file=" + file("serving.crt"), "--tls-private-key-file=" + file("serving.key"), "--client-ca-file=" + file("ca.crt"),
		"--etcd-servers=http://" + c.etcdPort.address(),
		"--kubelet-client-certificate=" + file("to-nodes.crt"), "--kubelet-client-key=" + file("to-nodes.key"),
		"--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname", "--enable-bootstrap-token-auth",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=" + file("service-accounts.key"),
		"--service-account-signing-key-file=" + file("service-accounts.key"), "--service-cluster-ip-range=10.96.0.0/16",
		// The service "kubernetes" has no endpoints, because a loopback address is not allowed as one.
		"--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none",
		// These headers name the user to a server behind the API server, such as metrics-server.
		"--requestheader-client-ca-file=" + file("front-proxy-ca.crt"), "--requestheader-allowed-names=" + frontProxyClient,
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + file("front-proxy.crt"), "--proxy-client-key-file=" + file("front-proxy.key"),
	}
	if !o.serviceAccounts {
		args = append(args, "--disable-admission-plugins=ServiceAccount")
	}
	return newServer(c.dir, binDir, apiServerName, ready, append(args, o.flags...)...), nil
}

// apiServerReady returns the readiness check of the API server: its own check succeeds, and the namespace "default"
// exists, which it creates a moment later.
func (c *Cluster) apiServerReady() (func(context.Context) error, error) {
	cert, err := c.authority.client(admin, []string{Masters})
	if err != nil {
		return nil, err
	}
	certificate, err := tls.X509KeyPair(cert.cert, cert.key)
	if err != nil {
		return nil, fmt.Errorf("load the certificate of %s: %w", admin, err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(c.authority.cert)
	return func(ctx context.Context) error {
		var errs []error
		for _, path := range []string{"/readyz", "/api/v1/namespaces/default"} {
			config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, Certificates: []tls.Certificate{certificate}}
			_, err := ask(ctx, &http.Transport{TLSClientConfig: config}, http.MethodGet, c.URL()+path, nil)
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}, nil
}
