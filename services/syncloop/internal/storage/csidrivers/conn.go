package csidrivers

import (
	"context"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const (
	// firstRedial and lastRedial are the pauses between attempts to connect. They are short, because a driver that was
	// restarted is needed at once.
	firstRedial, lastRedial = 100 * time.Millisecond, time.Second
	// connectTimeout bounds an attempt to connect.
	connectTimeout = 5 * time.Second
)

// conn is the connection to a driver. Its end does not cancel calls in progress, because an interrupted mount is in an
// unknown state: the driver may be alive although it was deregistered.
type conn struct {
	inner *grpc.ClientConn

	mu sync.Mutex
	// calls is the number of calls in progress; ended is true after release.
	calls int
	ended bool
}

// dial returns a connection to the endpoint of a driver, which is the path of a socket. It does not connect yet.
func dial(endpoint string, interceptors ...grpc.UnaryClientInterceptor) (*conn, error) {
	path := strings.TrimPrefix(endpoint, "unix://")
	inner, err := grpc.NewClient("passthrough:///csi",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: firstRedial, Multiplier: 2, Jitter: 0.2, MaxDelay: lastRedial},
			MinConnectTimeout: connectTimeout,
		}),
		grpc.WithChainUnaryInterceptor(interceptors...),
	)
	if err != nil {
		return nil, err
	}
	return &conn{inner: inner}, nil
}

// Invoke implements grpc.ClientConnInterface.
func (c *conn) Invoke(ctx context.Context, method string, args, reply any, options ...grpc.CallOption) error {
	c.mu.Lock()
	if c.ended {
		c.mu.Unlock()
		return status.Error(codes.Unavailable, "the driver was deregistered")
	}
	c.calls++
	c.mu.Unlock()
	err := c.inner.Invoke(ctx, method, args, reply, options...)
	c.mu.Lock()
	c.calls--
	last := c.ended && c.calls == 0
	c.mu.Unlock()
	if last {
		_ = c.inner.Close() // it fails only if it is closed
	}
	return err
}

// NewStream implements grpc.ClientConnInterface. The services of a node have no streams.
func (c *conn) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Error(codes.Unimplemented, "the node services of CSI have no streams")
}

// release ends the connection after its last call.
func (c *conn) release() {
	c.mu.Lock()
	last := !c.ended && c.calls == 0
	c.ended = true
	c.mu.Unlock()
	if last {
		_ = c.inner.Close() // it fails only if it is closed
	}
}
