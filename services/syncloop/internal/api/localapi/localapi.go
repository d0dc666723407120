// Package localapi serves a gRPC API of the kubelet to programs on this machine: on a socket that only root can use,
// with the kubelet's limit of requests.
package localapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/rpc"
)

const (
	// dirMode is the kubelet's. socketMode is the mode of the kubelet's sockets: only root can use them.
	dirMode, socketMode = 0o750, 0o600
	// perSecond and burst limit the requests; they are the kubelet's numbers.
	perSecond, burst = 100, 10
)

// Config configures Serve. All fields are required, except as noted.
type Config struct {
	// Path is the path of the socket.
	Path string
	// Register registers the API.
	Register func(server *grpc.Server)
	// Unary and Stream are called around the requests within the limit; each may be nil. As in the kubelet, the limit is
	// for requests with one answer.
	Unary  grpc.UnaryServerInterceptor
	Stream grpc.StreamServerInterceptor
	// Logger logs refused users.
	Logger *slog.Logger
	// Clock is the time.
	Clock clock.PassiveClock
}

// Serve serves requests until ctx ends, and then returns nil. It replaces a stale socket. It fails if it cannot listen.
func Serve(ctx context.Context, cfg Config) error {
	dir := filepath.Dir(cfg.Path)
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return fmt.Errorf("make the directory of the socket: %w", err)
	}
	listener, err := rpc.ListenUnix("unix://"+cfg.Path, nil, cfg.Logger)
	if err != nil {
		return err
	}
	if err := os.Chmod(cfg.Path, socketMode); err != nil {
		return errors.Join(fmt.Errorf("set the mode of %s: %w", cfg.Path, err), listener.Close())
	}
	limiter := flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(perSecond, burst, cfg.Clock)
	unary := []grpc.UnaryServerInterceptor{limited(limiter)}
	if cfg.Unary != nil {
		unary = append(unary, cfg.Unary)
	}
	options := []grpc.ServerOption{grpc.ChainUnaryInterceptor(unary...), grpc.WaitForHandlers(true)}
	if cfg.Stream != nil {
		options = append(options, grpc.StreamInterceptor(cfg.Stream))
	}
	server := grpc.NewServer(options...)
	cfg.Register(server)
	defer server.Stop()
	defer context.AfterFunc(ctx, server.Stop)()
	if err := server.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve on %s: %w", cfg.Path, err)
	}
	return nil
}

// limited rejects requests beyond the limit with the kubelet's message.
func limited(limiter flowcontrol.PassiveRateLimiter) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if !limiter.TryAccept() {
			return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit")
		}
		return handler(ctx, request)
	}
}
