package peertls

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/credentials"

	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// firstRefusals is the number of refused peers that are logged at once, and refusalPause the time between later ones:
	// anybody on the network can cause them.
	firstRefusals = 10
	refusalPause  = time.Second
)

// ends is the part of the credentials that both ends have.
type ends struct {
	id     *Identity
	logger *slog.Logger
	// recheck is the interval at which the certificates of open connections are verified again.
	recheck time.Duration
	// refusals bounds the log lines about refused peers.
	refusals *rate.Sometimes
}

func newEnds(id *Identity, logger *slog.Logger) ends {
	return ends{
		id: id, logger: logger, recheck: recheckEvery,
		refusals: &rate.Sometimes{First: firstRefusals, Interval: refusalPause},
	}
}

// config returns the configuration of the next handshake.
func (e ends) config() (*tls.Config, *x509.CertPool) {
	certificate, authorities, err := e.id.current()
	if err != nil {
		e.logger.Warn("the files of TLS cannot be read; their last good content stays in use", telemetry.KeyError, err)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{certificate},
		// Each handshake shows a certificate.
		SessionTicketsDisabled: true,
	}, authorities
}

// Server are the credentials of a listener on the network.
type Server struct{ ends }

var _ credentials.TransportCredentials = Server{}

// NewServer returns credentials that let in peers with a certificate of a trusted authority, and log others.
func NewServer(id *Identity, logger *slog.Logger) Server { return Server{newEnds(id, logger)} }

// ServerHandshake implements credentials.TransportCredentials.
func (s Server) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	config, authorities := s.config()
	config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, authorities
	conn, info, err := credentials.NewTLS(config).ServerHandshake(raw)
	if err != nil {
		s.refusals.Do(func() {
			s.logger.Warn("refused a peer on the network: it needs a certificate of an authority in --"+FlagCA,
				"peer", raw.RemoteAddr().String(), "address", raw.LocalAddr().String(), telemetry.KeyError, err)
		})
		return nil, nil, err
	}
	return s.keep(conn, info, x509.ExtKeyUsageClientAuth), info, nil
}

// ClientHandshake implements credentials.TransportCredentials. These are the credentials of a server.
func (s Server) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("credentials of a server cannot connect")
}

// Info implements credentials.TransportCredentials.
func (s Server) Info() credentials.ProtocolInfo { return protocol() }

// Clone implements credentials.TransportCredentials.
func (s Server) Clone() credentials.TransportCredentials { return s }

// OverrideServerName implements credentials.TransportCredentials.
func (s Server) OverrideServerName(string) error {
	return errors.New("the name of the server is that of its address")
}

// Client are the credentials of a connection to a service.
type Client struct {
	ends
	service string
}

var _ credentials.TransportCredentials = Client{}

// NewClient returns credentials that accept a server whose certificate is of a trusted authority, and has the host of
// the address and the service among its names.
func NewClient(id *Identity, service string, logger *slog.Logger) Client {
	return Client{ends: newEnds(id, logger), service: service}
}

// ClientHandshake implements credentials.TransportCredentials.
func (c Client) ClientHandshake(
	ctx context.Context, authority string, raw net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	config, authorities := c.config()
	config.RootCAs = authorities
	// Without this function, no certificate is shown to a server that does not trust its authority, and the server could
	// not say what is wrong with it.
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return &config.Certificates[0], nil
	}
	config.VerifyConnection = func(state tls.ConnectionState) error {
		if names := NamesOf(state.PeerCertificates[0]); !slices.Contains(names, c.service) {
			return fmt.Errorf("the certificate of the server is for %s, and not for the service %s: issue one that has %[2]s "+
				"among its DNS names, too", strings.Join(names, ", "), c.service)
		}
		return nil
	}
	conn, info, err := credentials.NewTLS(config).ClientHandshake(ctx, authority, raw)
	if err != nil {
		return nil, nil, fmt.Errorf("reach %s at %s by TLS: %w", c.service, raw.RemoteAddr(), err)
	}
	return c.keep(conn, info, x509.ExtKeyUsageServerAuth), info, nil
}

// ServerHandshake implements credentials.TransportCredentials. These are the credentials of a client.
func (c Client) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("credentials of a client cannot serve")
}

// Info implements credentials.TransportCredentials.
func (c Client) Info() credentials.ProtocolInfo { return protocol() }

// Clone implements credentials.TransportCredentials.
func (c Client) Clone() credentials.TransportCredentials { return c }

// OverrideServerName implements credentials.TransportCredentials.
func (c Client) OverrideServerName(string) error {
	return errors.New("the name of the server is that of its address")
}

func protocol() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}
