// Package peertls secures the connections of the four parts, and of the command line, between machines: TLS 1.3 with a
// certificate at both ends, issued by an authority that both ends trust. On one machine the parts use unix sockets and
// the kernel's peer credentials instead, see package rpc.
//
// The files are read again when they change. A new certificate or authority applies to the next connection, and open
// connections stay. A connection ends when the certificate of its peer has expired, or is not of a trusted authority
// any more.
package peertls

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/quartet-node/quartet/internal/pemfiles"
	"github.com/quartet-node/quartet/internal/rights"
)

// The flags with the address and the files. That of the address is also the name of the socket.
const (
	FlagListen = "tls-listen"

	FlagCert = "tls-cert"
	FlagKey  = "tls-key"
	FlagCA   = "tls-ca"
)

// Files are the paths of the PEM files of one end.
type Files struct {
	// Cert and Key are the certificate, with intermediate ones, and its key.
	Cert, Key string
	// CA has the authorities whose certificates are accepted from the other end.
	CA string
}

// Given reports whether all three files are set.
func (f Files) Given() bool { return f.Cert != "" && f.Key != "" && f.CA != "" }

// Listen is what a service serves on the network. The zero value is nothing.
type Listen struct {
	// Address is HOST:PORT; empty for none.
	Address string
	Files   Files
	// Names are the names of certificates that have roles.
	Names rights.Names
	// Nodes lets the nodes of a cluster in, by certificates as kubelets have them, see NodeOf.
	Nodes bool
}

// Identity is the certificate and the authorities of one end.
type Identity struct {
	certificate *pemfiles.Rereader[*tls.Certificate]
	authorities *pemfiles.Rereader[*x509.CertPool]
}

// Open returns the identity of files. It fails if they cannot be read or do not go together. Later, when they change,
// the last good content stays in use until the new one is good.
func Open(files Files) (*Identity, error) {
	id := &Identity{
		certificate: pemfiles.Certificate(files.Cert, files.Key), authorities: pemfiles.Authorities(files.CA),
	}
	if _, _, err := id.certificate.Get(); err != nil {
		return nil, fmt.Errorf("--%s, --%s: %w", FlagCert, FlagKey, err)
	}
	if _, _, err := id.authorities.Get(); err != nil {
		return nil, fmt.Errorf("--%s: %w", FlagCA, err)
	}
	return id, nil
}

// current returns the certificate and the authorities. The error says why those of the files are not used; there is
// always a good one, because Open has read one.
func (id *Identity) current() (certificate tls.Certificate, authorities *x509.CertPool, err error) {
	pair, _, err := id.certificate.Get()
	pool, _, poolErr := id.authorities.Get()
	if err == nil {
		err = poolErr
	}
	return *pair, pool, err
}

const (
	// nodePrefix begins the common name of a node's certificate, and nodesGroup is among its organizations: an API server
	// recognizes a node by both.
	nodePrefix, nodesGroup = "system:node:", "system:nodes"
)

// NodeOf returns the name of the node whose certificate this is, as those of kubelets are: the common name is
// system:node:NAME, and an organization is system:nodes. It is empty for every other certificate. DNS names do not
// count, because many signers let the requester choose them, and neither does a name that no Node can have.
func NodeOf(certificate *x509.Certificate) string {
	name, is := strings.CutPrefix(certificate.Subject.CommonName, nodePrefix)
	if !is || !slices.Contains(certificate.Subject.Organization, nodesGroup) ||
		len(validation.IsDNS1123Subdomain(name)) > 0 {
		return ""
	}
	return name
}

// NamesOf returns the names of a certificate to which roles are given: its common name and its DNS names.
func NamesOf(certificate *x509.Certificate) []string {
	names := slices.Clone(certificate.DNSNames)
	if name := certificate.Subject.CommonName; name != "" && !slices.Contains(names, name) {
		names = append([]string{name}, names...)
	}
	return names
}
