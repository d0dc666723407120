package joining_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/services/nodestatus/internal/joining"
	"github.com/quartet-node/quartet/test/cluster"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/logbuffer"
)

// shared issues certificates with the shortest lifetime that is long enough for a renewal on a busy machine.
var shared = cluster.Shared{Options: []cluster.Option{cluster.Controllers("--cluster-signing-duration=12s")}}

func TestMain(m *testing.M) { goleak.VerifyTestMain(shared.Main(m)) }

const token = "abcdef.0123456789abcdef"

func connect(kubeconfig string) (*apiclient.Client, error) {
	return apiclient.New(
		apiclient.Config{
			Kubeconfig:  kubeconfig,
			Service:     nodeconfig.NodeStatus,
			QPS:         50,
			Burst:       100,
			ContentType: runtime.ContentTypeProtobuf,
		},
	)
}

// node returns a node that joins with the files in dir.
func node(dir, bootstrap string, rotate bool) joining.Config {
	return joining.Config{
		NodeName:   "node-1",
		Bootstrap:  bootstrap,
		Kubeconfig: filepath.Join(dir, "kubeconfig"),
		Dir:        filepath.Join(dir, "pki"),
		Rotate:     rotate,
		Connect:    connect,
		Random:     func() float64 { return 0 },
		Health:     rpc.NewHealth(),
		Clock:      clock.RealClock{},
		Logger:     slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
}

func run(t *testing.T, cfg joining.Config) *joining.Joiner {
	t.Helper()
	j, err := joining.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); j.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return j
}

// bootstrap writes a kubeconfig with a bootstrap token, as kubeadm join does.
func bootstrap(t *testing.T, c *cluster.Cluster, token string) string {
	t.Helper()
	admin, err := clientcmd.LoadFromFile(c.Kubeconfig(t, "any"))
	if err != nil {
		t.Fatal(err)
	}
	context := admin.Contexts[admin.CurrentContext]
	path := filepath.Join(t.TempDir(), "bootstrap")
	err = clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:  map[string]*clientcmdapi.Cluster{"c": admin.Clusters[context.Cluster]},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"u": {Token: token}},
		Contexts:  map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}}, CurrentContext: "x",
	}, path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestANodeJoins a real cluster with a bootstrap token, has the rights of a node afterwards, and has its certificate
