// Package cluster gives tests a real Kubernetes API server on a real etcd: the binaries that "make test-tools" builds
// from tools/kube, as child processes on ports of the loopback interface, with certificates of their own. Without the
// option Controllers there is no controller and no scheduler, so a test does their work, such as binding a pod to a
// node. With it the cluster is as kubeadm sets it up on a machine, except network and names. There is never a kubelet.
//
//	c := cluster.Start(t)
//	kubeconfig := c.Kubeconfig(t, cluster.NodeUser("node-1"), cluster.Nodes)
//	pods, err := c.Client(t).CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
//
// A start takes some seconds, so tests of one package share a cluster where they can: see Shared. A test can stop,
// kill, pause and start each of its servers (Server), discard the history (Compact), and put a Proxy between a client
// and the API server to break its connections. The servers' logs are printed when the test fails.
//
// A test skips with the reason when the machine lacks something that it needs; with CI=true it fails instead.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/quartet-node/quartet/test/harness"
)

const (
	// Masters is the group of users with all rights.
	Masters = "system:masters"
	// Nodes is the group of the nodes. A user in it that is called NodeUser(node) has the rights of that node's kubelet.
	Nodes = "system:nodes"

	// admin is the user of the cluster itself.
	admin = "quartet-test-admin"
)

// NodeUser returns the user name of a node.
func NodeUser(node string) string { return "system:node:" + node }

// Cluster is an API server with its etcd and, with the option Controllers, the control plane of a whole cluster.
type Cluster struct {
	// APIServer is kube-apiserver, Etcd its database.
	APIServer, Etcd *Server
	// ControllerManager and Scheduler are nil without the option Controllers.
	ControllerManager, Scheduler *Server

	dir               string
	authority         *authority
	apiPort, etcdPort *port
	// ports are all held ports.
	ports []*port
}

// Option changes how the API server is started.
type Option func(*options)

type options struct {
	serviceAccounts, controllers bool
	flags, controllerFlags       []string
}

// ServiceAccounts leaves the admission plugin ServiceAccount on: every pod names an existing service account and gets a
// volume with a token. No controller creates the service account "default" of a namespace here: the test has to.
func ServiceAccounts() Option { return func(o *options) { o.serviceAccounts = true } }

// Flags appends flags to those of kube-apiserver. A flag that is a list adds to the existing values, any other replaces
// the value.
func Flags(flags ...string) Option {
	return func(o *options) { o.flags = append(o.flags, flags...) }
}

// Controllers adds kube-controller-manager and kube-scheduler, and what kubeadm sets up for them and for nodes that
// join: service accounts and their tokens, the roles of kubeadm's bootstrap tokens, the signing of nodes' certificates.
// The flags are appended to those of kube-controller-manager; a test that waits until a node counts as lost shortens
// the times with them.
func Controllers(flags ...string) Option {
	return func(o *options) { o.controllers, o.serviceAccounts, o.controllerFlags = true, true, flags }
}

// CannotRun returns an error that names a binary that is missing in the folder "tools" below binDir and the command
// that builds it; nil when none is missing.
func CannotRun(binDir string) error {
	for _, name := range []string{etcdName, apiServerName, controllerManagerName, schedulerName} {
		if _, err := os.Stat(filepath.Join(binDir, "tools", name)); err != nil {
			return fmt.Errorf("%w: run 'make test-tools' first", err)
		}
	}
	return nil
}

// Require skips a test when a binary has not been built, or fails it with CI=true. It returns the folder of the build's
// binaries.
func Require(t testing.TB) string {
	t.Helper()
	binDir := harness.BinDir(t)
	harness.Require(t, CannotRun(binDir))
	return binDir
}

// Start starts a cluster until the test ends, and returns when it is ready. It skips the test as Require does.
func Start(t testing.TB, options ...Option) *Cluster {
	t.Helper()
	c, err := New(t.Context(), Require(t), options...)
	if err != nil {
		t.Fatalf("cluster: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, server := range c.servers() {
				t.Log(server.logFrom(0))
			}
		}
		if err := c.Close(); err != nil {
			t.Errorf("cluster: %v", err)
		}
	})
	return c
}

// New starts a cluster from the build's binaries, which are in the folder "tools" below binDir, and returns when it is
// ready. It runs until Close. When New fails, it leaves nothing behind, and the error has the logs of the servers.
func New(ctx context.Context, binDir string, opts ...Option) (*Cluster, error) {
	var o options
	for _, option := range opts {
		option(&o)
	}
	dir, err := os.MkdirTemp("", "quartet-cluster-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for a cluster: %w", err)
	}
	c := &Cluster{dir: dir}
	if err := c.start(ctx, binDir, o); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context, binDir string, o options) (err error) {
	if c.authority, err = newAuthority(); err != nil {
		return err
	}
	if c.etcdPort, err = c.holdPort(); err != nil {
		return err
	}
	if c.apiPort, err = c.holdPort(); err != nil {
		return err
	}
	c.Etcd = newEtcd(c.dir, binDir, c.etcdPort)
	if c.APIServer, err = c.newAPIServer(binDir, o); err != nil {
		return err
	}
	if o.controllers {
		if err := c.newControllers(binDir, o); err != nil {
			return err
		}
	}
	for _, server := range c.servers() {
		if err := server.start(ctx); err != nil {
			return err
		}
	}
	if o.controllers {
		return c.admit(ctx)
	}
	return nil
}

