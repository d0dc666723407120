package joining

import (
	"crypto/tls"
	"crypto/x509"
	"time"

	"k8s.io/client-go/rest"

	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/certificates"
)

// pair is a certificate and its key, in PEM.
type pair struct {
	certificate, key []byte
	leaf             *x509.Certificate
}

// given returns the client certificate of a kubeconfig, inline or in files; nil if none is valid now. kubeadm writes
// the certificate of a control plane node into the kubeconfig, and expects to find it in the store.
func given(kubeconfig string, now time.Time) *pair {
	config, err := apiclient.RESTConfig(apiclient.Config{Kubeconfig: kubeconfig})
	if err != nil {
		return nil
	}
	if err := rest.LoadTLSFiles(config); err != nil {
		return nil
	}
	loaded, err := tls.X509KeyPair(config.CertData, config.KeyData)
	if err != nil {
		return nil
	}
	leaf, err := x509.ParseCertificate(loaded.Certificate[0])
	if err != nil || now.After(leaf.NotAfter) {
		return nil
	}
	return &pair{certificate: config.CertData, key: config.KeyData, leaf: leaf}
}

// laterThan reports whether it is newer than the certificate of a store. It is used instead of that of a former cluster
// of the node, but not instead of its own renewal.
func (p *pair) laterThan(store certificates.Store) bool {
	if p == nil {
		return false
	}
	kept, err := store.Load()
	return err != nil || p.leaf.NotBefore.After(kept.Leaf.NotBefore)
}

// in reports whether a store contains it.
func (p *pair) in(store certificates.Store) bool {
	kept, err := store.Load()
	return err == nil && p.leaf.Equal(kept.Leaf)
}
