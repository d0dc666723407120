// Package pemfiles reads certificates, keys and authorities from PEM files, and reads them again when they change, so
// that a file can be replaced while a process uses it. The HTTP API of package syncloop and package peertls use it.
package pemfiles

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
)

// Certificate returns the certificate of two PEM files.
func Certificate(certificate, key string) *Rereader[*tls.Certificate] {
	return NewRereader(func(contents [][]byte) (*tls.Certificate, error) {
		pair, err := tls.X509KeyPair(contents[0], contents[1])
		if err != nil {
			return nil, fmt.Errorf("does not go with %s: %w", key, err)
		}
		return &pair, nil
	}, certificate, key)
}

// Authorities returns the certificate authorities of a PEM file.
func Authorities(file string) *Rereader[*x509.CertPool] {
	return NewRereader(func(contents [][]byte) (*x509.CertPool, error) {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(contents[0]) {
			return nil, errors.New("has no certificate in PEM")
		}
		return pool, nil
	}, file)
}