// servers returns all servers in the order in which they are started.
func (c *Cluster) servers() []*Server {
	var all []*Server
	for _, server := range []*Server{c.Etcd, c.APIServer, c.ControllerManager, c.Scheduler} {
		if server != nil {
			all = append(all, server)
		}
	}
	return all
}

// holdPort holds a port until Close.
func (c *Cluster) holdPort() (*port, error) {
	held, err := holdPort()
	if err == nil {
		c.ports = append(c.ports, held)
	}
	return held, err
}

// Close kills all servers at once, because there is nothing to keep, and removes their data. It fails when a server had
// ended by itself before; everything is removed nevertheless.
func (c *Cluster) Close() error {
	var errs []error
	for _, server := range slices.Backward(c.servers()) {
		errs = append(errs, server.kill())
	}
	for _, port := range c.ports {
		errs = append(errs, port.close())
	}
	return errors.Join(append(errs, os.RemoveAll(c.dir))...)
}

// URL returns the address of the API server, for example https://127.0.0.1:40123. It does not change.
func (c *Cluster) URL() string { return "https://" + c.apiPort.address() }

// CAFile returns the path of the certificate of the authority that has signed every certificate of the cluster. The
// file exists until Close.
func (c *Cluster) CAFile() string { return c.file("ca.crt") }

// Kubeconfig writes a kubeconfig with a client certificate for a user in groups, and returns its path. The certificates
// are in the file itself, which is removed after the test.
func (c *Cluster) Kubeconfig(t testing.TB, user string, groups ...string) string {
	t.Helper()
	return c.writeKubeconfig(t, c.URL(), user, groups)
}

func (c *Cluster) writeKubeconfig(t testing.TB, url, user string, groups []string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := c.saveKubeconfig(path, url, user, groups); err != nil {
		t.Fatalf("cluster: %v", err)
	}
	return path
}

// SaveKubeconfig writes the kubeconfig of Kubeconfig to a path that the caller names.
func (c *Cluster) SaveKubeconfig(path, user string, groups ...string) error {
	return c.saveKubeconfig(path, c.URL(), user, groups)
}

// SaveKubeconfigFor is SaveKubeconfig with another address of the API server, for example of a proxy.
func (c *Cluster) SaveKubeconfigFor(path, url, user string, groups ...string) error {
	return c.saveKubeconfig(path, url, user, groups)
}

// SaveNode writes the certificate of a node as its kubelet has it, with its key, into files.
func (c *Cluster) SaveNode(cert, key, node string) error {
	pair, err := c.authority.client(NodeUser(node), []string{Nodes})
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(cert, pair.cert, 0o600), os.WriteFile(key, pair.key, 0o600))
}

// SaveServer writes the certificate of a server on the loopback interface with additional names, and its key, into
// files.
func (c *Cluster) SaveServer(cert, key string, names ...string) error {
	pair, err := c.authority.serving(names...)
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(cert, pair.cert, 0o600), os.WriteFile(key, pair.key, 0o600))
}

func (c *Cluster) saveKubeconfig(path, url, user string, groups []string) error {
	cert, err := c.authority.client(user, groups)
	if err != nil {
		return err
	}
	return c.saveCredentials(path, url, &clientcmdapi.AuthInfo{ClientCertificateData: cert.cert, ClientKeyData: cert.key})
}

// saveCredentials writes a kubeconfig with credentials.
func (c *Cluster) saveCredentials(path, url string, credentials *clientcmdapi.AuthInfo) error {
	const name = "test"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: url, CertificateAuthorityData: c.authority.pem}
	config.AuthInfos[name] = credentials
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return fmt.Errorf("write a kubeconfig: %w", err)
	}
	return nil
}

// Client returns a client with all rights.
func (c *Cluster) Client(t testing.TB) *kubernetes.Clientset {
	t.Helper()
	return c.ClientFor(t, admin, Masters)
}

// ClientFor returns a client for a user in groups, without a rate limit. Its idle connections are closed when the test
// ends.
func (c *Cluster) ClientFor(t testing.TB, user string, groups ...string) *kubernetes.Clientset {
	t.Helper()
	client, closeIdle, err := c.clientFor(user, groups)
	if err != nil {
		t.Fatalf("cluster: %v", err)
	}
	t.Cleanup(closeIdle)
	return client
}

// clientFor returns a client and the function that closes its idle connections.
func (c *Cluster) clientFor(user string, groups []string) (*kubernetes.Clientset, func(), error) {
	cert, err := c.authority.client(user, groups)
	if err != nil {
		return nil, nil, err
	}
	config := &rest.Config{
		Host:            c.URL(),
		TLSClientConfig: rest.TLSClientConfig{CAData: c.authority.pem, CertData: cert.cert, KeyData: cert.key},
		QPS:             -1, // no limit
	}
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, nil, err
	}
	client, err := kubernetes.NewForConfigAndClient(config, httpClient)
	return client, func() { utilnet.CloseIdleConnectionsFor(httpClient.Transport) }, err
}

// Compact discards the cluster's history: a watch from an older resource version, and a list that continues from one,
// fail with 410 Gone. The API server keeps a history of its own, so it is restarted when it runs, which breaks every
// connection; one that does not run is not started.
func (c *Cluster) Compact(t testing.TB) {
	t.Helper()
	running := c.APIServer.Running()
	if running {
		c.APIServer.Stop(t)
	}
	if err := compact(t.Context(), c.etcdPort); err != nil {
		t.Fatalf("cluster: %v", err)
	}
	if running {
		c.APIServer.Start(t)
	}
}
