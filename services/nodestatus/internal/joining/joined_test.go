package joining_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"

	"github.com/quartet-node/quartet/services/nodestatus/internal/joining"
)

// pair returns a valid certificate, and its key.
func pair(t *testing.T) (certificate, key []byte) {
	t.Helper()
	certificate, key, err := cert.GenerateSelfSignedCertKey("node-1", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return certificate, key
}

func writeFiles(t *testing.T, files map[string][]byte) {
	t.Helper()
	for path, content := range files {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// writeKubeconfig writes a kubeconfig for a user. Nothing listens at its address.
func writeKubeconfig(t *testing.T, path string, user *clientcmdapi.AuthInfo) {
	t.Helper()
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:  map[string]*clientcmdapi.Cluster{"c": {Server: "https://127.0.0.1:1"}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"u": user},
		Contexts:  map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}}, CurrentContext: "x",
	}, path)
	if err != nil {
		t.Fatal(err)
	}
}

// TestAKubeconfigThatIsValidNeedsNoBootstrap: the unit of kubeadm has a bootstrap kubeconfig on every node, but a
// control plane never has that file.
func TestAKubeconfigThatIsValidNeedsNoBootstrap(t *testing.T) {
	for name, exists := range map[string]bool{"without the bootstrap kubeconfig": false, "with the bootstrap kubeconfig": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			bootstrap := filepath.Join(dir, "bootstrap")
			if exists {
				writeKubeconfig(t, bootstrap, &clientcmdapi.AuthInfo{Token: token})
			}
			cfg := node(dir, bootstrap, false)
			certificate, key := pair(t)
			writeKubeconfig(t, cfg.Kubeconfig, &clientcmdapi.AuthInfo{ClientCertificateData: certificate, ClientKeyData: key})
			if j, err := joining.New(cfg); err != nil || j != nil {
				t.Errorf("got %v, %v, want nothing to do", j, err)
			}
		})
	}
}

// TestAKubeconfigWithoutACertificateIsReplaced by a new join, as the kubelet does it.
func TestAKubeconfigWithoutACertificateIsReplaced(t *testing.T) {
	dir := t.TempDir()
	bootstrap := filepath.Join(dir, "bootstrap")
	writeKubeconfig(t, bootstrap, &clientcmdapi.AuthInfo{Token: token})
	cfg := node(dir, bootstrap, false)
	writeKubeconfig(t, cfg.Kubeconfig, &clientcmdapi.AuthInfo{Token: token})
	if j, err := joining.New(cfg); err != nil || j == nil {
		t.Errorf("got %v, %v, want a joiner", j, err)
	}
}

// TestTheCertificateWithinAKubeconfigIsKeptInAFile that is renewed: kubeadm makes the kubeconfig of a control plane
// reference that file when it exists.
func TestTheCertificateWithinAKubeconfigIsKeptInAFile(t *testing.T) {
	dir := t.TempDir()
	cfg := node(dir, "", true)
	certificate, key := pair(t)
	writeKubeconfig(t, cfg.Kubeconfig, &clientcmdapi.AuthInfo{ClientCertificateData: certificate, ClientKeyData: key})
	j, err := joining.New(cfg)
	if err != nil || j == nil {
		t.Fatalf("got %v, %v, want a joiner", j, err)
	}
	current := filepath.Join(cfg.Dir, "kubelet-client-current.pem")
	kept, err := os.ReadFile(current)
	if err != nil || !bytes.HasPrefix(kept, certificate) {
		t.Fatalf("the file has %q, %v", kept, err)
	}
	if j.Manager().Current() == nil {
		t.Error("the certificate is not in use")
	}

	// The next start keeps it, because it may be a newer one by then.
	newer, newerKey := pair(t)
	writeKubeconfig(t, cfg.Kubeconfig, &clientcmdapi.AuthInfo{ClientCertificateData: newer, ClientKeyData: newerKey})
	if j, err = joining.New(cfg); err != nil || j == nil {
		t.Fatalf("got %v, %v, want a joiner", j, err)
	}
	if again, err := os.ReadFile(current); err != nil || !bytes.Equal(again, kept) {
		t.Errorf("the file was written again, %v", err)
	}
}
