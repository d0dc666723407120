// Package rpc connects Quartet's processes: gRPC on a unix socket with authorized peers, and on request on the network
// with TLS at both ends; grpc.health.v1 from the start, keepalive that matches the bookmarks of the streams, and a stop
// that waits for calls in flight but not for streams.
package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/stats"

	"github.com/quartet-node/quartet/internal/peertls"
	"github.com/quartet-node/quartet/internal/rights"
	"github.com/quartet-node/quartet/internal/sockets"
	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// keepaliveTime is slightly longer than stream.BookmarkInterval, so that an active stream is never pinged.
	keepaliveTime = 15 * time.Second
	// keepaliveTimeout is the time to wait for the answer to a ping before the connection counts as dead.
	keepaliveTimeout = 10 * time.Second
	// maxMessageSize is the limit of containerd and the kubelet for CRI messages. Pods are much smaller.
	maxMessageSize = 16 << 20
	// maxAnswerSize is the limit for responses, which may be a set of pods: 6,000 of 10 KiB.
	maxAnswerSize = 64 << 20
)

// Config holds the parameters of Serve.
type Config struct {
	// Address is unix:///ABSOLUTE/PATH.
	Address string
	// Register adds the services.
	Register func(*grpc.Server)
	// Health is served as grpc.health.v1.
	Health *Health
	// Users may connect and call the methods of their roles; root and the process's own user may call all.
	Users rights.Users
	// Network is what is served besides, for parts on other machines; the zero value is nothing.
	Network peertls.Listen
	// Sockets holds the listening socket of the network during a restart; nil if nobody does.
	Sockets *sockets.Set
	// Logger logs refused peers and calls; nil is the default one.
	Logger *slog.Logger
	// Ready is called when the socket accepts connections; it may be nil.
	Ready func()
}

// Serve serves until ctx ends, then ends all streams, waits briefly for calls in flight, and returns nil. It fails if
// it cannot listen on an address.
func Serve(ctx context.Context, cfg Config) error {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	listeners, network, err := listen(ctx, cfg)
	if err != nil {
		return err
	}
	server, unary := newServer(ctx, cfg, network)
	group, groupCtx := errgroup.WithContext(ctx)
	for _, listener := range listeners {
		group.Go(func() error {
			if err := server.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
				return fmt.Errorf("serve on %s: %w", listener.Addr(), err)
			}
			return nil
		})
	}
	group.Go(func() error {
		<-groupCtx.Done()
		cfg.Health.server.Shutdown()
		stop(server, unary)
		return nil
	})
	cfg.Health.served.Store(true)
	if cfg.Ready != nil {
		cfg.Ready()
	}
	return group.Wait()
}

// newServer returns the server of a configuration, and its unary calls. The credentials are those of the network; nil
// for none.
func newServer(ctx context.Context, cfg Config, network credentials.TransportCredentials) (*grpc.Server, *calls) {
	callers := authorizer{users: cfg.Users, names: cfg.Network.Names, nodes: cfg.Network.Nodes, logger: cfg.Logger}
	unary := newCalls()
	options := []grpc.ServerOption{
		grpc.Creds(newPeerCredentials(network)),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.MaxRecvMsgSize(maxMessageSize),
		grpc.ChainUnaryInterceptor(callers.unary, unary.intercept),
		grpc.ChainStreamInterceptor(callers.stream, endWith(ctx)),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveTime / 2, PermitWithoutStream: true}),
	}
	if telemetry.Tracing() {
		options = append(options, grpc.StatsHandler(otelgrpc.NewServerHandler(otelgrpc.WithFilter(isUnary))))
	}
	server := grpc.NewServer(options...)
	grpc_health_v1.RegisterHealthServer(server, cfg.Health.server)
	cfg.Register(server)
	return server, unary
}

// endWith cancels the context of each stream when the process stops, because a stream would never end by itself.
func endWith(process context.Context) grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		ctx, cancel := context.WithCancel(ss.Context())
		defer cancel()
		defer context.AfterFunc(process, cancel)()
		return handler(srv, serverStream{ServerStream: ss, ctx: ctx})
	}
}

type serverStream struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // grpc.ServerStream hands out its context
}

func (s serverStream) Context() context.Context { return s.ctx }

// Dial returns a connection to the service at the address of a unix socket. It connects on first use and reconnects as
// needed, by Connect, which refuses a process of a user that may not be the service. A unary call has the deadline
// DefaultDeadline unless its context has one. It fails only if the address is malformed.
func Dial(address string) (*grpc.ClientConn, error) { return dialBy(Connect, address) }

// DialThere is Dial without the place that v0.1.0 has for the socket.
func DialThere(address string) (*grpc.ClientConn, error) { return dialBy(connectThere, address) }

func dialBy(
	connect func(ctx context.Context, address string) (net.Conn, error), address string,
) (*grpc.ClientConn, error) {
	if _, err := socketName(address); err != nil {
		return nil, err
	}
	return newClient(
		address, time.Second,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return connect(ctx, address) }),
		grpc.WithAuthority("localhost"),
	)
}

// newClient returns a connection with the options that all have. connectTimeout bounds one attempt to connect.
func newClient(
	address string, connectTimeout time.Duration, options ...grpc.DialOption,
) (*grpc.ClientConn, error) {
	options = append(
		options,
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswerSize)),
		grpc.WithChainUnaryInterceptor(withDeadline),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay:  50 * time.Millisecond,
				Multiplier: 1.6,
				Jitter:     0.2,
				MaxDelay:   time.Second,
			},
			MinConnectTimeout: connectTimeout,
		}),
	)
	if telemetry.Tracing() {
		options = append(options, grpc.WithStatsHandler(otelgrpc.NewClientHandler(otelgrpc.WithFilter(isUnary))))
	}
	conn, err := grpc.NewClient(address, options...)
	if err != nil {
		return nil, fmt.Errorf("make a client for %s: %w", address, err)
	}
	return conn, nil
}

// isUnary reports whether a call has a span. Watch streams have none because their spans would never end, and health
// polls because they carry no information.
func isUnary(info *stats.RPCTagInfo) bool {
	service, method, _ := strings.Cut(strings.TrimPrefix(info.FullMethodName, "/"), "/")
	return !strings.HasPrefix(method, "Watch") && method != "GetHealth" &&
		service != grpc_health_v1.Health_ServiceDesc.ServiceName
}
