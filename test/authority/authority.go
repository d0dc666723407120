// Package authority is a certificate authority for tests of TLS between parts.
package authority

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/quartet-node/quartet/internal/peertls"
)

// serialBits is the length of a serial number.
const serialBits = 100

// Authority issues certificates.
type Authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// New returns an authority.
func New(t testing.TB, name string) *Authority {
	t.Helper()
	a := &Authority{key: newKey(t)}
	a.certificate = sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotAfter: time.Now().Add(time.Hour),
	}, a, a.key)
	return a
}

// Request is what a certificate is for.
type Request struct {
	// Name is the common name, Hosts the names of DNS and addresses.
	Name  string
	Hosts []string
	// Groups are the organizations.
	Groups []string
	// For is the time until the certificate expires; 0 is an hour, and a negative one has passed.
	For time.Duration
}

// Issue writes a certificate, its key and the trusted authority into a directory, and returns the files. It replaces an
// earlier certificate as tools do, by a rename of each file, and leaves the authorities that are trusted already.
func (a *Authority) Issue(t testing.TB, dir string, request Request) peertls.Files {
	t.Helper()
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: request.Name, Organization: request.Groups},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		NotAfter:    time.Now().Add(time.Hour),
	}
	if request.For != 0 {
		template.NotAfter = time.Now().Add(request.For)
	}
	for _, host := range request.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	key := newKey(t)
	certificate := sign(t, template, a, key)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	files := peertls.Files{
		Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"), CA: filepath.Join(dir, "ca.crt"),
	}
	replace(t, files.Key, block("PRIVATE KEY", der))
	replace(t, files.Cert, block("CERTIFICATE", certificate.Raw))
	if _, err := os.Stat(files.CA); err != nil {
		Trust(t, files.CA, a)
	}
	return files
}

// Trust writes the file of trusted authorities.
func Trust(t testing.TB, path string, authorities ...*Authority) {
	t.Helper()
	var content []byte
	for _, a := range authorities {
		content = append(content, block("CERTIFICATE", a.certificate.Raw)...)
	}
	replace(t, path, content)
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	return key
}

// sign signs a certificate by an authority, which has none of its own yet if it is the authority's.
func sign(t testing.TB, template *x509.Certificate, by *Authority, key *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), serialBits))
	must(t, err)
	template.SerialNumber, template.NotBefore = serial, time.Now().Add(-time.Hour)
	parent := by.certificate
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by.key)
	must(t, err)
	certificate, err := x509.ParseCertificate(der)
	must(t, err)
	return certificate
}

func block(kind string, content []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content})
}

func replace(t testing.TB, path string, content []byte) {
	t.Helper()
	must(t, errors.Join(os.WriteFile(path+".new", content, 0o600), os.Rename(path+".new", path)))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
