// Package servingcert provides the serving certificate of the node's HTTP API: from files of the configuration, or
// self-signed. A certificate that the cluster signs is rotated by internal/certificates.
//
// Clients cannot verify a self-signed certificate. A kubelet's is the same, and an API server without
// --kubelet-certificate-authority does not verify it.
package servingcert

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"path/filepath"
	"time"

	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/statedir"
)

const (
	// lifetime is how long a self-signed certificate is valid, as with a kubelet.
	lifetime = 365 * 24 * time.Hour
	// renewBefore is how long before its end a certificate is replaced, lookAgain how often that is checked, and tryAgain
	// how often if the last attempt has failed.
	renewBefore = lifetime / 5
	lookAgain   = 12 * time.Hour
	tryAgain    = time.Minute
	// backdate is how far a client's clock may be behind.
	backdate = time.Hour
	// serialBits is the length of a serial number: too long to guess, and within the maximum of 20 bytes.
	serialBits = 127

	certificateMode = 0o644
	keyMode         = 0o600
)

// SelfSigned is a self-signed certificate in kubelet.crt and kubelet.key of a directory.
type SelfSigned struct {
	// Dir is created if it does not exist.
	Dir string
	// Name is the subject of the certificate, and Addresses are its IP addresses.
	Name      string
	Addresses []net.IP
	Clock     clock.Clock
}

// Paths returns the paths of the certificate and its key.
func (s SelfSigned) Paths() (certificate, key string) {
	return filepath.Join(s.Dir, "kubelet.crt"), filepath.Join(s.Dir, "kubelet.key")
}

// Ensure creates a certificate unless there is one with enough remaining lifetime, the name and all addresses.
func (s SelfSigned) Ensure() error {
	if s.good() {
		return nil
	}
	if err := statedir.MakeDir(s.Dir); err != nil {
		return err
	}
	certificatePEM, keyPEM, err := s.sign()
	if err != nil {
		return fmt.Errorf("signing a certificate for %s: %w", s.Name, err)
	}
	certificate, key := s.Paths()
	// The old certificate does not match the new key: a reader between the two writes keeps its previous certificate.
	if err := statedir.WriteFileAtomic(key, keyPEM, keyMode); err != nil {
		return err
	}
	return statedir.WriteFileAtomic(certificate, certificatePEM, certificateMode)
}

// Keep calls ensure, which calls Ensure, periodically until ctx ends. An error is passed to failed, and the call is
// retried.
func (s SelfSigned) Keep(ctx context.Context, ensure func() error, failed func(error)) {
	for {
		wait := lookAgain
		if !s.good() {
			wait = tryAgain
		}
		timer := s.Clock.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
		}
		if err := ensure(); err != nil {
			failed(err)
		}
	}
}

// good reports whether the existing certificate need not be replaced.
func (s SelfSigned) good() bool {
	pair, err := tls.LoadX509KeyPair(s.Paths())
	if err != nil || pair.Leaf == nil {
		return false
	}
	now := s.Clock.Now()
	if now.Before(pair.Leaf.NotBefore) || !now.Before(pair.Leaf.NotAfter.Add(-renewBefore)) ||
		pair.Leaf.VerifyHostname(s.Name) != nil {
		return false
	}
	for _, ip := range s.Addresses {
		if pair.Leaf.VerifyHostname(ip.String()) != nil {
			return false
		}
	}
	return true
}

func (s SelfSigned) sign() (certificatePEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), serialBits))
	if err != nil {
		return nil, nil, err
	}
	now := s.Clock.Now()
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: s.Name}, DNSNames: []string{s.Name}, IPAddresses: s.Addresses,
		NotBefore: now.Add(-backdate), NotAfter: now.Add(lifetime),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{
		Type: "PRIVATE KEY", Bytes: keyDER,
	}), nil
}

// Config returns the TLS configuration of a server that presents the certificate of current and requests a client
// certificate, which it does not verify: the guard decides that. ClientCAs is nil, or returns the authorities that are
// sent to clients as a hint.
func Config(
	minVersion uint16, suites []uint16, current func() (*tls.Certificate, error), clientCAs func() (*x509.CertPool, bool),
) *tls.Config {
	config := &tls.Config{
		MinVersion: minVersion, CipherSuites: suites, NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return current() },
	}
	if clientCAs == nil {
		return config
	}
	config.ClientAuth = tls.RequestClientCert
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		each := config.Clone()
		each.GetConfigForClient = nil
		if pool, ok := clientCAs(); ok {
			each.ClientCAs = pool
		}
		return each, nil
	}
	return config
}
