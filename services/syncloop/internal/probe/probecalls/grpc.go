package probecalls

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"k8s.io/kubernetes/pkg/probe"
)

// grpcBuffer is the size of a connection's buffers in bytes: requests and responses are shorter.
const grpcBuffer = 1 << 10

// grpc queries the container's health service, without TLS. As in the kubelet, every error is a failure.
func (c *Caller) grpc(ctx context.Context, t Target) Answer {
	host, err := t.host("")
	if err != nil {
		return unknown(err)
	}
	ctx, cancel := context.WithTimeout(ctx, t.timeout())
	defer cancel()
	address := net.JoinHostPort(host, strconv.Itoa(int(t.Probe.GRPC.Port)))
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUserAgent(c.userAgent), grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithReadBufferSize(grpcBuffer), grpc.WithWriteBufferSize(grpcBuffer), grpc.WithMaxHeaderListSize(maxHeader),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxOutput)),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return probe.ProbeDialer().DialContext(ctx, "tcp", address)
		}))
	if err != nil {
		return failure(fmt.Sprintf("error: failed to connect service at %q: %v", address, err))
	}
	defer func() { _ = conn.Close() }() // it fails only if it is closed already
	if !connected(ctx, conn) {
		return failure(fmt.Sprintf("timeout: failed to connect service %q within %v: %v", address, t.timeout(), ctx.Err()))
	}
	service := ""
	if t.Probe.GRPC.Service != nil {
		service = *t.Probe.GRPC.Service
	}
	answer, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{Service: service})
	switch {
	case err != nil:
		return failure(wrong(err, service, t))
	case answer.GetStatus() != healthv1.HealthCheckResponse_SERVING:
		return failure(fmt.Sprintf("service unhealthy (responded with %q)", answer.GetStatus()))
	}
	return success("service healthy")
}

// connected waits for a connection, which is retried until ctx ends, so that a server that starts to listen in time is
// fine.
func connected(ctx context.Context, conn *grpc.ClientConn) bool {
	conn.Connect()
	for {
		state := conn.GetState()
		if state == connectivity.Ready {
			return true
		}
		if state == connectivity.Idle {
			conn.Connect() // the connection was lost
		}
		if !conn.WaitForStateChange(ctx, state) {
			return false
		}
	}
}

// wrong returns why a query failed.
func wrong(err error, service string, t Target) string {
	message := status.Convert(err).Message()
	switch status.Code(err) { //nolint:exhaustive // the others say it themselves
	case codes.Unimplemented:
		return "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): " + message
	case codes.NotFound:
		return fmt.Sprintf("error: this server does not know the health of the service %q (NOT_FOUND): %s", service, message)
	case codes.DeadlineExceeded:
		return fmt.Sprintf("timeout: health rpc did not complete within %v", t.timeout())
	default:
		return fmt.Sprintf("error: health rpc probe failed: %v", err)
	}
}
