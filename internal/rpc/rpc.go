// Package rpc is how Quartet's processes serve and reach each other: gRPC on a unix socket whose peer is checked, health
// by grpc.health.v1 from the first moment, keepalive that matches the bookmarks of the streams, and a stop that waits
// for calls in flight but not for streams.
package rpc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
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
)

const (
	// socketMode lets the owner and the group connect; the peer check then decides by user.
	socketMode = 0o660
	// socketDirMode lets others pass through the directory of the sockets, and not list it.
	socketDirMode = 0o711
	// stopTimeout is how long a stop waits for calls in flight.
	stopTimeout = 5 * time.Second
	// keepaliveTime is a little more than stream.BookmarkInterval, so a stream that is alive is never pinged.
	keepaliveTime = 15 * time.Second
	// keepaliveTimeout is how long a peer may take to answer a ping before the connection counts as dead.
	keepaliveTimeout = 10 * time.Second
	// maxMessageSize is containerd's and the kubelet's limit for CRI messages; pods come nowhere near it.
	maxMessageSize = 16 << 20
	// maxSocketPath is the longest path that the kernel takes for a unix socket (sun_path, less its final zero).
	maxSocketPath = 107
)

// Config says what to serve and where.
type Config struct {
	// Address is unix:///ABSOLUTE/PATH.
	Address string
	// Register adds the services.
	Register func(*grpc.Server)
	// Health is served as grpc.health.v1.
	Health *Health
	// Logger gets refused peers.
	Logger *slog.Logger
	// Ready is called when the socket accepts; it may be nil.
	Ready func()
}

// Serve serves until ctx ends, then ends all streams, waits a moment for calls in flight, and returns nil. It fails when
// the address cannot be listened on.
func Serve(ctx context.Context, cfg Config) error {
	listener, err := listen(cfg.Address)
	if err != nil {
		return err
	}
	server := grpc.NewServer(
		grpc.Creds(newPeerCredentials(os.Geteuid(), cfg.Logger)),
		grpc.StatsHandler(otelgrpc.NewServerHandler(otelgrpc.WithFilter(isUnary))),
		grpc.MaxRecvMsgSize(maxMessageSize),
		grpc.ChainStreamInterceptor(endWith(ctx)),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveTime / 2, PermitWithoutStream: true}),
	)
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
		stop(server)
		return nil
	})
	if cfg.Ready != nil {
		cfg.Ready()
	}
	return group.Wait()
}

// stop waits for calls in flight, but no longer than stopTimeout.
func stop(server *grpc.Server) {
	timer := time.AfterFunc(stopTimeout, server.Stop)
	defer timer.Stop()
	server.GracefulStop()
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

// listen makes the socket, its directory, and takes the place of a socket that nobody serves any more.
func listen(address string) (net.Listener, error) {
	path, err := socketPath(address)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), socketDirMode); err != nil {
		return nil, fmt.Errorf("make the directory of the socket %s: %w", path, err)
	}
	if conn, err := net.Dial("unix", path); err == nil {
		if err := conn.Close(); err != nil {
			return nil, fmt.Errorf("probe the socket %s: %w", path, err)
		}
		return nil, fmt.Errorf("another process serves on %s: stop it, or choose another address with --listen", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the old socket %s: %w", path, err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	if err := os.Chmod(path, socketMode); err != nil {
		return nil, errors.Join(fmt.Errorf("set the mode of %s: %w", path, err), listener.Close())
	}
	return listener, nil
}

func socketPath(address string) (string, error) {
	path, ok := strings.CutPrefix(address, "unix://")
	if !ok || !filepath.IsAbs(path) {
		return "", fmt.Errorf("address %q: want unix:///ABSOLUTE/PATH", address)
	}
	if len(path) > maxSocketPath {
		return "", fmt.Errorf("address %q: a unix socket's path has at most %d bytes, this has %d: choose a shorter directory", address, maxSocketPath, len(path))
	}
	return path, nil
}

// Dial returns a connection to the service at address. It connects when it is first used and again whenever it must;
// it fails only when the address is malformed.
func Dial(address string) (*grpc.ClientConn, error) {
	if _, err := socketPath(address); err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithStatsHandler(otelgrpc.NewClientHandler(otelgrpc.WithFilter(isUnary))),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageSize)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: time.Second,
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("make a client for %s: %w", address, err)
	}
	return conn, nil
}

// isUnary leaves out the watch streams, whose spans would never end, and the polls of health, which say nothing.
func isUnary(info *stats.RPCTagInfo) bool {
	method := info.FullMethodName[strings.LastIndexByte(info.FullMethodName, '/')+1:]
	return !strings.HasPrefix(method, "Watch") && method != "GetHealth" && method != "Check"
}
