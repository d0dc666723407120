package executor

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

// startLinger is how much longer the start of a container may take when nobody wants it any more. A start takes some tenths of a
// second. When its caller goes away in the middle, containerd may keep a task of which it has no record: it then says that the
// container has ended, and removes neither that nor its pod before it is restarted itself ("cannot delete running task").
const startLinger = 2 * time.Second

// linger gives a context that ends so much later than ctx. The function that it returns ends it at once, and must be called.
func linger(ctx context.Context, clk clock.Clock, by time.Duration) (context.Context, context.CancelFunc) {
	lingering, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := clk.NewTimer(by)
		defer timer.Stop()
		select {
		case <-timer.C():
			cancel()
		case <-lingering.Done():
		}
	})
	return lingering, func() {
		stop()
		cancel()
	}
}
