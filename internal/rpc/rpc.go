// Package rpc is how Quartet's processes serve and reach each other: gRPC on a unix socket whose peer is checked, health
// by grpc.health.v1 from the first moment, keepalive that matches the bookmarks of the streams, and a stop that waits
// for calls in flight but not for streams.
package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/stats"

	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// keepaliveTime is a little more than stream.BookmarkInterval, so a stream that is alive is never pinged.
	keepaliveTime = 15 * time.Second
	// keepaliveTimeout is how long a peer may take to answer a ping before the connection counts as dead.
	keepaliveTimeout = 10 * time.Second
	// maxMessageSize is containerd's and the kubelet's limit for CRI messages; a pod comes nowhere near it.
	maxMessageSize = 16 << 20
	// maxAnswerSize is that of answers, which may be a set of pods: 6,000 of 10 KiB.
	maxAnswerSize = 64 << 20
)

// Config says what to serve and where.
type Config struct {
	// Address is unix:///ABSOLUTE/PATH.
	Address string
	// Register adds the services.
	Register func(*grpc.Server)
	// Health is served as grpc.health.v1.
	Health *Health
	// AllowedUIDs are the users that may connect besides root and the process's own.
	AllowedUIDs []int
	// Logger gets refused peers.
	Logger *slog.Logger
	// Ready is called when the socket accepts; it may be nil.
	Ready func()
}

// Serve serves until ctx ends, then ends all streams, waits a moment for calls in flight, and returns nil. It fails when
// the address cannot be listened on.
func Serve(ctx context.Context, cfg Config) error {
	listener, err := ListenUnix(cfg.Address, cfg.AllowedUIDs, cfg.Logger)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	unary := newCalls()
	options := []grpc.ServerOption{
		grpc.Creds(newPeerCredentials()),
		grpc.MaxRecvMsgSize(maxMessageSize),
		grpc.ChainUnaryInterceptor(unary.intercept),
		grpc.ChainStreamInterceptor(endWith(ctx)),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveTime / 2, PermitWithoutStream: true}),
	}
	if telemetry.Tracing() {
		options = append(options, grpc.StatsHandler(otelgrpc.NewServerHandler(otelgrpc.WithFilter(isUnary))))
	}
	server := grpc.NewServer(options...)
	grpc_health_v1.RegisterHealthServer(server, cfg.Health.server)
	cfg.Register(server)

	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := server.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			return fmt.Errorf("serve on %s: %w", cfg.Address, err)
		}
		return nil
	})
	group.Go(func() error {
		<-groupCtx.Done()
		cfg.Health.server.Shutdown()
		stop(server, unary)
		return nil
	})
	if cfg.Ready != nil {
		cfg.Ready()
	}
	return group.Wait()
}

// endWith ends the context of each stream when the process stops: a stream would never end by itself.
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

// Dial returns a connection to the service at address. It connects when it is first used and again whenever it must;
// it fails only when the address is malformed.
func Dial(address string) (*grpc.ClientConn, error) {
	if _, err := socketName(address); err != nil {
		return nil, err
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswerSize)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: time.Second,
		}),
	}
	if telemetry.Tracing() {
		options = append(options, grpc.WithStatsHandler(otelgrpc.NewClientHandler(otelgrpc.WithFilter(isUnary))))
	}
	conn, err := grpc.NewClient(address, options...)
	if err != nil {
		return nil, fmt.Errorf("make a client for %s: %w", address, err)
	}
	return conn, nil
}

// isUnary leaves out the watch streams, whose spans would never end, and the polls of health, which say nothing.
func isUnary(info *stats.RPCTagInfo) bool {
	service, method, _ := strings.Cut(strings.TrimPrefix(info.FullMethodName, "/"), "/")
	return !strings.HasPrefix(method, "Watch") && method != "GetHealth" && service != grpc_health_v1.Health_ServiceDesc.ServiceName
}
