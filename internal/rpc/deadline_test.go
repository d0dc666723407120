package rpc

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
)

func TestEveryUnaryCallHasADeadline(t *testing.T) {
	limited, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	for name, test := range map[string]struct {
		ctx  context.Context
		want time.Duration
	}{
		"without a deadline": {t.Context(), DefaultDeadline},
		"the caller's own":   {limited, time.Second},
	} {
		invoke := func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
			deadline, ok := ctx.Deadline()
			if left := time.Until(deadline); !ok || left > test.want || left < test.want-time.Minute/2 {
				t.Errorf("%s: %v are left, want %v", name, left, test.want)
			}
			return nil
		}
		if err := withDeadline(test.ctx, "/s/m", nil, nil, nil, invoke); err != nil {
			t.Error(err)
		}
	}
}
