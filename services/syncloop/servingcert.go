package syncloop

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/rand/v2"
	"net"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/certexpiry"
	"github.com/quartet-node/quartet/internal/certificates"
	"github.com/quartet-node/quartet/internal/components"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/pemfiles"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/api/servingcert"
)

// askNodeTimeout bounds the request for the Node, whose addresses the serving certificate contains.
const askNodeTimeout = 5 * time.Second

// addServingCertificate returns a function that returns the serving certificate of the HTTP API, and adds the component
// that renews it. The certificate is from configured files, signed by the cluster, or self-signed.
func addServingCertificate(
	ctx context.Context, h *host, askNode func(context.Context) (*v1.Node, error), signers rest.Interface,
	parts *components.Group,
) func() (*tls.Certificate, error) {
	kubelet := &h.cfg.Kubelet
	if kubelet.ServerTLSBootstrap && kubelet.TLSCertFile == "" {
		return addSignedCertificate(ctx, h, askNode, signers, parts)
	}
	certificate, key := kubelet.TLSCertFile, kubelet.TLSPrivateKeyFile
	if certificate == "" {
		own := servingcert.SelfSigned{
			Dir: h.cfg.CertDir, Name: h.cfg.NodeName, Addresses: addressesOf(ctx, h.cfg), Clock: clock.RealClock{},
		}
		certificate, key = own.Paths()
		var writes statedir.Writer // pods run and the node serves without the API, so its disk delays nothing
		ensure := func() error { return writes.Write(own.Ensure) }
		failed := func(err error) {
			h.logger.Warn("the certificate of the HTTP API cannot be renewed; it is tried again",
				telemetry.KeyFile, certificate, telemetry.KeyError, err)
		}
		if err := ensure(); err != nil {
			failed(err)
		}
		parts.Run("serving certificate", func(ctx context.Context) error {
			own.Keep(ctx, ensure, failed)
			return nil
		})
	}
	files := pemfiles.Certificate(certificate, key)
	if _, _, err := files.Get(); err != nil {
		h.logger.Warn("the HTTP API accepts no connection until its certificate can be read",
			telemetry.KeyFile, certificate, telemetry.KeyError, err)
	}
	return func() (*tls.Certificate, error) {
		current, ok, err := files.Get()
		if ok {
			return current, nil
		}
		return nil, err
	}
}

// watchServing adds the component that warns before the serving certificate of the HTTP API expires.
func watchServing(h *host, certificate func() (*tls.Certificate, error), parts *components.Group) {
	shown := certexpiry.Certificate{
		Name: "https", File: h.cfg.Kubelet.TLSCertFile, Current: func() *tls.Certificate {
			current, err := certificate()
			if err != nil {
				return nil // connections fail with this error
			}
			return current
		},
	}
	watched := certexpiry.New(shown, h.registry, clock.RealClock{}, h.logger)
	parts.Run("expiry of the serving certificate", watched.Run)
}

// addSignedCertificate is addServingCertificate for a certificate that the cluster signs.
func addSignedCertificate(
	ctx context.Context, h *host, askNode func(context.Context) (*v1.Node, error), signers rest.Interface,
	parts *components.Group,
) func() (*tls.Certificate, error) {
	manager := certificates.New(certificates.Config{
		Requester: certificates.Requester{
			API:  func() (rest.Interface, error) { return signers, nil },
			Kind: certificates.Serving(), Clock: clock.RealClock{},
			Store: certificates.Store{Dir: h.cfg.CertDir, Name: "kubelet-server", Mode: 0o600},
		},
		Template: func() *x509.CertificateRequest { return servingTemplate(ctx, h.cfg.NodeName, askNode) },
		Random:   rand.Float64, Logger: h.logger,
	})
	parts.Run("serving certificate", func(ctx context.Context) error {
		manager.Run(ctx)
		return nil
	})
	servingcert.Expose(h.registry, manager.Expires, manager.Failures)
	return func() (*tls.Certificate, error) {
		if current := manager.Current(); current != nil {
			return current, nil
		}
		return nil, fmt.Errorf("there is no serving certificate yet: %s", manager.Trouble())
	}
}

// addressesOf returns the addresses of a node that are known without a cluster.
func addressesOf(ctx context.Context, cfg nodeconfig.Config) []net.IP {
	addresses := []net.IP{net.IPv4(127, 0, 0, 1)}
	for _, text := range fallbackAddresses(ctx, cfg) {
		if ip := net.ParseIP(text); ip != nil {
			addresses = append(addresses, ip)
		}
	}
	return addresses
}

// servingTemplate returns the certificate request for the Node and its addresses, or nil while they are not known.
func servingTemplate(
	process context.Context, name string, askNode func(context.Context) (*v1.Node, error),
) *x509.CertificateRequest {
	ctx, cancel := context.WithTimeout(process, askNodeTimeout)
	defer cancel()
	node, err := askNode(ctx)
	if err != nil {
		return nil
	}
	return requestOf(name, node.Status.Addresses)
}

// requestOf returns the request for a serving certificate, or nil if there is no IP address, because no signer would
// sign it.
func requestOf(name string, addresses []v1.NodeAddress) *x509.CertificateRequest {
	request := &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}},
	}
	seen := map[string]bool{}
	for _, address := range addresses {
		if address.Address == "" || seen[address.Address] {
			continue
		}
		seen[address.Address] = true
		if ip := net.ParseIP(address.Address); ip != nil {
			request.IPAddresses = append(request.IPAddresses, ip)
		} else if address.Type != v1.NodeInternalIP && address.Type != v1.NodeExternalIP {
			request.DNSNames = append(request.DNSNames, address.Address)
		}
	}
	if len(request.IPAddresses) == 0 {
		return nil
	}
	return request
}
