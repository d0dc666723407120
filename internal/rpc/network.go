package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/peertls"
	"github.com/quartet-node/quartet/internal/sockets"
)

const (
	// handshakeTimeout bounds the time in which a peer must show who it is.
	handshakeTimeout = 10 * time.Second
	// maxConnections bounds the connections of the network, those of peers that have not shown who they are included.
	maxConnections = 1024
	// maxNodeConnections is that limit for a service that lets nodes in: the most nodes of a Kubernetes cluster, twice,
	// because a connection that died silently counts until keepalive notices it.
	maxNodeConnections = 10_000
	// connectTimeout bounds an attempt to connect by the network: TLS takes several round trips.
	connectTimeout = 10 * time.Second
)

// listen returns the listeners of a configuration, and the credentials of the network; nil if it is not served.
func listen(ctx context.Context, cfg Config) ([]net.Listener, credentials.TransportCredentials, error) {
	if cfg.Network.Address == "" {
		listener, err := ListenUnix(cfg.Address, cfg.Users.All(), cfg.Logger)
		if err != nil {
			return nil, nil, fmt.Errorf("--listen: %w", err)
		}
		return []net.Listener{listener}, nil, nil
	}
	if !cfg.Network.Files.Given() {
		return nil, nil, fmt.Errorf("--%s: %s is on the network, where nothing is served without TLS: give --%s, --%s and --%s",
			peertls.FlagListen, cfg.Network.Address, peertls.FlagCert, peertls.FlagKey, peertls.FlagCA)
	}
	identity, err := peertls.Open(cfg.Network.Files)
	if err != nil {
		return nil, nil, err
	}
	socket := sockets.Socket{Name: peertls.FlagListen, Address: cfg.Network.Address}
	network, err := cfg.Sockets.Listen(ctx, socket, cfg.Logger)
	if err != nil {
		return nil, nil, fmt.Errorf("--%s: %w", peertls.FlagListen, err)
	}
	listener, err := ListenUnix(cfg.Address, cfg.Users.All(), cfg.Logger)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("--listen: %w", err), network.Close())
	}
	cfg.Logger.Info("serving on the network, too", "address", network.Addr().String(), "names", cfg.Network.Names.All())
	limit := maxConnections
	if cfg.Network.Nodes {
		limit = maxNodeConnections
	}
	return []net.Listener{listener, netutil.LimitListener(network, limit)},
		peertls.NewServer(identity, cfg.Logger), nil
}

// DialService is Dial for a service whose address may be on the network: HOST:PORT, or dns:///NAME:PORT with a name of
// several addresses, which are tried in their order. On the network both ends show a certificate, and that of the
// service has the name of the host and of the service. It fails if the address is malformed, or the files of TLS are
// not given or not good.
func DialService(service layout.Service, address string, files peertls.Files) (*grpc.ClientConn, error) {
	if !peertls.OnNetwork(address) {
		return Dial(address)
	}
	if problem := peertls.CheckAddress(address); problem != "" {
		return nil, fmt.Errorf("--%s-address: %s", service, problem)
	}
	if !files.Given() {
		return nil, fmt.Errorf("--%s-address: %s is on the network, which needs TLS: give --%s, --%s and --%s",
			service, address, peertls.FlagCert, peertls.FlagKey, peertls.FlagCA)
	}
	identity, err := peertls.Open(files)
	if err != nil {
		return nil, err
	}
	return newClient(
		address, connectTimeout,
		grpc.WithTransportCredentials(peertls.NewClient(identity, string(service), slog.Default())),
		grpc.WithNoProxy(),
	)
}