// renewed before it expires.
func TestANodeJoins(t *testing.T) {
	c := shared.Cluster(t)
	_, err := c.Client(t).CoreV1().Secrets("kube-system").Create(t.Context(), &v1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-abcdef"}, Type: "bootstrap.kubernetes.io/token",
		StringData: map[string]string{
			"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
			"auth-extra-groups": cluster.Bootstrappers,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var log logbuffer.Buffer
	cfg := node(dir, bootstrap(t, c, token), true)
	cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	j := run(t, cfg)
	eventually.That(t, "the node has a certificate", func() bool { return j.Manager().Current() != nil })
	first := j.Manager().Current().Leaf
	if first.Subject.String() != "CN=system:node:node-1,O=system:nodes" {
		t.Errorf("the certificate is for %s, want %q", first.Subject, "CN=system:node:node-1,O=system:nodes")
	}
	client, err := connect(cfg.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	made := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
	if err := client.Core.Post().Resource("nodes").Body(made).Do(t.Context()).Error(); err != nil {
		t.Errorf("making the Node: %v", err)
	}
	eventually.That(t, "there is another certificate", func() bool {
		current := j.Manager().Current()
		return current != nil && current.Leaf.SerialNumber.Cmp(first.SerialNumber) != 0
	})
	requests, err := c.Client(t).CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
	if err != nil ||
		!slices.ContainsFunc(
			requests.Items,
			func(r certificatesv1.CertificateSigningRequest) bool { return r.Spec.Username == "system:node:node-1" },
		) {
		t.Errorf("it has not asked for another one with the first one, while that was valid: %v, %v", requests, err)
	}
	eventually.That(t, "the first one has expired", func() bool { return time.Now().After(first.NotAfter) })
	renewed, err := connect(cfg.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	defer renewed.Close()
	if err := renewed.Core.Get().Resource("nodes").Name("node-1").Do(t.Context()).Error(); err != nil {
		t.Errorf("with the second certificate: %v", err)
	}
	if strings.Contains(log.String(), token) {
		t.Error("the token is in the log")
	}
}

// TestAnExpiredCertificateIsReplacedByTheBootstrap: a node that was down for long joins again, with its former
// kubeconfig.
func TestAnExpiredCertificateIsReplacedByTheBootstrap(t *testing.T) {
	c := shared.Cluster(t)
	dir := t.TempDir()
	cfg := node(dir, c.Kubeconfig(t, "a-new-node", cluster.Bootstrappers), false)
	first := run(t, cfg)
	eventually.That(
		t,
		"the certificate has come and expired",
		func() bool { return !first.Manager().Expires().IsZero() && first.Manager().Current() == nil },
	)
	written, err := os.ReadFile(cfg.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	second := run(t, cfg)
	eventually.That(t, "there is a valid one", func() bool { return second.Manager().Current() != nil })
	if again, err := os.ReadFile(cfg.Kubeconfig); err != nil || !bytes.Equal(again, written) {
		t.Errorf("the kubeconfig was written again, %v", err)
	}
}

// TestAValidKubeconfigIsKeptAndRenewed: kubeadm gives the node of a control plane a kubeconfig with an embedded
// certificate, sets a missing bootstrap file, and looks for the certificate in the store. It is renewed from there.
func TestAValidKubeconfigIsKeptAndRenewed(t *testing.T) {
	c := shared.Cluster(t)
	before := node(t.TempDir(), c.Kubeconfig(t, "another-new-node", cluster.Bootstrappers), false)
	signed := run(t, before)
	eventually.That(
		t,
		"there is a kubeconfig with a certificate",
		func() bool { return signed.Manager().Current() != nil },
	)
	admin, err := clientcmd.LoadFromFile(before.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if err := clientcmdapi.FlattenConfig(admin); err != nil { // its certificate is embedded then, not in a store
		t.Fatal(err)
	}
	cfg := node(t.TempDir(), filepath.Join(t.TempDir(), "not-there"), true)
	if err := clientcmd.WriteToFile(*admin, cfg.Kubeconfig); err != nil {
		t.Fatal(err)
	}
	given, err := os.ReadFile(cfg.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}

	unrotated := cfg
	unrotated.Rotate = false
	if j, err := joining.New(unrotated); j != nil || err != nil {
		t.Errorf("without rotation there is something to do: %v, %v", j, err)
	}
	j := run(t, cfg)
	first := j.Manager().Current()
	if first == nil || !first.Leaf.Equal(signed.Manager().Current().Leaf) {
		t.Fatalf("it does not have the certificate of the kubeconfig: %v", first)
	}
	if _, err := os.Stat(filepath.Join(cfg.Dir, "kubelet-client-current.pem")); err != nil {
		t.Error(err)
	}
	if now, err := os.ReadFile(cfg.Kubeconfig); err != nil || !bytes.Equal(now, given) {
		t.Errorf("the kubeconfig was changed: %v, want now %v", err, given)
	}
	eventually.That(t, "it is renewed", func() bool {
		current := j.Manager().Current()
		return current != nil && !current.Leaf.Equal(first.Leaf)
	})
	eventually.That(t, "the first one has expired", func() bool { return time.Now().After(first.Leaf.NotAfter) })
	eventually.That(t, "the kubeconfig leads to the second one", func() bool {
		client, err := connect(cfg.Kubeconfig)
		if err != nil {
			return false // it is being rewritten
		}
		defer client.Close()
		return !apierrors.IsUnauthorized(client.Core.Get().Resource("nodes").Name("node-1").Do(t.Context()).Error())
	})
}

// TestANodeThatMayNotJoinSaysWhy checks that it joins as soon as it is allowed to.
func TestANodeThatMayNotJoinSaysWhy(t *testing.T) {
	c := shared.Cluster(t)
	cfg := node(t.TempDir(), bootstrap(t, c, "wrong0.0123456789abcdef"), false)
	j := run(t, cfg)
	eventually.That(t, "there is a reason", func() bool { return strings.Contains(j.Manager().Trouble(), "Unauthorized") })
	if _, err := os.Stat(cfg.Kubeconfig); err == nil {
		t.Error("there is a kubeconfig")
	}
}

// TestAFailedRenewalIsReported: the certificate of a kubeconfig that is not in a file that nodestatus may replace.
func TestAFailedRenewalIsReported(t *testing.T) {
	var log bytes.Buffer
	dir := t.TempDir()
	cfg := node(dir, "", true)
	certificate, key := pair(t)
	writeFiles(t, map[string][]byte{filepath.Join(dir, "client.crt"): certificate, filepath.Join(dir, "client.key"): key})
	writeKubeconfig(
		t,
		cfg.Kubeconfig,
		&clientcmdapi.AuthInfo{
			ClientCertificate: filepath.Join(dir, "client.crt"),
			ClientKey:         filepath.Join(dir, "client.key"),
		},
	)
	cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	j, err := joining.New(cfg)
	if err != nil || j != nil {
		t.Errorf("got %v, %v, want nothing to do", j, err)
	}
	if !strings.Contains(log.String(), "rotateCertificates") || !strings.Contains(log.String(), cfg.Kubeconfig) {
		t.Errorf("the log has %s, want text with %q and with %q", log.String(), "rotateCertificates", cfg.Kubeconfig)
	}
	cfg.Rotate = false
	log.Reset()
	if j, err := joining.New(cfg); err != nil || j != nil || log.Len() != 0 {
		t.Errorf("got %v, %v and %q, want nothing to do", j, err, log.String())
	}
}
