package rpc

import (
	"context"
	"time"

	"google.golang.org/grpc"
)

// DefaultDeadline bounds a unary call whose context has no deadline. It is the kubelet's default of
// runtimeRequestTimeout, the longest time that a process of the node waits for an answer.
const DefaultDeadline = 2 * time.Minute

// withDeadline gives each unary call a deadline, so that a peer that hangs delays no caller for ever.
func withDeadline(
	ctx context.Context, method string, request, response any, conn *grpc.ClientConn,
	invoke grpc.UnaryInvoker, options ...grpc.CallOption,
) error {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, DefaultDeadline)
		defer cancel()
	}
	return invoke(ctx, method, request, response, conn, options...)
}
