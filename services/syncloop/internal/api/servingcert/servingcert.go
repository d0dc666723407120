// Package servingcert has the certificate that the node's HTTP API shows: one in files of the configuration, or one that this
// machine signs for itself. What rotates one that a cluster has signed is internal/certificates.
//
// Nobody who calls a node can check a certificate that it has signed for itself; a kubelet's is the same, and an API server without
// --kubelet-certificate-authority does not try.
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
	"errors"
	"fmt"
	"math/big"
	"net"
	"path/filepath"
	"time"

	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/services/syncloop/internal/api/reread"
)

const (
	// lifetime is how long a certificate that is signed here is valid, as a kubelet's.
	lifetime = 365 * 24 * time.Hour
	// renewBefore is how long before its end another one takes its place, and lookAgain how often it is looked at.
	renewBefore = lifetime / 5
	lookAgain   = 12 * time.Hour
	// backdate is how far a client's clock may be behind.
	backdate = time.Hour
	// serialBits is how long a serial number is: what nobody guesses, and may not be longer than 20 bytes.
	serialBits = 127

	certificateMode = 0o644
	keyMode         = 0o600
)

// Files returns what gives the certificate in files in PEM, read again when they change.
func Files(certificate, key string) *reread.Files[*tls.Certificate] {
	return reread.New(func(contents [][]byte) (*tls.Certificate, error) {
		pair, err := tls.X509KeyPair(contents[0], contents[1])
		if err != nil {
			return nil, fmt.Errorf("does not go with %s: %w", key, err)
		}
		return &pair, nil
	}, certificate, key)
}

// ClientCAs returns what gives the authorities in a file in PEM, read again when it changes.
func ClientCAs(file string) *reread.Files[*x509.CertPool] {
	return reread.New(func(contents [][]byte) (*x509.CertPool, error) {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(contents[0]) {
			return nil, errors.New("has no certificate in PEM")
		}
		return pool, nil
	}, file)
}

// SelfSigned is a certificate that signs itself, in kubelet.crt and kubelet.key of a directory.
type SelfSigned struct {
	// Dir is made when it is not there.
	Dir string
	// Name is who the certificate is of, and Addresses where it is.
	Name      string
	Addresses []net.IP
	Clock     clock.Clock
}

// paths are those of the certificate and its key.
func (s SelfSigned) paths() (certificate, key string) {
	return filepath.Join(s.Dir, "kubelet.crt"), filepath.Join(s.Dir, "kubelet.key")
}

// Ensure has a certificate in place that is valid for some time yet and of the name and all addresses, and tells where. It leaves
// one that is.
func (s SelfSigned) Ensure() (certificate, key string, err error) {
	certificate, key = s.paths()
	if s.good(certificate, key) {
		return certificate, key, nil
	}
	if err := statedir.MakeDir(s.Dir); err != nil {
		return "", "", err
	}
	certificatePEM, keyPEM, err := s.sign()
	if err != nil {
		return "", "", fmt.Errorf("signing a certificate for %s: %w", s.Name, err)
	}
	// The old certificate does not go with the new key: whoever reads between the two keeps what they had.
	if err := statedir.WriteFileAtomic(key, keyPEM, keyMode); err != nil {
		return "", "", err
	}
	return certificate, key, statedir.WriteFileAtomic(certificate, certificatePEM, certificateMode)
}

// Keep has a certificate in place until ctx ends. Failed is told why there is no newer one, which is tried again.
func (s SelfSigned) Keep(ctx context.Context, failed func(error)) {
	for {
		timer := s.Clock.NewTimer(lookAgain)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
		}
		if _, _, err := s.Ensure(); err != nil {
			failed(err)
		}
	}
}

// good reports whether what is in place need not be replaced.
func (s SelfSigned) good(certificate, key string) bool {
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil || pair.Leaf == nil {
		return false
	}
	now := s.Clock.Now()
	if now.Before(pair.Leaf.NotBefore) || !now.Before(pair.Leaf.NotAfter.Add(-renewBefore)) || pair.Leaf.VerifyHostname(s.Name) != nil {
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
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), nil
}

// Config returns the TLS configuration of a server that shows what current has and asks for a client certificate, which it does not
// check: who is let in is the guard's to say. ClientCAs is nil, or says which authorities clients are told to choose by.
func Config(minVersion uint16, suites []uint16, current func() (*tls.Certificate, error), clientCAs func() (*x509.CertPool, bool)) *tls.Config {
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
